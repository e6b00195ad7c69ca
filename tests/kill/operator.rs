//! An operator that writes back, evicts and fetches all memory, all the time, while clients use it.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use tonic::Status;
use vramd_proto::v1::{
    ListAllAllocationsRequest, MoveOutcome, MovePartsRequest, MovePartsResponse, PartMove, Tier,
    WriteBackPartsRequest, WriteBackPartsResponse, move_parts_request::Target, write_back_parts_request,
};
use vramd_tests::{Admin, Pending, Refused, wait::soon};
use vramd_types::Reason;

/// The pause between two orders, so that pins find no room, too, and have other parts evicted.
const PAUSE: Duration = Duration::from_millis(4);
/// The orders in turn: a written-back part leaves next, and is written before it does.
const ORDERS: [fn(&Admin, u64) -> Order; 4] =
    [Order::evict_to_host, Order::write_back, Order::evict_to_disk, Order::bring_in];

enum Order {
    Move(Pending<MovePartsResponse>),
    WriteBack(Pending<WriteBackPartsResponse>),
}

/// Gives orders without waiting for their outcome: orders for parts of dying clients stay open for a while.
pub(crate) fn move_until(admin: &Admin, over: &AtomicBool) -> Result<()> {
    let mut asked: BTreeMap<u64, Order> = BTreeMap::new();
    let mut orders = ORDERS.iter().cycle();
    while !over.load(Ordering::SeqCst) {
        for id in allocations(admin) {
            match asked.remove(&id) {
                Some(order) if !order.is_answered() => {
                    asked.insert(id, order);
                    continue;
                }
                Some(order) => is_legal(order.wait())?,
                None => {}
            }
            asked.extend(orders.next().map(|order| (id, order(admin, id))));
            thread::sleep(PAUSE);
        }
    }
    asked.into_values().try_for_each(|order| is_legal(order.wait()))
}

/// Evicts all memory to the host and fetches it. Either tier has room for all of it. Afterwards its backing is in the
/// host, too.
pub(crate) fn evict_and_fetch_all(admin: &Admin) -> Result<()> {
    for (tier, what) in [(Tier::Host, "all of it has left"), (Tier::Device, "all of it is on its device")] {
        soon(what, || {
            allocations(admin).into_iter().all(|id| {
                let moved = admin.move_parts(request(id, tier)).wait();
                moved.is_ok_and(|moved| moved.parts.iter().all(|it| it.outcome() == MoveOutcome::Moved))
            })
        })?;
    }
    Ok(())
}

fn allocations(admin: &Admin) -> Vec<u64> {
    let request = ListAllAllocationsRequest { page_size: Some(1000), ..Default::default() };
    admin.list_all_allocations(request).ok().allocations.iter().map(|row| row.allocation_id).collect()
}

fn request(id: u64, tier: Tier) -> MovePartsRequest {
    MovePartsRequest { target: Some(Target::AllocationId(id)), tier: tier.into(), ..Default::default() }
}

impl Order {
    fn evict_to_host(admin: &Admin, id: u64) -> Self {
        Self::Move(admin.move_parts(request(id, Tier::Host)))
    }

    fn evict_to_disk(admin: &Admin, id: u64) -> Self {
        Self::Move(admin.move_parts(request(id, Tier::Disk)))
    }

    fn bring_in(admin: &Admin, id: u64) -> Self {
        Self::Move(admin.move_parts(request(id, Tier::Device)))
    }

    fn write_back(admin: &Admin, id: u64) -> Self {
        let target = Some(write_back_parts_request::Target::AllocationId(id));
        Self::WriteBack(admin.write_back_parts(WriteBackPartsRequest { target, ..Default::default() }))
    }

    fn is_answered(&self) -> bool {
        match self {
            Self::Move(order) => order.is_answered(),
            Self::WriteBack(order) => order.is_answered(),
        }
    }

    fn wait(self) -> Result<Vec<PartMove>, Status> {
        match self {
            Self::Move(order) => order.wait().map(|answer| answer.parts),
            Self::WriteBack(order) => order.wait().map(|answer| answer.parts),
        }
    }
}

/// Whether this outcome is legal: the part may be gone or in use, but its copy must not fail.
fn is_legal(outcome: Result<Vec<PartMove>, Status>) -> Result<()> {
    match outcome {
        Ok(parts) => {
            let failed = parts.iter().find(|part| part.outcome() == MoveOutcome::Failed);
            ensure!(failed.is_none(), "a copy failed: {failed:?}");
        }
        Err(status) => {
            let refused = Refused::from_status(&status);
            let plain = [Reason::AllocationNotFound, Reason::Raced].map(Reason::name);
            ensure!(plain.contains(&refused.reason.as_str()), "an order was refused: {refused:?}");
        }
    }
    Ok(())
}
