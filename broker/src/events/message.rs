//! Converts the core's notices to events of the protocol. Every text is cut short, since events wait until they are
//! read.

use std::fmt::{self, Display, Write as _};

use broker_core::{
    Advice, AdvicePermission, Caller, Cause, Deferral, Notice, PartRef, PrefetchEnd, Pressure, Refusal,
    Retention, StandingSource, TenantClass, Tier, Time,
};
use vramd_proto::v1::{
    self, EventKind, allocation_event::Change as AllocationChange, device_event::Change as DeviceChange,
    move_event::Change as MoveChange, node_event::Change as NodeChange, quota_event::Change as QuotaChange,
    revoke_event::Change as RevokeChange, session_event::Change as SessionChange, watch_response::Event,
};
use vramd_types::{Bytes, DeviceIndex, SessionId};

use super::{settings, turns};
use crate::{channel::frame_codec, moves::WRITTEN_SINCE};

/// Maximum bytes of one text.
const TEXT_BYTES_MAX: usize = 256;

/// Returns the kind of event; `None` for a notice that is only logged.
pub(super) fn kind(notice: &Notice) -> Option<EventKind> {
    Some(match notice {
        Notice::SessionOpened { .. }
        | Notice::SessionSilent { .. }
        | Notice::SessionKilled { .. }
        | Notice::SessionAnswered { .. }
        | Notice::SessionGone { .. }
        | Notice::MapFailed { .. } => EventKind::Session,
        Notice::QuotaSet { .. } | Notice::QuotaDeleted { .. } => EventKind::Quota,
        Notice::TenantChanged { .. } => EventKind::Tenant,
        Notice::Refused { .. } => EventKind::Refusal,
        Notice::RevokeSent { .. } | Notice::RevokeAnswered { .. } | Notice::RevokeOverdue { .. } => {
            EventKind::Revoke
        }
        Notice::AllocationMade { .. }
        | Notice::AllocationSealed { .. }
        | Notice::PartsHeld { .. }
        | Notice::Advised { .. }
        | Notice::OperatorAdvised { .. }
        | Notice::AllocationFreed { .. }
        | Notice::AllocationGone { .. } => EventKind::Allocation,
        Notice::Unbrokered { .. }
        | Notice::Shortfall { .. }
        | Notice::Unreturned { .. }
        | Notice::Returned { .. }
        | Notice::CreateFailed { .. } => EventKind::Device,
        Notice::Moved { .. }
        | Notice::WrittenBack { .. }
        | Notice::Dropped { .. }
        | Notice::CleanBackingDiffers { .. }
        | Notice::MoveFailed { .. }
        | Notice::MoveStopped { .. } => EventKind::Move,
        Notice::PrefetchEnded { .. } => EventKind::Prefetch,
        Notice::TurnGranted { .. }
        | Notice::TurnEnding { .. }
        | Notice::TurnOverdue { .. }
        | Notice::TurnEnded { .. } => EventKind::Turn,
        Notice::PressureChanged { .. } => EventKind::Pressure,
        Notice::SettingsChanged { .. } => EventKind::Settings,
        Notice::Draining { .. } | Notice::InvariantBroken { .. } => EventKind::Node,
        // A stalled pin is reported as a refusal, and an evict as revokes.
        Notice::Cached { .. }
        | Notice::ManagedCharged { .. }
        | Notice::ManagedOrdered { .. }
        | Notice::ManagedOrderEnded { .. }
        | Notice::Reused { .. }
        | Notice::GivenUp { .. }
        | Notice::RoomMade { .. }
        | Notice::CreateRetried { .. }
        | Notice::Backed { .. }
        | Notice::WaitEnded { .. }
        | Notice::PinWaited { .. }
        | Notice::PrefetchUsed { .. }
        | Notice::PlacementChosen { .. }
        | Notice::ReadInPlaceEnded { .. }
        | Notice::SpeculationEnded { .. }
        | Notice::TurnAdmitted { .. }
        | Notice::VictimChosen { .. }
        | Notice::Evicted { .. }
        | Notice::PinStalled { .. } => return None,
    })
}

