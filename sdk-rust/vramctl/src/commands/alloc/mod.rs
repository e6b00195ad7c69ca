//! `vramctl alloc …`

mod free;
mod operator_hold;
mod part_ranges;
mod relocate;
mod revoke;

use std::str::FromStr;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use vramd_client::{AllocationId, SessionId, admin::AdminClient};
use vramd_proto::v1;

use self::{part_ranges::Parts, revoke::Revoke};
use crate::{
    commands::quota::tier_name,
    output::{
        Output,
        failure::Failure,
        table::{facts, size, size_or_dash, table, text_or_dash},
    },
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows the allocations of all tenants.
    List(List),
    /// Shows one allocation with its parts and who maps them.
    Show { target: Target },
    /// Frees an allocation: its owner is to unmap it, and nobody can attach it any more.
    Free { target: Target },
    /// Takes an allocation out of the processes that map it. They keep it: their next pin maps it again.
    Revoke(Revoke),
    /// Moves what nobody pins out of its device, or from one tier below it to the other. The next pin brings it in again.
    Evict(Evict),
    /// Moves it to its device, if there is room.
    BringIn(Parts),
    /// Copies it to what it has in the host or on disk while it stays mapped: then it leaves its device without being copied, unless it is
    /// written first. What is pinned is left alone.
    WriteBack(Parts),
    /// Holds it on its device: it leaves for nobody until it is let go. What is in another tier stays there until it is pinned.
    Hold(Parts),
    /// Lets go what is held by hand.
    Unhold(Parts),
}

#[derive(Debug, Args)]
pub(crate) struct Evict {
    #[command(flatten)]
    parts: Parts,
    /// Where it is to lie then.
    #[arg(long, value_enum, default_value_t = Below::Host)]
    to: Below,
}

/// A tier below a device.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Below {
    Host,
    Disk,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Of this tenant alone.
    #[arg(default_value = "", hide_default_value = true)]
    tenant: String,
}

/// An id like `a-1099511627777`, or `tenant/name`.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Id(AllocationId),
    Name(String),
}

impl Below {
    const fn tier(self) -> v1::Tier {
        match self {
            Self::Host => v1::Tier::Host,
            Self::Disk => v1::Tier::Disk,
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Name(text.to_owned()));
        }
        text.parse().map(Self::Id).map_err(|error| format!("{error}, and no `tenant/name`"))
    }
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    match verb {
        Verb::List(list) => {
            let allocations = admin.allocations(&list.tenant)?;
            let fields = json!({ "allocations": allocations.iter().map(to_json).collect::<Vec<_>>() });
            output.show(|| rows(&allocations), fields)
        }
        Verb::Show { target } => {
            let allocation = show(target, admin)?;
            output.show(|| sheet(&allocation), json!({ "allocation": to_json(&allocation) }))
        }
        Verb::Free { target } => free::run(target, admin, output),
        Verb::Revoke(revoke) => revoke::run(revoke, admin, output),
        Verb::Evict(evict) => relocate::run(evict.parts, evict.to.tier(), admin, output),
        Verb::WriteBack(parts) => relocate::write_back(parts, admin, output),
        Verb::Hold(parts) => operator_hold::run(parts, true, admin, output),
        Verb::Unhold(parts) => operator_hold::run(parts, false, admin, output),
        Verb::BringIn(parts) => relocate::run(parts, v1::Tier::Device, admin, output),
    }
}

pub(crate) fn show(target: Target, admin: &AdminClient) -> Result<v1::Allocation, Failure> {
    use v1::show_allocation_request::Target as Wire;
    let target = Some(match target {
        Target::Id(id) => Wire::AllocationId(id.get()),
        Target::Name(name) => Wire::Name(name),
    });
    Ok(admin.show_allocation(v1::ShowAllocationRequest { target })?)
}

pub(crate) fn rows(allocations: &[v1::Allocation]) -> String {
    let columns = [
        "TENANT",
        "ALLOCATION",
        "NAME",
        "STATE",
        "TIER",
        ">SIZE",
        ">CHARGED",
        ">RESIDENT",
        ">UNRETURNED",
        ">MAPPERS",
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
                size(allocation.charged_bytes),
                size_or_dash(allocation.resident_bytes),
                size_or_dash(allocation.unreturned_bytes),
                allocation.mapper_count.to_string(),
            ]
        }),
    )
}

/// Where any of it lies. Lists come without parts.
fn tiers(allocation: &v1::Allocation) -> String {
    let lies = [
        (v1::Tier::Device, allocation.resident_bytes),
        (v1::Tier::Host, allocation.host_bytes),
        (v1::Tier::Disk, allocation.disk_bytes),
    ];
    let tiers = lies.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(tier, _)| tier_name(tier));
    let tiers = tiers.chain((allocation.file_bytes > 0).then_some("file"));
    text_or_dash(&tiers.collect::<Vec<_>>().join("+"))
}

fn sheet(allocation: &v1::Allocation) -> String {
    let id = AllocationId::from_raw(allocation.allocation_id);
    let owner = owner(allocation).map_or_else(|| "its tenant".to_owned(), |session| session.to_string());
    let facts = facts(&[
        ("allocation", id.to_string()),
        ("name", text_or_dash(&allocation.name)),
        ("tenant", allocation.tenant.clone()),
        ("device", allocation.device.clone()),
        ("state", state_name(allocation.state()).to_owned()),
        ("lifetime", lifetime(allocation)),
        ("owner", owner),
        ("size", format!("{} ({} bytes)", size(allocation.size_bytes), allocation.size_bytes)),
        ("charged", size(allocation.charged_bytes)),
        ("resident", size(allocation.resident_bytes)),
        ("in-host", size_or_dash(allocation.host_bytes)),
        ("on-disk", size_or_dash(allocation.disk_bytes)),
        ("in-file", size_or_dash(allocation.file_bytes)),
        ("file", text_or_dash(&allocation.file)),
        ("unreturned", size_or_dash(allocation.unreturned_bytes)),
        ("digest", text_or_dash(&allocation.digest)),
        ("readers", text_or_dash(&allocation.readers.join(" "))),
    ]);
    let parts = table(
        &[">PART", ">OFFSET", ">SIZE", "TIER", "EXTENT", "MAPPERS"],
        allocation.parts.iter().map(|part| {
            vec![
                part.index.to_string(),
                part.offset_bytes.to_string(),
                size(part.size_bytes),
                whereabouts(part),
                extent_name(part.extent_state()).to_owned(),
                mappers(part),
            ]
        }),
    );
    format!("{facts}\n\n{parts}")
}

/// Its tier, where it is on its way to, and whether an operator holds it.
fn whereabouts(part: &v1::Part) -> String {
    let from = tier_of(part).unwrap_or("-");
    let way = moves_to(part).map_or_else(|| from.to_owned(), |to| format!("{from}->{to}"));
    if part.held { format!("{way} (held)") } else { way }
}

/// `None` while it is nowhere.
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

/// Each session, and what it does with the part.
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
                "mapper_session_ids": session_texts(&part.mapper_session_ids),
                "mappers": part.mappers.iter().map(mapper_json).collect::<Vec<_>>(),
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

fn state_name(state: v1::AllocationState) -> &'static str {
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

pub(crate) fn session_texts(ids: &[u64]) -> Vec<String> {
    ids.iter().map(|id| SessionId::from_raw(*id).to_string()).collect()
}
