//! `vramctl alloc show`, and allocations as rows, as a sheet of facts and as JSON.

use std::time::Duration;

use serde_json::{Value, json};
use vramd_client::{AllocationId, SessionId, admin::AdminClient};
use vramd_proto::v1;

use super::Target;
use crate::{
    commands::{
        moves::cause_name,
        names::{session_names, tier_name},
    },
    output::{
        Output,
        failure::Failure,
        table::{Column, table},
        text::{count_or_dash, facts, size, size_or_dash, text_or_dash},
    },
};

pub(crate) fn run(target: Target, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    show(&fetch(target, admin)?, output)
}

/// Shows one allocation with its parts.
pub(super) fn show(allocation: &v1::Allocation, output: &Output) -> Result<(), Failure> {
    output.show(|| sheet(allocation), json!({ "allocation": to_json(allocation) }))
}

/// Fetches one allocation with its parts.
pub(crate) fn fetch(target: Target, admin: &AdminClient) -> Result<v1::Allocation, Failure> {
    use v1::show_allocation_request::Target as Wire;
    let target = Some(match target {
        Target::Id(id) => Wire::AllocationId(id.get()),
        Target::Name(name) => Wire::Name(name),
    });
    Ok(admin.show_allocation(v1::ShowAllocationRequest { target })?)
}

/// One line for each allocation.
pub(crate) fn rows(allocations: &[v1::Allocation]) -> String {
    let columns = [
        Column::text("TENANT").key(),
        Column::text("ALLOCATION").key(),
        Column::text("NAME"),
        Column::text("STATE"),
        Column::text("TIER"),
        Column::number("SIZE").always(),
        Column::number("CHARGED"),
        Column::number("RESIDENT"),
        Column::number("UNRETURNED"),
        Column::number("MAPPERS"),
    ];
    table(
        &columns,
        allocations.iter().map(|allocation| {
            vec![
                allocation.tenant.clone(),
                AllocationId::from_raw(allocation.allocation_id).to_string(),
                text_or_dash(&allocation.name),
                state_name(allocation.state()).to_owned(),
                tiers(allocation),
                size(allocation.size_bytes),
                size_or_dash(allocation.charged_bytes),
                size_or_dash(allocation.resident_bytes),
                size_or_dash(allocation.unreturned_bytes),
                count_or_dash(allocation.mapper_count.into()),
            ]
        }),
    )
}

/// The tiers that have any of its bytes. An allocation of a list comes without its parts.
pub(crate) fn tiers(allocation: &v1::Allocation) -> String {
    let bytes = [
        (v1::Tier::Device, allocation.resident_bytes),
        (v1::Tier::Host, allocation.host_bytes),
        (v1::Tier::Disk, allocation.disk_bytes),
    ];
    let tiers = bytes.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(tier, _)| tier_name(tier));
    let tiers = tiers.chain((allocation.file_bytes > 0).then_some("file"));
    text_or_dash(&tiers.collect::<Vec<_>>().join("+"))
}

fn sheet(allocation: &v1::Allocation) -> String {
    let id = AllocationId::from_raw(allocation.allocation_id);
    let owner = owner(allocation).map_or_else(|| "its tenant".to_owned(), |session| session.to_string());
    let bytes = |fits: &dyn Fn(&v1::Part) -> bool| {
        let on_device = allocation.parts.iter().filter(|part| part.tier() == v1::Tier::Device);
        size_or_dash(on_device.filter(|part| fits(part)).map(|part| part.size_bytes).sum())
    };
    let facts = facts(&[
        ("allocation", id.to_string()),
        ("name", text_or_dash(&allocation.name)),
        ("tenant", allocation.tenant.clone()),
        ("device", allocation.device.clone()),
        ("state", state_name(allocation.state()).to_owned()),
        ("lifetime", lifetime(allocation)),
        ("owner", owner.clone()),
        ("size", format!("{} ({} bytes)", size(allocation.size_bytes), allocation.size_bytes)),
        ("charged", size(allocation.charged_bytes)),
        ("resident", size(allocation.resident_bytes)),
        ("ordered", ordered(allocation)),
        ("held", bytes(&|part| part.held)),
        ("pinned", bytes(&is_pinned)),
        ("idle", bytes(&|part| !part.held && !is_pinned(part))),
        ("in-host", size_or_dash(allocation.host_bytes)),
        ("on-disk", size_or_dash(allocation.disk_bytes)),
        ("in-file", size_or_dash(allocation.file_bytes)),
        ("file", text_or_dash(&allocation.file)),
        ("unreturned", size_or_dash(allocation.unreturned_bytes)),
        ("digest", text_or_dash(&allocation.digest)),
        ("readers", text_or_dash(&allocation.readers.join(" "))),
        ("advice", text_or_dash(&advice(allocation, &owner))),
        ("speculation", speculation(allocation)),
    ]);
    let parts = table(
        &[
            Column::number("PART").key(),
            Column::number("OFFSET").always(),
            Column::number("SIZE"),
            Column::text("TIER"),
            Column::text("EXTENT"),
            Column::text("USE"),
            Column::text("MAPPERS"),
            Column::text("WHY"),
        ],
        allocation.parts.iter().map(|part| {
            vec![
                part.index.to_string(),
                part.offset_bytes.to_string(),
                size(part.size_bytes),
                tier_text(part),
                extent_name(part.extent_state()).to_owned(),
                usage(part),
                mappers(part),
                why(part, allocation.accessed_by_device),
            ]
        }),
    );
    format!("{facts}\n\n{parts}")
}

