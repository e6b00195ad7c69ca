//! Converts the core's views to messages.

use std::time::{Duration, SystemTime};

use broker_core::{
    AdviceView, Adviser, AllocationState, AllocationView, Backing, ChannelId, DeviceView, Kind, Lifetime,
    ManagedView, MapState, MapperView, MemoryClass, OwnQuotaView, PartMove, PartNeed, PartRevocation,
    PartView, Pattern, PlacedBy, Placement, PlacementSum, QuotaView, Refusal, Released, SessionState,
    SessionView, Slot, Speculation, Tier, TierView, Time,
};
use prost_types::Timestamp;
use vramd_proto::v1;
use vramd_types::{AllocationId, PartIndex, SessionId};

use crate::{
    events::{level, move_cause, tier},
    grpc::status,
};

/// The reader of a message. Operators see which sessions map a part; clients see no session but their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::grpc) enum For {
    Clients,
    Operators,
}

pub(in crate::grpc) fn allocation(view: AllocationView, reader: For) -> v1::Allocation {
    v1::Allocation {
        allocation_id: view.id.shown(),
        name: view.name,
        tenant: view.tenant,
        device: view.device,
        kind: kind(view.kind).into(),
        lifetime: lifetime(view.lifetime).into(),
        state: state(view.state).into(),
        size_bytes: view.size.get(),
        charged_bytes: view.charged.get(),
        resident_bytes: view.resident.get(),
        digest: view.digest.map_or_else(String::new, digest),
        readers: view.readers,
        owner_session_id: view.owner.map_or(0, |owner| owner.shown()),
        parts: view.parts.into_iter().map(|it| part(it, reader, view.as_of)).collect(),
        mapper_count: count(view.mapper_count),
        unreturned_bytes: view.unreturned.get(),
        host_bytes: view.in_host.get(),
        disk_bytes: view.on_disk.get(),
        discardable: view.discardable,
        accessed_by_device: view.accessed_by_device,
        advised_parts: view.advice.iter().map(|advised| advised_parts(*advised, view.as_of)).collect(),
        speculation: speculation(view.speculation),
        managed: view.managed.map(managed_place),
        file: view.file.unwrap_or_default(),
        file_bytes: view.in_file.get(),
    }
}

/// Converts an allocation for operators, with the use that each session makes of its parts. `is_pinned` reads a pin
/// word; `None` if it cannot be read.
pub(in crate::grpc) fn allocation_in_use(
    view: AllocationView,
    is_pinned: impl Fn(ChannelId, Slot) -> Option<bool>,
) -> v1::Allocation {
    let usage = |mapper: &MapperView| match mapper.word {
        _ if !mapper.state.is_mapper() => v1::MappingUse::Unspecified,
        None => v1::MappingUse::Standing,
        Some((channel, slot)) => match is_pinned(channel, slot) {
            Some(true) => v1::MappingUse::Pinned,
            Some(false) => v1::MappingUse::Idle,
            None => v1::MappingUse::Unspecified,
        },
    };
    let usages: Vec<_> = view.parts.iter().flat_map(|part| &part.mappers).map(usage).collect();
    let mut allocation = allocation(view, For::Operators);
    for (mapper, usage) in allocation.parts.iter_mut().flat_map(|part| &mut part.mappers).zip(usages) {
        mapper.usage = usage.into();
    }
    allocation
}

fn managed_place(view: ManagedView) -> v1::ManagedPlace {
    let shown = |place: Option<Tier>| place.map_or(v1::Tier::Unspecified, tier).into();
    v1::ManagedPlace { ordered: shown(view.ordered), under_way: shown(view.under_way) }
}

fn speculation(view: Speculation) -> Option<v1::Speculation> {
    let Speculation { useful, wasted, is_off } = view;
    let is_known = view != Speculation::default();
    is_known.then(|| v1::Speculation { useful_bytes: useful.get(), wasted_bytes: wasted.get(), off: is_off })
}

fn placement(view: Placement, now: Time) -> v1::Placement {
    let Placement { by, at, sum } = view;
    let (kind, cause, reason) = match by {
        PlacedBy::Fetched(cause) => (v1::PlacementKind::Fetched, move_cause(cause), None),
        PlacedBy::Left(cause, reason) => (v1::PlacementKind::Left, move_cause(cause), reason),
        PlacedBy::ReadInPlace => (v1::PlacementKind::ReadInPlace, v1::MoveCause::Unspecified, None),
    };
    v1::Placement {
        kind: kind.into(),
        cause: cause.into(),
        eviction_reason: reason.map(|reason| reason.name().to_owned()).unwrap_or_default(),
        age_ms: now.since(at).as_millis().try_into().unwrap_or(u64::MAX),
        sum: sum.map(placement_sum),
    }
}