/// Returns the tenant that a notice concerns.
pub(super) fn tenant(notice: &Notice) -> Option<&str> {
    match notice {
        Notice::SessionOpened { tenant, .. }
        | Notice::SessionSilent { tenant, .. }
        | Notice::SessionKilled { tenant, .. }
        | Notice::SessionAnswered { tenant, .. }
        | Notice::SessionGone { tenant, .. }
        | Notice::MapFailed { tenant, .. }
        | Notice::QuotaSet { tenant, .. }
        | Notice::QuotaDeleted { tenant, .. }
        | Notice::TenantChanged { tenant, .. }
        | Notice::Refused { by: Caller::Session { tenant, .. }, .. }
        | Notice::RevokeSent { tenant, .. }
        | Notice::RevokeAnswered { tenant, .. }
        | Notice::RevokeOverdue { tenant, .. }
        | Notice::AllocationMade { tenant, .. }
        | Notice::AllocationSealed { tenant, .. }
        | Notice::PartsHeld { tenant, .. }
        | Notice::Advised { tenant, .. }
        | Notice::OperatorAdvised { tenant, .. }
        | Notice::AllocationFreed { tenant, .. }
        | Notice::AllocationGone { tenant, .. } => Some(tenant),
        Notice::Moved { tenant, .. }
        | Notice::WrittenBack { tenant, .. }
        | Notice::Dropped { tenant, .. }
        | Notice::CleanBackingDiffers { tenant, .. }
        | Notice::MoveFailed { tenant, .. }
        | Notice::MoveStopped { tenant, .. }
        | Notice::PrefetchEnded { tenant, .. }
        | Notice::TurnGranted { tenant, .. }
        | Notice::TurnEnding { tenant, .. }
        | Notice::TurnOverdue { tenant, .. }
        | Notice::TurnEnded { tenant, .. } => Some(tenant),
        Notice::Refused { by: Caller::Process { tenant, .. }, .. } => Some(tenant),
        _ => None,
    }
}

