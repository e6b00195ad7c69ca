//! The frames of orders for managed memory.

use broker_core::{ClientFrame, ManagedOrder};
use vramd_proto::{
    channel::{MANAGED_ORDERS_MAX, MANAGED_PROBLEM_BYTES_MAX},
    v1::{self, daemon_frame::Frame},
};
use vramd_types::{AllocationId, printable_within};

use crate::events;

pub(super) fn orders(number: u64, orders: &[ManagedOrder]) -> Frame {
    let order = |order: &ManagedOrder| v1::ManagedOrder {
        allocation_id: order.allocation.shown(),
        to: events::tier(order.to).into(),
    };
    Frame::ManagedOrders(v1::ManagedOrders { batch_id: number, orders: orders.iter().map(order).collect() })
}

/// The core checks that the batch is under way, and has such orders.
pub(super) fn done(done: v1::ManagedOrdersDone) -> Result<ClientFrame, String> {
    let (count, most) = (done.failures.len(), MANAGED_ORDERS_MAX);
    if count > most {
        return Err(format!("{count} orders for managed memory failed, at most {most} are sent"));
    }
    let failure = |it: v1::ManagedOrderFailure| {
        let problem = printable_within(&it.problem, MANAGED_PROBLEM_BYTES_MAX);
        (AllocationId::from_shown(it.allocation_id), problem)
    };
    let failed = done.failures.into_iter().map(failure).collect();
    Ok(ClientFrame::ManagedOrdersDone { number: done.batch_id, failed })
}

#[cfg(test)]
mod tests {
    use broker_core::{Tier, limits};
    use prost::Message;
    use vramd_proto::channel::FRAME_BYTES_MAX;

    use super::*;

    fn failures(count: u64) -> v1::ManagedOrdersDone {
        let problem = "x".repeat(MANAGED_PROBLEM_BYTES_MAX);
        let failure = |allocation_id| v1::ManagedOrderFailure { allocation_id, problem: problem.clone() };
        let failures = (0..count).map(|nth| failure(u64::MAX - nth)).collect();
        v1::ManagedOrdersDone { batch_id: u64::MAX, failures }
    }

    #[test]
    fn largest_batch_and_its_answer_fit_a_frame() {
        assert_eq!(limits::MANAGED_ORDERS_PER_FRAME_MAX, MANAGED_ORDERS_MAX);
        let order = ManagedOrder { allocation: AllocationId::from_shown(u64::MAX), to: Tier::Host };
        let frame = orders(u64::MAX, &vec![order; MANAGED_ORDERS_MAX]);
        assert!(v1::DaemonFrame { frame: Some(frame) }.encoded_len() <= FRAME_BYTES_MAX);
        let frame = v1::client_frame::Frame::ManagedOrdersDone(failures(MANAGED_ORDERS_MAX as u64));
        assert!(v1::ClientFrame { frame: Some(frame) }.encoded_len() <= FRAME_BYTES_MAX);
    }

    #[test]
    fn answers_are_bounded() {
        assert!(done(failures(MANAGED_ORDERS_MAX as u64)).is_ok());
        assert!(done(failures(MANAGED_ORDERS_MAX as u64 + 1)).unwrap_err().contains("513"));
        let mut long = failures(1);
        long.failures[0].problem = "a\nb".repeat(100);
        let Ok(ClientFrame::ManagedOrdersDone { number: u64::MAX, failed }) = done(long) else { panic!() };
        let problem = &failed[0].1;
        assert!(problem.len() <= MANAGED_PROBLEM_BYTES_MAX && !problem.contains('\n'), "{problem:?}");
    }
}