fn placement_sum(sum: PlacementSum) -> v1::PlacementSum {
    let micros = |time: Duration| time.as_micros().try_into().unwrap_or(u64::MAX);
    v1::PlacementSum {
        benefit_us: micros(sum.benefit),
        cost_us: micros(sum.cost),
        factor_percent: sum.factor,
        expected_uses_percent: sum.expected_uses,
    }
}

fn advised_parts(view: AdviceView, now: Time) -> v1::AdvisedParts {
    let AdviceView { parts: span, advice, by, counts } = view;
    v1::AdvisedParts {
        parts: Some(v1::PartSpan { first_index: span.first.0, count: span.count }),
        not_needed: advice.need == PartNeed::Unneeded,
        needed_within_ms: match advice.need {
            PartNeed::Soon { at, .. } => Some(at.since(now).as_millis().try_into().unwrap_or(u64::MAX)),
            PartNeed::Unneeded | PartNeed::Unknown => None,
        },
        location: advice.location.map_or(v1::Tier::Unspecified, tier).into(),
        read_mostly: advice.is_read_mostly,
        pattern: match advice.pattern {
            None => v1::AccessPattern::Unspecified,
            Some(Pattern::Sequential) => v1::AccessPattern::Sequential,
            Some(Pattern::Strided) => v1::AccessPattern::Strided,
            Some(Pattern::Window) => v1::AccessPattern::Window,
            Some(Pattern::Loop) => v1::AccessPattern::Loop,
            Some(Pattern::Random) => v1::AccessPattern::Random,
            Some(Pattern::Sparse) => v1::AccessPattern::Sparse,
        }
        .into(),
        importance_percent: advice.importance.map(u32::from),
        memory_class: match advice.class {
            None => v1::MemoryClass::Unspecified,
            Some(MemoryClass::Scratch) => v1::MemoryClass::Scratch,
            Some(MemoryClass::Weights) => v1::MemoryClass::Weights,
            Some(MemoryClass::Activations) => v1::MemoryClass::Activations,
            Some(MemoryClass::Cache) => v1::MemoryClass::Cache,
        }
        .into(),
        source: match by {
            Adviser::Owner => v1::AdviceSource::Owner,
            Adviser::Operator => v1::AdviceSource::Operator,
        }
        .into(),
        without_effect: !counts,
    }
}

fn part(view: PartView, reader: For, now: Time) -> v1::Part {
    let shown: &[MapperView] = match reader {
        For::Clients => &[],
        For::Operators => &view.mappers,
    };
    let holding = shown.iter().filter(|mapper| mapper.state.is_mapper());
    let mapper = |mapper: &MapperView| v1::Mapper {
        session_id: mapper.session.shown(),
        state: mapping_state(mapper.state).into(),
        usage: v1::MappingUse::Unspecified.into(),
    };
    v1::Part {
        index: view.index.0,
        offset_bytes: view.offset.get(),
        size_bytes: view.size.get(),
        tier: if view.dropped { v1::Tier::Unspecified } else { tier(view.tier) }.into(),
        mapper_session_ids: holding.map(|mapper| mapper.session.shown()).collect(),
        extent_state: view.backing.map_or(v1::ExtentState::Unspecified, extent_state).into(),
        mappers: shown.iter().map(mapper).collect(),
        moves_to: view.moves_to.map_or(v1::Tier::Unspecified, tier).into(),
        held: view.operator_hold,
        placement: view.placement.map(|it| placement(it, now)),
    }
}

pub(in crate::grpc) fn revocation((index, outcome): (PartIndex, PartRevocation)) -> v1::PartRevocation {
    use v1::RevocationOutcome as Wire;
    let (outcome, by) = match outcome {
        PartRevocation::Revoked => (Wire::Revoked, vec![]),
        PartRevocation::Pinned { by } => (Wire::Pinned, by),
        PartRevocation::Silent { by } => (Wire::Silent, by),
        PartRevocation::Standing { by } => (Wire::Standing, by),
    };
    v1::PartRevocation {
        part_index: index.0,
        outcome: outcome.into(),
        session_ids: by.iter().map(|session| session.shown()).collect(),
    }
}