/// Converts a notice that has a kind, at the time `now`. `devices` are UUIDs, in the daemon's order.
pub(super) fn event(notice: &Notice, devices: &[String], now: Time) -> Option<Event> {
    let allocation = |change: AllocationChange, id: vramd_types::AllocationId| {
        Event::Allocation(v1::AllocationEvent {
            change: change.into(),
            allocation_id: id.shown(),
            ..Default::default()
        })
    };
    Some(match notice {
        Notice::SessionOpened { session, pid, .. } => {
            Event::Session(v1::SessionEvent { pid: *pid, ..of_session(SessionChange::Opened, *session) })
        }
        Notice::SessionSilent { session, reason, .. } => Event::Session(v1::SessionEvent {
            detail: cut(reason),
            ..of_session(SessionChange::Silent, *session)
        }),
        Notice::SessionKilled { session, reason, .. } => Event::Session(v1::SessionEvent {
            detail: cut(reason),
            ..of_session(SessionChange::Killed, *session)
        }),
        Notice::SessionAnswered { session, .. } => {
            Event::Session(of_session(SessionChange::Answered, *session))
        }
        Notice::SessionGone { session, .. } => Event::Session(of_session(SessionChange::Gone, *session)),
        Notice::MapFailed { session, part, problem, .. } => Event::Session(v1::SessionEvent {
            detail: cut(problem),
            allocation_id: part.allocation.shown(),
            part_index: part.part.0,
            ..of_session(SessionChange::MapFailed, *session)
        }),
        Notice::QuotaSet { device, tier, guarantee, limit, .. } => Event::Quota(v1::QuotaEvent {
            guarantee: guarantee.to_string(),
            limit: limit.to_string(),
            ..of_quota(QuotaChange::Set, device, *tier)
        }),
        Notice::QuotaDeleted { device, tier, .. } => {
            Event::Quota(of_quota(QuotaChange::Deleted, device, *tier))
        }
        Notice::TenantChanged { standing, source, .. } => Event::TenantChange(v1::TenantEvent {
            class: tenant_class(standing.class).into(),
            weight: standing.weight.get(),
            source: standing_source(*source).into(),
            advice: advice_permission(standing.advice).into(),
        }),
        Notice::Refused { by, request, refusal } => Event::Refusal(refused(by, request, refusal)),
        Notice::RevokeSent { session, allocation, parts, reason, .. } => Event::Revoke(v1::RevokeEvent {
            allocation_id: allocation.shown(),
            reason: frame_codec::revoke_reason(*reason).into(),
            ..of_revoke(RevokeChange::Sent, *session, *parts)
        }),
        Notice::RevokeAnswered { session, allocation, parts, .. } => Event::Revoke(v1::RevokeEvent {
            allocation_id: allocation.shown(),
            ..of_revoke(RevokeChange::Answered, *session, *parts)
        }),
        Notice::RevokeOverdue { session, parts, .. } => {
            Event::Revoke(of_revoke(RevokeChange::Overdue, *session, *parts))
        }
        Notice::AllocationMade { allocation, session, bytes, .. } => Event::Allocation(v1::AllocationEvent {
            change: AllocationChange::Made.into(),
            allocation_id: allocation.shown(),
            session_id: session.map_or(0, SessionId::shown),
            charged_bytes: bytes.get(),
            ..Default::default()
        }),
        Notice::AllocationSealed { allocation: id, .. } => allocation(AllocationChange::Sealed, *id),
        Notice::PartsHeld { allocation, parts, hold, .. } => Event::Allocation(v1::AllocationEvent {
            change: if *hold { AllocationChange::Held } else { AllocationChange::LetGo }.into(),
            allocation_id: allocation.shown(),
            part_count: u32::try_from(*parts).unwrap_or(u32::MAX),
            ..Default::default()
        }),
        Notice::Advised { allocation, advice, .. } => Event::Allocation(v1::AllocationEvent {
            change: AllocationChange::Advised.into(),
            allocation_id: allocation.shown(),
            advice: wire_advice(*advice).into(),
            ..Default::default()
        }),
        Notice::OperatorAdvised { allocation, parts, change, .. } => Event::Allocation(v1::AllocationEvent {
            change: match change {
                Some(_) => AllocationChange::OperatorAdvised.into(),
                None => AllocationChange::OperatorAdviceCleared.into(),
            },
            allocation_id: allocation.shown(),
            part_count: parts.count,
            advice: change.map_or(v1::Advice::Unspecified, wire_retention).into(),
            ..Default::default()
        }),
        Notice::AllocationFreed { allocation: id, .. } => allocation(AllocationChange::Freed, *id),
        Notice::AllocationGone { allocation: id, .. } => allocation(AllocationChange::Gone, *id),
        Notice::PrefetchEnded { session, number, device, bytes, end, loss, .. } => {
            let (drop_cause, drop_tenant) = loss
                .as_ref()
                .map(|loss| (move_cause(loss.cause), loss.tenant.as_deref().unwrap_or_default()))
                .unwrap_or_default();
            Event::Prefetch(v1::PrefetchEvent {
                end: prefetch_end(*end).into(),
                session_id: session.shown(),
                prefetch_id: *number,
                device: device.0.into(),
                bytes: bytes.get(),
                drop_cause: drop_cause.into(),
                drop_tenant: drop_tenant.to_owned(),
            })
        }
        Notice::TurnGranted { .. }
        | Notice::TurnEnding { .. }
        | Notice::TurnOverdue { .. }
        | Notice::TurnEnded { .. } => Event::Turn(turns::event(notice, now)?),
        Notice::Unbrokered { device, bytes } => of_device(DeviceChange::Unbrokered, Some(*device), *bytes),
        Notice::Shortfall { device, bytes, .. } => of_device(DeviceChange::Shortfall, Some(*device), *bytes),
        Notice::Unreturned { bytes, .. } => of_device(DeviceChange::Unreturned, None, *bytes),
        Notice::Returned { bytes, .. } => of_device(DeviceChange::Returned, None, *bytes),
        Notice::CreateFailed { problem, .. } => Event::Device(v1::DeviceEvent {
            change: DeviceChange::CreateFailed.into(),
            device: None,
            bytes: 0,
            detail: cut(problem),
        }),
        Notice::Moved { part, device, tier, bytes, .. } => {
            Event::Move(of_move(MoveChange::Moved, *part, *device, *tier, *bytes))
        }
        Notice::WrittenBack { part, device, tier, bytes, clean, .. } => Event::Move(v1::MoveEvent {
            detail: if *clean { "" } else { WRITTEN_SINCE }.to_owned(),
            ..of_move(MoveChange::WrittenBack, *part, *device, *tier, *bytes)
        }),
        Notice::Dropped { part, device, tier, bytes, .. } => {
            Event::Move(of_move(MoveChange::Dropped, *part, *device, *tier, *bytes))
        }
        Notice::CleanBackingDiffers { part, device, tier, bytes, .. } => {
            Event::Move(of_move(MoveChange::ShadowDiffers, *part, *device, *tier, *bytes))
        }
        Notice::MoveFailed { part, device, tier, bytes, problem, .. } => Event::Move(v1::MoveEvent {
            detail: cut(problem),
            ..of_move(MoveChange::Failed, *part, *device, *tier, *bytes)
        }),
        Notice::MoveStopped { part, device, tier, bytes, .. } => {
            Event::Move(of_move(MoveChange::Stopped, *part, *device, *tier, *bytes))
        }
        Notice::PressureChanged { device, tier: of, from, to, charged, capacity } => {
            Event::Pressure(v1::PressureEvent {
                device: devices.get(usize::from(device.0)).cloned().unwrap_or_default(),
                tier: tier(*of).into(),
                from: level(*from).into(),
                to: level(*to).into(),
                held_bytes: charged.get(),
                capacity_bytes: capacity.get(),
            })
        }
        Notice::SettingsChanged { uid, before, after } => Event::Settings(v1::SettingsEvent {
            operator_uid: *uid,
            before: Some(settings(before)),
            after: Some(settings(after)),
        }),
        Notice::Draining { draining: true } => of_node(NodeChange::Draining, ""),
        Notice::Draining { draining: false } => of_node(NodeChange::InService, ""),
        Notice::InvariantBroken { invariant, detail } => {
            of_node(NodeChange::InvariantBroken, &format!("{invariant}: {}", cut(detail)))
        }
        Notice::Cached { .. }
        | Notice::ManagedCharged { .. }
        | Notice::ManagedOrdered { .. }
        | Notice::ManagedOrderEnded { .. }
        | Notice::Reused { .. }
        | Notice::GivenUp { .. }
        | Notice::RoomMade { .. }
        | Notice::CreateRetried { .. }
        | Notice::Backed { .. }
        | Notice::WaitEnded { .. }
        | Notice::PinWaited { .. }
        | Notice::PrefetchUsed { .. }
        | Notice::PlacementChosen { .. }
        | Notice::ReadInPlaceEnded { .. }
        | Notice::SpeculationEnded { .. }
        | Notice::TurnAdmitted { .. }
        | Notice::VictimChosen { .. }
        | Notice::Evicted { .. }
        | Notice::PinStalled { .. } => return None,
    })
}

