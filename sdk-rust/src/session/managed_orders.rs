//! Orders of the daemon for managed memory: the daemon decides where it should lie, and this process moves it.
//!
//! A thread executes them, batch after batch, since a prefetch takes as long as its bytes take on the link. It is neither
//! the thread that reads the channel, which answers the daemon in time, nor one of the program. It lives while there are
//! orders.
//!
//! A batch holds the locks of all its memory until it is done. So a free waits for the batch that moves its memory, and an
//! order for memory that was freed finds nothing.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    thread,
};

use vramd_proto::{
    channel::MANAGED_PROBLEM_BYTES_MAX,
    v1::{ManagedOrder, ManagedOrderFailure, ManagedOrders as Batch, ManagedOrdersDone, Tier},
};
use vramd_types::{AllocationId, printable_within};

use crate::{
    channel::Link,
    cuda::{Context, ManagedRange, MoveTo},
};

/// The managed memory of a session that orders may move, and the orders.
#[derive(Debug, Default)]
pub(crate) struct ManagedOrders {
    shared: Arc<Mutex<Shared>>,
    /// The table of a session may outlive its link, and keeps none of its descriptors open.
    link: OnceLock<Weak<Link>>,
}

#[derive(Debug, Default)]
struct Shared {
    memories: BTreeMap<AllocationId, Arc<Memory>>,
    waiting: VecDeque<Batch>,
    is_running: bool,
}

#[derive(Debug)]
struct Memory {
    /// `None` on a simulated device, which has nothing to move.
    context: Option<Arc<Context>>,
    /// `None` once it is freed.
    range: Mutex<Option<ManagedRange>>,
}

impl ManagedOrders {
    /// Sets where answers go. Before that no order comes.
    pub(crate) fn answer_by(&self, link: &Arc<Link>) {
        // A session has one link.
        let _ = self.link.set(Arc::downgrade(link));
    }

    /// Lets orders move this memory, from its allocation on.
    pub(crate) fn add(&self, id: AllocationId, context: Option<Arc<Context>>, range: ManagedRange) {
        let memory = Memory { context, range: Mutex::new(Some(range)) };
        lock(&self.shared).memories.insert(id, Arc::new(memory));
    }

    /// Lets no order move this memory any longer. Returns once none does, so that it can be freed.
    pub(crate) fn remove(&self, id: AllocationId) {
        let memory = lock(&self.shared).memories.remove(&id);
        if let Some(memory) = memory {
            *lock(&memory.range) = None;
        }
    }

    /// Takes a batch, to be executed later. If that is not possible, returns the answer that says so.
    pub(crate) fn queue(&self, batch: Batch) -> Result<(), ManagedOrdersDone> {
        let undone = |batch: &Batch, problem: &str| ManagedOrdersDone {
            batch_id: batch.batch_id,
            failures: batch.orders.iter().map(|order| failure(order, problem)).collect(),
        };
        let link = self.link.get().and_then(Weak::upgrade);
        let Some(link) = link else { return Err(undone(&batch, "the session has no channel")) };
        let mut shared = lock(&self.shared);
        if shared.is_running {
            shared.waiting.push_back(batch);
            return Ok(());
        }
        let of_thread = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("vramd-orders".to_owned());
        match thread.spawn(move || run(&of_thread, &link)) {
            Ok(_) => {
                shared.is_running = true;
                shared.waiting.push_back(batch);
                Ok(())
            }
            Err(error) => Err(undone(&batch, &format!("no thread: {error}"))),
        }
    }
}

/// Executes batches until none waits.
fn run(shared: &Mutex<Shared>, link: &Link) {
    loop {
        let batch = {
            let mut shared = lock(shared);
            let Some(batch) = shared.waiting.pop_front() else {
                shared.is_running = false;
                return;
            };
            batch
        };
        let failures = execute(shared, &batch.orders);
        let done = ManagedOrdersDone { batch_id: batch.batch_id, failures };
        // Otherwise the session has ended, and no daemon waits for the answer.
        let _ = link.lock_channel().send_managed_orders_done(done);
    }
}

/// Executes orders together, and returns those that failed.
fn execute(shared: &Mutex<Shared>, orders: &[ManagedOrder]) -> Vec<ManagedOrderFailure> {
    let mut failures = Vec::new();
    let mut found = Vec::with_capacity(orders.len());
    for order in orders {
        let memory = lock(shared).memories.get(&AllocationId::from_raw(order.allocation_id)).cloned();
        match memory {
            Some(memory) => found.push((order, memory)),
            None => failures.push(failure(order, "the client has no such managed memory")),
        }
    }
    // In the order of the frame, which names none twice. A free takes one of these locks alone.
    let held: Vec<_> = found.iter().map(|(order, memory)| (*order, memory, lock(&memory.range))).collect();
    let moved = |(order, memory, range): &(_, &Arc<Memory>, MutexGuard<'_, Option<ManagedRange>>)| {
        Some((*order, memory.context.clone()?, (**range)?))
    };
    let mut rest: Vec<(&ManagedOrder, _, _)> = held.iter().filter_map(moved).collect();
    while let Some((_, context, _)) = rest.first() {
        let context: Arc<Context> = Arc::clone(context);
        let (these, others) = rest.into_iter().partition::<Vec<_>, _>(|(_, of, _)| Arc::ptr_eq(of, &context));
        rest = others;
        let to = |order: &ManagedOrder| match order.to() {
            Tier::Host => MoveTo::Host,
            _ => MoveTo::Device,
        };
        let moves: Vec<_> = these.iter().map(|(order, _, range)| (*range, to(order))).collect();
        let problems = context.move_managed(&moves);
        let failed = these.iter().zip(problems).filter_map(|((order, ..), problem)| Some((*order, problem?)));
        failures.extend(failed.map(|(order, problem)| failure(order, &problem)));
    }
    failures
}

fn failure(order: &ManagedOrder, problem: &str) -> ManagedOrderFailure {
    let problem = printable_within(problem, MANAGED_PROBLEM_BYTES_MAX);
    ManagedOrderFailure { allocation_id: order.allocation_id, problem }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