pub(in crate::grpc) fn part_move((index, outcome): (PartIndex, PartMove)) -> v1::PartMove {
    use v1::MoveOutcome as Wire;
    let outcome_alone = |outcome: Wire, by: &[SessionId]| v1::PartMove {
        part_index: index.0,
        outcome: outcome.into(),
        session_ids: by.iter().map(|session| session.shown()).collect(),
        ..Default::default()
    };
    match outcome {
        PartMove::Moved => outcome_alone(Wire::Moved, &[]),
        PartMove::Pinned { by } => outcome_alone(Wire::Pinned, &by),
        PartMove::Silent { by } => outcome_alone(Wire::Silent, &by),
        PartMove::Standing { by } => outcome_alone(Wire::Standing, &by),
        PartMove::Wanted => outcome_alone(Wire::Wanted, &[]),
        PartMove::Held => outcome_alone(Wire::Held, &[]),
        PartMove::Freed => outcome_alone(Wire::Freed, &[]),
        PartMove::Refused { refusal } => {
            v1::PartMove { error: Some(status::item_refused(&refusal)), ..outcome_alone(Wire::Refused, &[]) }
        }
        PartMove::Failed { problem } => v1::PartMove { problem, ..outcome_alone(Wire::Failed, &[]) },
    }
}

/// Formats a digest as `blake3:` and its digits.
fn digest(digest: [u8; 32]) -> String {
    format!("blake3:{}", blake3::Hash::from_bytes(digest).to_hex())
}

pub(in crate::grpc) fn released(id: AllocationId, outcome: Result<Released, Refusal>) -> v1::ReleaseResult {
    let allocation_id = id.shown();
    match outcome {
        Ok(released) => v1::ReleaseResult {
            allocation_id,
            error: None,
            still_charged_bytes: released.still_charged.get(),
            mapper_count: count(released.mappers),
        },
        Err(refusal) => v1::ReleaseResult {
            allocation_id,
            error: Some(status::item_refused(&refusal)),
            ..Default::default()
        },
    }
}

pub(in crate::grpc) fn quota(view: QuotaView) -> v1::Quota {
    let in_force = view.in_force.unwrap_or_default();
    v1::Quota {
        tenant: view.tenant,
        device: view.device,
        tier: tier(view.tier).into(),
        guarantee: view.guarantee.to_string(),
        limit: view.limit.to_string(),
        guarantee_bytes: in_force.guarantee.get(),
        limit_bytes: in_force.limit.get(),
        held_bytes: in_force.charged.get(),
        reserved_bytes: in_force.reserved.get(),
        unreturned_bytes: in_force.unreturned.get(),
        default_quota: view.default_quota,
        device_absent: view.device_absent,
        cached_bytes: in_force.cached.get(),
        managed_bytes: in_force.managed.charged.get(),
        managed_on_device_bytes: in_force.managed.on_device.get(),
        managed_on_host_bytes: in_force.managed.on_host.get(),
    }
}

pub(in crate::grpc) fn own_quota(view: OwnQuotaView) -> v1::OwnQuota {
    v1::OwnQuota {
        device: view.uuid,
        device_index: view.device.0.into(),
        tier: tier(view.tier).into(),
        guarantee_bytes: view.in_force.guarantee.get(),
        limit_bytes: view.in_force.limit.get(),
        used_bytes: view.in_force.charged.get(),
        cached_bytes: view.in_force.cached.get(),
        managed_bytes: view.in_force.managed.charged.get(),
        managed_on_device_bytes: view.in_force.managed.on_device.get(),
        managed_on_host_bytes: view.in_force.managed.on_host.get(),
        unreturned_bytes: view.in_force.unreturned.get(),
        free_bytes: view.free.get(),
        capacity_bytes: view.capacity.get(),
        default_quota: view.default_quota,
    }
}

/// Converts a session. `started_at` is the wall clock's time at the start of the daemon.
pub(in crate::grpc) fn session(view: SessionView, started_at: SystemTime) -> v1::Session {
    v1::Session {
        session_id: view.id.shown(),
        tenant: view.tenant,
        state: session_state(view.state).into(),
        pid: view.pid,
        uid: view.uid,
        client_name: view.client_name,
        allocation_count: count(view.allocations),
        mapped_bytes: view.mapped.get(),
        fds_in_flight: count(view.fds_in_flight),
        opened_at: time_of_day(view.opened, started_at),
        silent_reason: view.silent_reason.unwrap_or_default(),
    }
}