pub(super) fn ending(why: &str) -> Event {
    of_node(NodeChange::Ending, why)
}

fn wire_advice(advice: Advice) -> v1::Advice {
    match advice {
        Advice::SetAccessedBy => v1::Advice::SetAccessedBy,
        Advice::UnsetAccessedBy => v1::Advice::UnsetAccessedBy,
        Advice::Retain { change, .. } => wire_retention(change),
    }
}

fn wire_retention(change: Retention) -> v1::Advice {
    match change {
        Retention::Needed(false) => v1::Advice::DoNotNeed,
        Retention::Needed(true) => v1::Advice::Need,
        Retention::Importance(Some(_)) => v1::Advice::SetImportance,
        Retention::Importance(None) => v1::Advice::UnsetImportance,
        Retention::Class(Some(_)) => v1::Advice::SetClass,
        Retention::Class(None) => v1::Advice::UnsetClass,
        Retention::NeededWithin(_) => v1::Advice::WillNeed,
        Retention::Location(Some(_)) => v1::Advice::SetLocation,
        Retention::Location(None) => v1::Advice::UnsetLocation,
        Retention::ReadMostly(true) => v1::Advice::SetReadMostly,
        Retention::ReadMostly(false) => v1::Advice::UnsetReadMostly,
        Retention::Pattern(Some(_)) => v1::Advice::SetPattern,
        Retention::Pattern(None) => v1::Advice::UnsetPattern,
        Retention::Preset(_) => v1::Advice::Preset,
    }
}

