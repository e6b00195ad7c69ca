//! Converts waits and moves to messages.

use std::time::SystemTime;

use broker_core::{MigrationState, MoveView, PartRef, WaitCause, WaitReason, WaitView, WaiterView};
use broker_driver::{LaneId, LinkFacts, Traffic};
use vramd_proto::v1;
use vramd_types::{Bytes, DeviceIndex, SessionId, WaitId};

use super::view::{count, time_of_day};
use crate::{
    events::{move_cause, tier},
    moves::FinishedMove,
};

/// Converts a wait. `started_at` is the wall clock's time at the start of the daemon.
pub(in crate::grpc) fn wait(view: WaitView, started_at: SystemTime) -> v1::Wait {
    use v1::wait::What;
    let what = match view.waiter {
        WaiterView::Part { part, sessions } => What::Part(v1::PartWait {
            part: Some(part_ref(part)),
            session_ids: sessions.into_iter().map(SessionId::shown).collect(),
        }),
        WaiterView::Batch { session, items } => {
            What::Batch(v1::BatchWait { session_id: session.shown(), item_count: count(items) })
        }
    };
    v1::Wait {
        wait_id: view.id.shown(),
        tenant: view.tenant,
        device: view.device,
        bytes: view.bytes.get(),
        began_at: time_of_day(view.since, started_at),
        until: view.deadline.and_then(|until| time_of_day(until, started_at)),
        what: Some(what),
        request: view.request,
        reason: Some(reason(view.reason)),
        requests_ahead: count(view.ahead.0),
        wait_id_ahead: view.ahead.1.map_or(0, WaitId::shown),
    }
}

fn reason(reason: WaitReason) -> v1::WaitReason {
    let cause = match reason.cause {
        WaitCause::Limit => v1::WaitCause::Limit,
        WaitCause::Guarantee => v1::WaitCause::Guarantee,
        WaitCause::InUse => v1::WaitCause::InUse,
        WaitCause::Leaving => v1::WaitCause::Leaving,
        WaitCause::Turn => v1::WaitCause::Turn,
        WaitCause::Driver => v1::WaitCause::Driver,
    };
    v1::WaitReason {
        cause: cause.into(),
        bound_bytes: reason.bound.get(),
        held_bytes: reason.charged.get(),
        session_ids: reason.sessions.into_iter().map(SessionId::shown).collect(),
        tenants: reason.tenants,
        operator_held_bytes: reason.operator_held.get(),
    }
}

/// Converts a present move. `copied` is the part of its bytes that has been copied.
pub(in crate::grpc) fn moving(view: MoveView, copied: Option<Bytes>, started_at: SystemTime) -> v1::Move {
    v1::Move {
        part: Some(part_ref(view.part)),
        tenant: view.tenant,
        device: view.device,
        tier: tier(view.to).into(),
        bytes: view.bytes.get(),
        copied_bytes: copied.map(Bytes::get),
        cause: move_cause(view.cause).into(),
        state: state(view.state).into(),
        began_at: time_of_day(view.since, started_at),
        from_tier: tier(view.from).into(),
    }
}

/// Converts a link. Devices are named by their UUIDs.
pub(in crate::grpc) fn link(link: &LinkFacts, uuid_of: &dyn Fn(DeviceIndex) -> String) -> v1::Link {
    let lane = |(lane, carries): &(LaneId, u64)| {
        let (way, device) = way(*lane, uuid_of);
        v1::link::Lane { way: way.into(), device, bytes_per_second: *carries }
    };
    v1::Link { name: link.name.clone(), lanes: link.lanes.iter().map(lane).collect() }
}

pub(in crate::grpc) fn traffic(traffic: Traffic, uuid_of: &dyn Fn(DeviceIndex) -> String) -> v1::LaneTraffic {
    let (way, device) = way(traffic.lane, uuid_of);
    let [demand, prefetch, write_back] = traffic.begun.map(Bytes::get);
    v1::LaneTraffic {
        way: way.into(),
        device,
        demand_bytes: demand,
        prefetch_bytes: prefetch,
        write_back_bytes: write_back,
    }
}