pub(in crate::grpc) fn device(view: DeviceView) -> v1::DeviceStatus {
    let below =
        |view: Option<TierView>| view.map_or(v1::PressureLevel::Unspecified, |view| level(view.pressure));
    v1::DeviceStatus {
        device: Some(v1::Device {
            uuid: view.uuid,
            index: view.index.0.into(),
            name: view.name,
            ..Default::default()
        }),
        total_bytes: view.total.get(),
        capacity_bytes: view.capacity.get(),
        held_bytes: view.charged.get(),
        unreturned_bytes: view.unreturned.get(),
        unbrokered_bytes: view.unbrokered.get(),
        context_reserve_bytes: view.contexts.get(),
        committed_bytes: view.committed.get(),
        shortfall_bytes: view.shortfall.get(),
        cached_bytes: view.cached.get(),
        managed_bytes: view.managed.charged.get(),
        managed_on_device_bytes: view.managed.on_device.get(),
        managed_on_host_bytes: view.managed.on_host.get(),
        host_capacity_bytes: view.host.map_or(0, |host| host.capacity.get()),
        host_held_bytes: view.host.map_or(0, |host| host.charged.get()),
        disk_capacity_bytes: view.disk.map_or(0, |disk| disk.capacity.get()),
        disk_held_bytes: view.disk.map_or(0, |disk| disk.charged.get()),
        pressure: level(view.pressure).into(),
        host_pressure: below(view.host).into(),
        disk_pressure: below(view.disk).into(),
        moving_in_bytes: view.moving_in.get(),
        moving_out_bytes: view.moving_out.get(),
        awaited_part_count: count(view.parts_waiting),
    }
}

/// Converts a time of the broker's clock to the time of day.
pub(super) fn time_of_day(time: Time, started_at: SystemTime) -> Option<Timestamp> {
    started_at.checked_add(Duration::from_micros(time.as_micros())).map(Into::into)
}

/// Converts a count. A count that does not fit becomes the maximum.
pub(in crate::grpc) fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn kind(kind: Kind) -> v1::AllocationKind {
    match kind {
        Kind::Movable => v1::AllocationKind::Movable,
        Kind::Fixed => v1::AllocationKind::Fixed,
        Kind::Managed => v1::AllocationKind::Managed,
    }
}

fn lifetime(lifetime: Lifetime) -> v1::Lifetime {
    match lifetime {
        Lifetime::Session => v1::Lifetime::Session,
        Lifetime::Persistent => v1::Lifetime::Persistent,
    }
}

fn extent_state(backing: Backing) -> v1::ExtentState {
    match backing {
        Backing::Creating => v1::ExtentState::Creating,
        Backing::Live => v1::ExtentState::Live,
        Backing::Releasing => v1::ExtentState::Releasing,
        Backing::Unreturned => v1::ExtentState::Unreturned,
        Backing::Gone => v1::ExtentState::Gone,
    }
}

fn mapping_state(state: MapState) -> v1::MappingState {
    match state {
        MapState::Queued => v1::MappingState::Queued,
        MapState::Offered => v1::MappingState::Offered,
        MapState::OfferedRevoked => v1::MappingState::OfferedRevoked,
        MapState::Mapped => v1::MappingState::Mapped,
        MapState::Revoking => v1::MappingState::Revoking,
        MapState::Evicting => v1::MappingState::Evicting,
        MapState::Away => v1::MappingState::Away,
    }
}

fn state(state: AllocationState) -> v1::AllocationState {
    match state {
        AllocationState::Creating => v1::AllocationState::Creating,
        AllocationState::Open => v1::AllocationState::Open,
        AllocationState::Unmapping | AllocationState::Digesting => v1::AllocationState::Sealing,
        AllocationState::Sealed => v1::AllocationState::Sealed,
        AllocationState::Freeing => v1::AllocationState::Freeing,
    }
}

pub(in crate::grpc) fn session_state(state: SessionState) -> v1::SessionState {
    match state {
        SessionState::Live => v1::SessionState::Live,
        SessionState::Silent => v1::SessionState::Silent,
        SessionState::Gone => v1::SessionState::Gone,
    }
}

#[cfg(test)]
mod tests {
    use broker_core::{ManagedBytes, Pressure};
    use vramd_types::{Bytes, DeviceIndex};

    use super::*;

    fn sealed() -> AllocationView {
        AllocationView {
            id: AllocationId::from_shown(9),
            name: "me/llama".to_owned(),
            tenant: "me".to_owned(),
            device: "GPU-0".to_owned(),
            kind: Kind::Movable,
            lifetime: Lifetime::Persistent,
            discardable: false,
            accessed_by_device: false,
            advice: Vec::new(),
            speculation: Speculation::default(),
            as_of: Time::START,
            state: AllocationState::Sealed,
            size: Bytes::new(5),
            charged: Bytes::mib(2),
            resident: Bytes::mib(2),
            in_host: Bytes::ZERO,
            on_disk: Bytes::ZERO,
            in_file: Bytes::ZERO,
            file: None,
            unreturned: Bytes::ZERO,
            managed: None,
            digest: Some([0xab; 32]),
            readers: vec!["*".to_owned()],
            owner: None,
            parts: vec![PartView {
                index: PartIndex(0),
                offset: Bytes::ZERO,
                size: Bytes::mib(2),
                tier: Tier::Device,
                moves_to: Some(Tier::Host),
                operator_hold: false,
                dropped: false,
                placement: None,
                backing: Some(Backing::Live),
                mappers: vec![
                    MapperView {
                        session: SessionId::from_shown(4),
                        state: MapState::Revoking,
                        word: Some((ChannelId(1), Slot(2))),
                    },
                    MapperView { session: SessionId::from_shown(5), state: MapState::Queued, word: None },
                ],
            }],
            mapper_count: 1,
        }
    }