fn of_session(change: SessionChange, session: SessionId) -> v1::SessionEvent {
    v1::SessionEvent { change: change.into(), session_id: session.shown(), ..Default::default() }
}

fn of_quota(change: QuotaChange, device: &str, of: Tier) -> v1::QuotaEvent {
    let (device, tier) = (cut(device), tier(of).into());
    v1::QuotaEvent { change: change.into(), device, tier, ..Default::default() }
}

fn of_revoke(change: RevokeChange, session: SessionId, parts: usize) -> v1::RevokeEvent {
    v1::RevokeEvent {
        change: change.into(),
        session_id: session.shown(),
        part_count: u32::try_from(parts).unwrap_or(u32::MAX),
        ..Default::default()
    }
}

fn of_device(change: DeviceChange, device: Option<DeviceIndex>, bytes: Bytes) -> Event {
    Event::Device(v1::DeviceEvent {
        change: change.into(),
        device: device.map(|index| index.0.into()),
        bytes: bytes.get(),
        detail: String::new(),
    })
}

fn of_move(
    change: MoveChange,
    part: PartRef,
    device: DeviceIndex,
    towards: Tier,
    bytes: Bytes,
) -> v1::MoveEvent {
    v1::MoveEvent {
        change: change.into(),
        allocation_id: part.allocation.shown(),
        part_index: part.part.0,
        device: device.0.into(),
        tier: tier(towards).into(),
        bytes: bytes.get(),
        detail: String::new(),
    }
}

fn of_node(change: NodeChange, detail: &str) -> Event {
    Event::Node(v1::NodeEvent { change: change.into(), detail: cut(detail) })
}

fn refused(by: &Caller, request: &str, refusal: &Refusal) -> v1::RefusalEvent {
    let (session, pid, operator) = match by {
        Caller::Session { session, .. } => (session.shown(), 0, None),
        Caller::Operator { uid } => (0, 0, Some(*uid)),
        Caller::Process { pid, .. } => (0, *pid, None),
        Caller::ForeignProcess { session, pid } => (session.shown(), *pid, None),
    };
    let facts = refusal.facts();
    v1::RefusalEvent {
        request: request.to_owned(),
        reason: refusal.reason().name().to_owned(),
        message: cut(refusal),
        metadata: facts.into_iter().map(|(key, value)| (key.to_owned(), cut(&value))).collect(),
        session_id: session,
        pid,
        operator_uid: operator,
    }
}

pub(crate) fn tier(tier: Tier) -> v1::Tier {
    match tier {
        Tier::Device => v1::Tier::Device,
        Tier::Host => v1::Tier::Host,
        Tier::Disk => v1::Tier::Disk,
    }
}