/// Where managed memory was ordered. The daemon knows no more of it.
fn ordered(allocation: &v1::Allocation) -> String {
    let Some(place) = &allocation.managed else { return "-".to_owned() };
    let place_name = |tier| if tier == v1::Tier::Unspecified { "nowhere" } else { tier_name(tier) };
    let ordered = place_name(place.ordered());
    match place.under_way() {
        v1::Tier::Unspecified => ordered.to_owned(),
        to => format!("{ordered}, on its way to {}", tier_name(to)),
    }
}

fn managed_json(place: &v1::ManagedPlace) -> Value {
    let given = |tier| Some(tier).filter(|tier| *tier != v1::Tier::Unspecified).map(tier_name);
    json!({ "ordered": given(place.ordered()), "under_way": given(place.under_way()) })
}

/// How far it was right to bring parts unasked.
fn speculation(allocation: &v1::Allocation) -> String {
    let Some(v1::Speculation { useful_bytes, wasted_bytes, off }) = allocation.speculation else {
        return "-".to_owned();
    };
    let ended = if off { "; ended" } else { "" };
    format!("{} used, {} wasted of late{ended}", size(useful_bytes), size(wasted_bytes))
}

/// Why a part lies where it does.
fn why(part: &v1::Part, accessed_in_place: bool) -> String {
    if accessed_in_place && part.tier() == v1::Tier::Host {
        return "accessed in place, as advised".to_owned();
    }
    let Some(placement) = part.placement.as_ref() else { return "created there".to_owned() };
    let cause = cause_name(placement.cause());
    let how = match placement.kind() {
        v1::PlacementKind::Unspecified => "unknown".to_owned(),
        v1::PlacementKind::Fetched => format!("fetched for {cause}"),
        v1::PlacementKind::Left if placement.eviction_reason.is_empty() => format!("left for {cause}"),
        v1::PlacementKind::Left => format!("left for {cause} by {}", placement.eviction_reason),
        v1::PlacementKind::ReadInPlace => "read in place".to_owned(),
    };
    let sum = placement.sum.as_ref().map(|sum| {
        let v1::PlacementSum { benefit_us, cost_us, factor_percent, expected_uses_percent } = sum;
        format!(
            "; benefit {benefit_us} us of {} uses, cost {} x {cost_us} us",
            hundredths(*expected_uses_percent),
            hundredths(*factor_percent)
        )
    });
    let ago = Duration::from_millis(placement.age_ms);
    format!("{how} {ago:.0?} ago{}", sum.unwrap_or_default())
}

fn hundredths(number: u32) -> String {
    format!("{}.{:02}", number / 100, number % 100)
}

fn placement_json(placement: &v1::Placement) -> Value {
    json!({
        "kind": match placement.kind() {
            v1::PlacementKind::Unspecified => "unknown",
            v1::PlacementKind::Fetched => "fetched",
            v1::PlacementKind::Left => "left",
            v1::PlacementKind::ReadInPlace => "read_in_place",
        },
        "cause": cause_name(placement.cause()),
        "eviction_reason": placement.eviction_reason,
        "age_ms": placement.age_ms,
        "sum": placement.sum.as_ref().map(|sum| json!({
            "benefit_us": sum.benefit_us,
            "cost_us": sum.cost_us,
            "factor_percent": sum.factor_percent,
            "expected_uses_percent": sum.expected_uses_percent,
        })),
    })
}