    #[test]
    fn clients_see_no_other_session() {
        assert_eq!(allocation(sealed(), For::Clients).parts[0].mapper_session_ids, [0; 0]);
        assert_eq!(allocation(sealed(), For::Operators).parts[0].mapper_session_ids, [4]);
        assert!(allocation(sealed(), For::Clients).parts[0].mappers.is_empty());
        assert_eq!(allocation(sealed(), For::Clients).mapper_count, 1);
    }

    #[test]
    fn operators_see_the_state_of_each_mapping() {
        let part = &allocation(sealed(), For::Operators).parts[0];
        let states: Vec<_> = part.mappers.iter().map(|mapper| (mapper.session_id, mapper.state())).collect();
        assert_eq!(states, [(4, v1::MappingState::Revoking), (5, v1::MappingState::Queued)]);
        assert_eq!(part.extent_state(), v1::ExtentState::Live);
        assert_eq!((part.tier(), part.moves_to()), (v1::Tier::Device, v1::Tier::Host));
    }

    #[test]
    fn operators_see_who_pins_a_part() {
        let use_of = |pinned| allocation_in_use(sealed(), |_, _| pinned).parts[0].mappers[0].usage();
        assert_eq!(use_of(Some(true)), v1::MappingUse::Pinned);
        assert_eq!(use_of(Some(false)), v1::MappingUse::Idle);
        assert_eq!(use_of(None), v1::MappingUse::Unspecified);
        let queued = &allocation_in_use(sealed(), |_, _| None).parts[0].mappers[1];
        assert_eq!(queued.usage(), v1::MappingUse::Unspecified, "it maps nothing yet");
    }

    #[test]
    fn a_tier_that_is_not_there_has_no_pressure() {
        let tier = TierView {
            total: Bytes::mib(4),
            capacity: Bytes::mib(4),
            charged: Bytes::mib(4),
            unreturned: Bytes::ZERO,
            committed: Bytes::mib(4),
            shortfall: Bytes::ZERO,
            pressure: Pressure::Critical,
            batch_factor: 800,
            full_in: Some(Duration::from_secs(2)),
        };
        let view = DeviceView {
            index: DeviceIndex(0),
            uuid: "GPU-0".to_owned(),
            name: "a device".to_owned(),
            total: Bytes::mib(4),
            capacity: Bytes::mib(4),
            charged: Bytes::ZERO,
            unreturned: Bytes::ZERO,
            cached: Bytes::ZERO,
            cached_smaller: Bytes::ZERO,
            cached_larger: Bytes::ZERO,
            managed: ManagedBytes::default(),
            host: Some(tier),
            disk: None,
            moving_in: Bytes::ZERO,
            moving_out: Bytes::ZERO,
            parts_waiting: 0,
            unbrokered: Bytes::ZERO,
            contexts: Bytes::ZERO,
            committed: Bytes::ZERO,
            shortfall: Bytes::ZERO,
            pressure: Pressure::Normal,
            batch_factor: 800,
            full_in: Some(Duration::from_secs(2)),
        };
        let status = device(view);
        let levels = [status.pressure(), status.host_pressure(), status.disk_pressure()];
        use v1::PressureLevel::{Critical, Normal, Unspecified};
        assert_eq!(levels, [Normal, Critical, Unspecified]);
    }

    #[test]
    fn a_digest_names_its_algorithm() {
        assert_eq!(allocation(sealed(), For::Clients).digest, format!("blake3:{}", "ab".repeat(32)));
        let open = AllocationView { digest: None, ..sealed() };
        assert_eq!(allocation(open, For::Clients).digest, "");
    }

    #[test]
    fn a_refused_item_has_the_reason_of_a_status() {
        let id = AllocationId::from_shown(9);
        let result = released(id, Err(Refusal::NotOwner { allocation: id }));
        assert_eq!(result.allocation_id, 9);
        assert_eq!(result.error.unwrap().reason, "NOT_OWNER");
    }
}