pub(crate) fn move_cause(cause: Cause) -> v1::MoveCause {
    match cause {
        Cause::Demand => v1::MoveCause::Demand,
        Cause::WriteBack => v1::MoveCause::WriteBack,
        Cause::Rebalance => v1::MoveCause::Rebalance,
        Cause::Pressure => v1::MoveCause::Pressure,
        Cause::Operator => v1::MoveCause::Operator,
        Cause::Owner => v1::MoveCause::Owner,
        Cause::Prefetch => v1::MoveCause::Prefetch,
        Cause::Speculation => v1::MoveCause::Speculation,
    }
}

fn prefetch_end(end: PrefetchEnd) -> v1::prefetch_event::End {
    use v1::prefetch_event::End;
    match end {
        PrefetchEnd::Ready => End::Ready,
        PrefetchEnd::Late => End::Late,
        PrefetchEnd::Dropped => End::Dropped,
        PrefetchEnd::Cancelled => End::Cancelled,
        PrefetchEnd::Failed => End::Failed,
        PrefetchEnd::Wasted => End::Wasted,
    }
}

pub(crate) fn deferral(why: Deferral) -> v1::PrefetchDeferral {
    match why {
        Deferral::Demand => v1::PrefetchDeferral::Demand,
        Deferral::Behind => v1::PrefetchDeferral::Behind,
        Deferral::Link => v1::PrefetchDeferral::Link,
        Deferral::Room => v1::PrefetchDeferral::Room,
        Deferral::RoomOnItsWay => v1::PrefetchDeferral::RoomOnItsWay,
        Deferral::Moving => v1::PrefetchDeferral::Moving,
        Deferral::Pressure => v1::PrefetchDeferral::Pressure,
    }
}

pub(crate) fn tenant_class(class: TenantClass) -> v1::TenantClass {
    match class {
        TenantClass::Background => v1::TenantClass::Background,
        TenantClass::Utility => v1::TenantClass::Utility,
        TenantClass::Initiated => v1::TenantClass::Initiated,
        TenantClass::Interactive => v1::TenantClass::Interactive,
    }
}

pub(crate) fn advice_permission(advice: AdvicePermission) -> v1::AdvicePermission {
    match advice {
        AdvicePermission::Allowed => v1::AdvicePermission::Allowed,
        AdvicePermission::Forbidden => v1::AdvicePermission::Forbidden,
    }
}

pub(crate) fn standing_source(source: StandingSource) -> v1::StandingSource {
    match source {
        StandingSource::Default => v1::StandingSource::Default,
        StandingSource::Configuration => v1::StandingSource::Configuration,
        StandingSource::Operator => v1::StandingSource::Operator,
    }
}

pub(crate) fn level(pressure: Pressure) -> v1::PressureLevel {
    match pressure {
        Pressure::Normal => v1::PressureLevel::Normal,
        Pressure::Elevated => v1::PressureLevel::Elevated,
        Pressure::High => v1::PressureLevel::High,
        Pressure::Critical => v1::PressureLevel::Critical,
    }
}

/// Cuts a text, with a mark where it was cut. The rest is not even formatted: a client may have chosen it to be long,
/// and the reactor waits.
fn cut(text: impl Display) -> String {
    let mut short = CutText(String::new());
    if write!(short, "{text}").is_err() {
        short.0.push('…');
    }
    short.0
}

struct CutText(String);

impl fmt::Write for CutText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = TEXT_BYTES_MAX.saturating_sub(self.0.len());
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        let end = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        self.0.push_str(&text[..end]);
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let exact = "x".repeat(TEXT_BYTES_MAX);
        assert_eq!(cut(&exact), exact);
        assert_eq!(cut(format!("a{}", "ä".repeat(200))), format!("a{}…", "ä".repeat(127)));
    }

    #[test]
    fn a_refusal_of_megabytes_is_a_short_event() {
        let name = "x".repeat(4 << 20);
        let refusal = Refusal::NameInvalid { field: "name", name };
        let event = refused(&Caller::Operator { uid: 0 }, "SetQuota", &refusal);
        assert!(event.message.len() < 300 && event.metadata["name"].len() < 300);
        assert_eq!((event.reason.as_str(), event.operator_uid), ("NAME_INVALID", Some(0)));
    }
}
