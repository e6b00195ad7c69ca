//! One small world: where the part lies at first, what callers do, what the operator orders meanwhile.

use std::sync::Arc;

use loom::model::Builder;
use loom::sync::mpsc::channel;
use loom::thread;

use crate::caller::{self, Act};
use crate::daemon::Broker;
use crate::form::Form;
use crate::worker;
use crate::world::{ToDaemon, ToWorker, Truth, World};

/// What the operator, or the program, does while the callers call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    Daemon(ToDaemon),
    Detach,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    /// Mapped before anything else happens; otherwise the part lies in the host.
    pub(crate) resident: bool,
    pub(crate) sealed: bool,
    pub(crate) callers: &'static [&'static [Act]],
    pub(crate) orders: &'static [Order],
    pub(crate) preemptions: usize,
}

pub(crate) const EVICT: Order = Order::Daemon(ToDaemon::Evict);
pub(crate) const FENCE: Order = Order::Daemon(ToDaemon::Fence);
pub(crate) const DEADLINE: Order = Order::Daemon(ToDaemon::Deadline);
pub(crate) const WRITE_BACK: Order = Order::Daemon(ToDaemon::WriteBack { fails: false });
pub(crate) const FAILED_WRITE_BACK: Order = Order::Daemon(ToDaemon::WriteBack { fails: true });

/// One caller at most.
pub(crate) const RESIDENT: Scenario =
    Scenario { resident: true, sealed: false, callers: &[], orders: &[], preemptions: 3 };
pub(crate) const IN_HOST: Scenario = Scenario { resident: false, ..RESIDENT };
/// Many orders: so many runs at three preemptions that two must do.
pub(crate) const RESIDENT_FOR_LONG: Scenario = Scenario { preemptions: 2, ..RESIDENT };
/// Two callers: five threads, so fewer preemptions.
pub(crate) const RESIDENT_FOR_TWO: Scenario = Scenario { preemptions: 1, ..RESIDENT };
pub(crate) const IN_HOST_FOR_TWO: Scenario = Scenario { preemptions: 1, ..IN_HOST };

impl Scenario {
    /// Explores every run of the right protocol, or of a form of it.
    pub(crate) fn explore(self, form: Option<Form>) {
        let mut builder = Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(self.preemptions));
        builder.max_branches = 10_000;
        let runs = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let counted = Arc::clone(&runs);
        builder.check(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.run(form);
        });
        eprintln!("{} runs of {self:?}", runs.load(std::sync::atomic::Ordering::Relaxed));
    }

    fn run(self, form: Option<Form>) {
        const AT_FIRST: u64 = 1;
        let (to_daemon, daemon_inbox) = channel();
        let (to_worker, worker_inbox) = channel();
        let (world, daemon_words, worker_words) = World::new(form, to_daemon, to_worker);
        let world = Arc::new(world);
        *world.truth() = Truth { writes: vec![AT_FIRST], settled: 1, ..Truth::default() };

        let mut broker = Broker::new(Arc::clone(&world), daemon_words, AT_FIRST);
        if self.sealed {
            broker.seal();
        }
        if self.resident {
            broker.prefetch();
            let frame = worker_inbox.recv().unwrap();
            worker::handle(&world, &worker_words, &mut false, frame);
            broker.handle(daemon_inbox.recv().unwrap());
        }
        let daemon = thread::spawn(move || broker.run(&daemon_inbox));
        let worker = {
            let world = Arc::clone(&world);
            thread::spawn(move || worker::run(&world, &worker_words, &worker_inbox))
        };
        let callers: Vec<_> = self
            .callers
            .iter()
            .enumerate()
            .map(|(id, acts)| {
                let world = Arc::clone(&world);
                thread::spawn(move || caller::run(&world, id, acts))
            })
            .collect();
        for order in self.orders {
            match order {
                Order::Daemon(order) => world.tell_daemon(*order),
                Order::Detach => world.tell_worker(ToWorker::Detach),
            }
        }
        for caller in callers {
            caller.join().unwrap();
        }
        world.tell_daemon(ToDaemon::Finish);
        let host = daemon.join().unwrap();
        worker.join().unwrap();
        let kept = if self.sealed { Some(AT_FIRST) } else { world.truth().writes.last().copied() };
        assert_eq!(Some(host), kept, "a byte was lost");
    }
}