fn way(lane: LaneId, uuid_of: &dyn Fn(DeviceIndex) -> String) -> (v1::LinkWay, String) {
    let way = match lane {
        LaneId::ToDevice(_) => v1::LinkWay::ToDevice,
        LaneId::FromDevice(_) => v1::LinkWay::FromDevice,
        LaneId::BetweenDevices(_) => v1::LinkWay::BetweenDevices,
        LaneId::WithinHost => v1::LinkWay::WithinHost,
        LaneId::FromDisk => v1::LinkWay::FromDisk,
        LaneId::ToDisk => v1::LinkWay::ToDisk,
    };
    (way, lane.device().map(uuid_of).unwrap_or_default())
}

/// Converts a finished move of the device with that UUID.
pub(in crate::grpc) fn ended(ended: FinishedMove, uuid: String, started_at: SystemTime) -> v1::EndedMove {
    v1::EndedMove {
        part: Some(part_ref(ended.part)),
        tenant: ended.tenant.as_ref().to_owned(),
        device: uuid,
        tier: tier(ended.tier).into(),
        bytes: ended.bytes.get(),
        cause: move_cause(ended.cause).into(),
        outcome: ended.outcome.into(),
        detail: ended.detail,
        began_at: time_of_day(ended.began, started_at),
        duration_us: u64::try_from(ended.took.as_micros()).unwrap_or(u64::MAX),
        from_tier: tier(ended.from).into(),
    }
}

fn part_ref(part: PartRef) -> v1::PartRef {
    v1::PartRef { allocation_id: part.allocation.shown(), part_index: part.part.0 }
}

fn state(state: MigrationState) -> v1::MoveState {
    match state {
        MigrationState::Preparing => v1::MoveState::Preparing,
        MigrationState::Copying => v1::MoveState::Copying,
        MigrationState::Stopping => v1::MoveState::Stopping,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use broker_core::Time;
    use vramd_types::{AllocationId, PartIndex};

    use super::*;

    #[test]
    fn a_wait_is_shown_with_its_times() {
        let started_at = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let view = |what, until| WaitView {
            id: WaitId::from_shown(9),
            device: "GPU-0".to_owned(),
            tenant: "a".to_owned(),
            waiter: what,
            bytes: Bytes::mib(2),
            since: Time::from_micros(1_500_000),
            deadline: until,
            request: 8,
            reason: WaitReason {
                cause: WaitCause::Limit,
                bound: Bytes::mib(8),
                charged: Bytes::mib(7),
                sessions: vec![SessionId::from_shown(4)],
                tenants: Vec::new(),
                operator_held: Bytes::ZERO,
            },
            ahead: (2, Some(WaitId::from_shown(6))),
        };
        let part = PartRef { allocation: AllocationId::from_shown(7), part: PartIndex(3) };
        let shown =
            wait(view(WaiterView::Part { part, sessions: vec![SessionId::from_shown(4)] }, None), started_at);
        let part = Some(v1::PartRef { allocation_id: 7, part_index: 3 });
        assert_eq!(shown.what, Some(v1::wait::What::Part(v1::PartWait { part, session_ids: vec![4] })));
        assert_eq!(shown.began_at.unwrap().to_string(), "1970-01-01T00:01:41.500Z");
        assert_eq!((shown.wait_id, shown.bytes, shown.until), (9, 2 << 20, None));
        assert_eq!((shown.request, shown.requests_ahead, shown.wait_id_ahead), (8, 2, 6));
        let reason = shown.reason.unwrap();
        assert_eq!(
            (reason.cause(), reason.bound_bytes, reason.held_bytes),
            (v1::WaitCause::Limit, 8 << 20, 7 << 20)
        );
        assert_eq!(reason.session_ids, [4]);

        let batch = WaiterView::Batch { session: SessionId::from_shown(4), items: 2 };
        let shown = wait(view(batch, Some(Time::from_micros(20_000_000))), started_at);
        assert_eq!(shown.what, Some(v1::wait::What::Batch(v1::BatchWait { session_id: 4, item_count: 2 })));
        assert_eq!(shown.until.unwrap().seconds, 120);
    }
}