/// Which parts are advised to leave earlier or later than others, and by whom.
fn advice(allocation: &v1::Allocation, owner: &str) -> String {
    let spans = allocation.advised_parts.iter().map(|advised| {
        let span = advised.parts.unwrap_or_default();
        let last = span.first_index.saturating_add(span.count).saturating_sub(1);
        let parts = match span.count {
            1 => format!("part {last}"),
            _ => format!("parts {} to {last}", span.first_index),
        };
        let said = [
            advised.not_needed.then(|| "not needed".to_owned()),
            advised.needed_within_ms.map(|ms| format!("needed within {ms} ms")),
            preferred(advised).map(|tier| format!("preferred on {tier}")),
            advised.importance_percent.map(|percent| format!("importance {percent}%")),
            class_name(advised.memory_class()).map(str::to_owned),
            advised.read_mostly.then(|| "read mostly".to_owned()),
            pattern_name(advised.pattern()).map(str::to_owned),
        ];
        let said = said.into_iter().flatten().collect::<Vec<_>>();
        let said = if said.is_empty() { "no advice".to_owned() } else { said.join(", ") };
        let by = match advised.source() {
            v1::AdviceSource::Operator => "an operator",
            v1::AdviceSource::Owner | v1::AdviceSource::Unspecified => owner,
        };
        let effect = if advised.without_effect { ", without effect" } else { "" };
        format!("{parts}: {said} (by {by}{effect})")
    });
    spans.collect::<Vec<_>>().join("; ")
}

fn advised_json(advised: &v1::AdvisedParts) -> Value {
    let span = advised.parts.unwrap_or_default();
    json!({
        "first_index": span.first_index,
        "count": span.count,
        "not_needed": advised.not_needed,
        "importance_percent": advised.importance_percent,
        "memory_class": class_name(advised.memory_class()),
        "needed_within_ms": advised.needed_within_ms,
        "location": preferred(advised),
        "read_mostly": advised.read_mostly,
        "pattern": pattern_name(advised.pattern()),
        "source": match advised.source() {
            v1::AdviceSource::Operator => "operator",
            v1::AdviceSource::Owner | v1::AdviceSource::Unspecified => "owner",
        },
        "without_effect": advised.without_effect,
    })
}

fn preferred(advised: &v1::AdvisedParts) -> Option<&'static str> {
    Some(advised.location()).filter(|tier| *tier != v1::Tier::Unspecified).map(tier_name)
}

const fn pattern_name(pattern: v1::AccessPattern) -> Option<&'static str> {
    match pattern {
        v1::AccessPattern::Unspecified => None,
        v1::AccessPattern::Sequential => Some("sequential"),
        v1::AccessPattern::Strided => Some("strided"),
        v1::AccessPattern::Window => Some("window"),
        v1::AccessPattern::Loop => Some("loop"),
        v1::AccessPattern::Random => Some("random"),
        v1::AccessPattern::Sparse => Some("sparse"),
    }
}

const fn class_name(class: v1::MemoryClass) -> Option<&'static str> {
    match class {
        v1::MemoryClass::Unspecified => None,
        v1::MemoryClass::Scratch => Some("scratch"),
        v1::MemoryClass::Weights => Some("weights"),
        v1::MemoryClass::Activations => Some("activations"),
        v1::MemoryClass::Cache => Some("cache"),
    }
}

/// The part's tier, and the tier that it moves to.
fn tier_text(part: &v1::Part) -> String {
    let from = tier_of(part).unwrap_or("-");
    moves_to(part).map_or_else(|| from.to_owned(), |to| format!("{from}->{to}"))
}

/// Whether an operator holds the part, and the sessions that keep it; `idle` without either.
fn usage(part: &v1::Part) -> String {
    let by = |usage: v1::MappingUse| {
        let those = part.mappers.iter().filter(|mapper| mapper.usage() == usage);
        session_names(&those.map(|mapper| mapper.session_id).collect::<Vec<_>>()).join(" ")
    };
    let (pinned, standing) = (by(v1::MappingUse::Pinned), by(v1::MappingUse::Standing));
    let uses = [
        part.held.then(|| "held by an operator".to_owned()),
        (!pinned.is_empty()).then(|| format!("pinned by {pinned}")),
        (!standing.is_empty()).then(|| format!("kept by {standing}, without pins")),
    ];
    let uses: Vec<String> = uses.into_iter().flatten().collect();
    if uses.is_empty() { "idle".to_owned() } else { uses.join(", ") }
}

/// Whether a session pins the part, or keeps it mapped without pins.
fn is_pinned(part: &v1::Part) -> bool {
    let keeps =
        |mapper: &v1::Mapper| matches!(mapper.usage(), v1::MappingUse::Pinned | v1::MappingUse::Standing);
    part.mappers.iter().any(keeps)
}

/// The tier that has the part's bytes. `None` while none has, as of a dropped part.
fn tier_of(part: &v1::Part) -> Option<&'static str> {
    match part.tier() {
        v1::Tier::Unspecified => None,
        tier => Some(tier_name(tier)),
    }
}

fn moves_to(part: &v1::Part) -> Option<&'static str> {
    match part.moves_to() {
        v1::Tier::Unspecified => None,
        tier => Some(tier_name(tier)),
    }
}

/// Each session with the state of its mapping.
fn mappers(part: &v1::Part) -> String {
    let text = |mapper: &v1::Mapper| {
        format!("{} {}", SessionId::from_raw(mapper.session_id), mapping_name(mapper.state()))
    };
    text_or_dash(&part.mappers.iter().map(text).collect::<Vec<_>>().join(", "))
}

