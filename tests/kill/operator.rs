//! An operator who has everything leave its device and come back, whoever uses it, all the time.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use tonic::Status;
use vramd_proto::v1::{
    ListAllAllocationsRequest, MoveOutcome, MovePartsRequest, MovePartsResponse, Tier,
    move_parts_request::Target,
};
use vramd_tests::{Admin, Pending, Refused, wait::soon};
use vramd_types::Reason;

/// Between two orders: pins are to find no room, too, and have others leave.
const PAUSE: Duration = Duration::from_millis(4);
/// One order in so many brings in.
const ONE_IN: u64 = 4;

/// Nobody waits for what it is told: orders for what dies stay open for a while.
pub(crate) fn move_until(admin: &Admin, over: &AtomicBool) -> Result<()> {
    let mut asked: BTreeMap<u64, Pending<MovePartsResponse>> = BTreeMap::new();
    let mut orders = 0;
    while !over.load(Ordering::SeqCst) {
        for id in allocations(admin) {
            match asked.remove(&id) {
                Some(order) if !order.is_answered() => {
                    asked.insert(id, order);
                    continue;
                }
                Some(order) => is_plain(&order.wait())?,
                None => {}
            }
            orders += 1;
            let tier = if orders % ONE_IN == 0 { Tier::Device } else { Tier::Host };
            asked.insert(id, admin.move_parts(request(id, tier)));
            thread::sleep(PAUSE);
        }
    }
    asked.into_values().try_for_each(|order| is_plain(&order.wait()))
}

/// Has all that there is leave and come back, which is less than the device has. Then its backing is memory, too.
pub(crate) fn turn_all_over(admin: &Admin) -> Result<()> {
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
    let request = ListAllAllocationsRequest { page_size: 1000, ..Default::default() };
    admin.list_all_allocations(request).ok().allocations.iter().map(|row| row.allocation_id).collect()
}

fn request(id: u64, tier: Tier) -> MovePartsRequest {
    MovePartsRequest { target: Some(Target::AllocationId(id)), tier: tier.into(), ..Default::default() }
}

/// It may be gone, or change hands; whatever else stands in the way of a part, its copy must not.
fn is_plain(outcome: &Result<MovePartsResponse, Status>) -> Result<()> {
    match outcome {
        Ok(answer) => {
            let failed = answer.parts.iter().find(|part| part.outcome() == MoveOutcome::Failed);
            ensure!(failed.is_none(), "a copy failed: {failed:?}");
        }
        Err(status) => {
            let refused = Refused::from_status(status);
            let plain = [Reason::AllocationNotFound, Reason::Raced].map(Reason::name);
            ensure!(plain.contains(&refused.reason.as_str()), "an order was refused: {refused:?}");
        }
    }
    Ok(())
}