pub(crate) fn to_json(allocation: &v1::Allocation) -> Value {
    let parts: Vec<_> = allocation
        .parts
        .iter()
        .map(|part| {
            json!({
                "index": part.index,
                "offset_bytes": part.offset_bytes,
                "size_bytes": part.size_bytes,
                "tier": tier_of(part),
                "moves_to": moves_to(part),
                "held": part.held,
                "extent_state": extent_name(part.extent_state()),
                "mapper_session_ids": session_names(&part.mapper_session_ids),
                "mappers": part.mappers.iter().map(mapper_json).collect::<Vec<_>>(),
                "placement": part.placement.as_ref().map(placement_json),
            })
        })
        .collect();
    json!({
        "allocation_id": AllocationId::from_raw(allocation.allocation_id).to_string(),
        "name": allocation.name,
        "tenant": allocation.tenant,
        "device": allocation.device,
        "state": state_name(allocation.state()),
        "lifetime": lifetime_name(allocation.lifetime()),
        "discardable": allocation.discardable,
        "accessed_by_device": allocation.accessed_by_device,
        "advised_parts": allocation.advised_parts.iter().map(advised_json).collect::<Vec<_>>(),
        "managed": allocation.managed.as_ref().map(managed_json),
        "speculation": allocation.speculation.map(|it| json!({
            "useful_bytes": it.useful_bytes,
            "wasted_bytes": it.wasted_bytes,
            "off": it.off,
        })),
        "size_bytes": allocation.size_bytes,
        "charged_bytes": allocation.charged_bytes,
        "resident_bytes": allocation.resident_bytes,
        "unreturned_bytes": allocation.unreturned_bytes,
        "tier_bytes": {
            "device": allocation.resident_bytes,
            "host": allocation.host_bytes,
            "disk": allocation.disk_bytes,
        },
        "file": (!allocation.file.is_empty()).then_some(&allocation.file),
        "file_bytes": allocation.file_bytes,
        "digest": allocation.digest,
        "readers": allocation.readers,
        "owner_session_id": owner(allocation).map(|session| session.to_string()),
        "mapper_count": allocation.mapper_count,
        "parts": parts,
    })
}

fn mapper_json(mapper: &v1::Mapper) -> Value {
    json!({
        "session_id": SessionId::from_raw(mapper.session_id).to_string(),
        "state": mapping_name(mapper.state()),
        "use": match mapper.usage() {
            v1::MappingUse::Unspecified => None,
            v1::MappingUse::Pinned => Some("pinned"),
            v1::MappingUse::Idle => Some("idle"),
            v1::MappingUse::Standing => Some("standing"),
        },
    })
}

fn extent_name(state: v1::ExtentState) -> &'static str {
    match state {
        v1::ExtentState::Unspecified => "unknown",
        v1::ExtentState::Creating => "creating",
        v1::ExtentState::Live => "live",
        v1::ExtentState::Releasing => "releasing",
        v1::ExtentState::Unreturned => "unreturned",
        v1::ExtentState::Gone => "gone",
    }
}

fn mapping_name(state: v1::MappingState) -> &'static str {
    match state {
        v1::MappingState::Unspecified => "unknown",
        v1::MappingState::Queued => "queued",
        v1::MappingState::Offered => "offered",
        v1::MappingState::OfferedRevoked => "offered_revoked",
        v1::MappingState::Mapped => "mapped",
        v1::MappingState::Revoking => "revoking",
        v1::MappingState::Evicting => "evicting",
        v1::MappingState::Away => "away",
    }
}

pub(crate) fn state_name(state: v1::AllocationState) -> &'static str {
    match state {
        v1::AllocationState::Unspecified => "unknown",
        v1::AllocationState::Creating => "creating",
        v1::AllocationState::Open => "open",
        v1::AllocationState::Sealing => "sealing",
        v1::AllocationState::Sealed => "sealed",
        v1::AllocationState::Freeing => "freeing",
    }
}

fn lifetime(allocation: &v1::Allocation) -> String {
    let name = lifetime_name(allocation.lifetime());
    match (allocation.discardable, allocation.accessed_by_device) {
        (true, _) => format!("{name}, discardable"),
        (_, true) => format!("{name}, accessed in place"),
        _ => name.to_owned(),
    }
}

fn lifetime_name(lifetime: v1::Lifetime) -> &'static str {
    match lifetime {
        v1::Lifetime::Unspecified | v1::Lifetime::Session => "session",
        v1::Lifetime::Persistent => "persistent",
    }
}

pub(crate) fn owner(allocation: &v1::Allocation) -> Option<SessionId> {
    (allocation.owner_session_id != 0).then(|| SessionId::from_raw(allocation.owner_session_id))
}
