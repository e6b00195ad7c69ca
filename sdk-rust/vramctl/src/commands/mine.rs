//! `vramctl mine …`: what the caller's own tenant has, without an operator's rights.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use vramd_client::{AllocationInfo, AllocationState, ClientBuilder, Lifetime, OwnQuota, RawClient};

use super::{file::verify::target, freed::Freed, names::tier_name};
use crate::output::{
    Output,
    failure::Failure,
    table::{Column, table},
    text::{count_or_dash, size, size_or_dash, text_or_dash},
};

#[derive(Debug, Args)]
pub(crate) struct Mine {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Free an allocation of the own tenant that no living session owns.
    Free {
        /// `name` of the own tenant, or an id like a-1099511627777.
        target: String,
    },
}

pub(crate) fn run(mine: Mine, client: ClientBuilder, output: &Output) -> Result<(), Failure> {
    // A session that maps nothing needs no device of its own.
    let client = client.name("vramctl mine").connect_raw()?;
    match mine.verb {
        None => show(&client, output),
        Some(Verb::Free { target }) => free(&client, &target, output),
    }
}

fn show(client: &RawClient, output: &Output) -> Result<(), Failure> {
    let (quotas, allocations) = (client.quota()?, client.list("")?);
    let fields = json!({
        "tenant": client.tenant(),
        "quotas": quotas.iter().map(quota_json).collect::<Vec<_>>(),
        "allocations": allocations.iter().map(allocation_json).collect::<Vec<_>>(),
    });
    let text = || {
        let (quotas, allocations) = (quota_rows(&quotas, output), allocation_rows(&allocations));
        format!("tenant {}\n\n{quotas}\n\nALLOCATIONS\n{allocations}", client.tenant())
    };
    output.show(text, fields)
}

fn free(client: &RawClient, name: &str, output: &Output) -> Result<(), Failure> {
    let id = client.describe(target(name))?.id;
    let freed = client.free(id)?;
    let until = match freed.mapper_count {
        0 => None,
        1 => Some("1 session unmaps it".to_owned()),
        sessions => Some(format!("{sessions} sessions unmap it")),
    };
    let mappers = ("mapper_count", freed.mapper_count.into());
    Freed { id, still_charged_bytes: freed.still_charged.get(), until }.show(mappers, output)
}

fn quota_rows(quotas: &[OwnQuota], output: &Output) -> String {
    let columns = [
        Column::text("DEVICE").key(),
        Column::text("TIER").key(),
        Column::number("GUARANTEE").always(),
        Column::number("LIMIT").always(),
        Column::number("USED").always(),
        Column::number("FREE").always(),
        Column::number("CACHED"),
        Column::number("MANAGED"),
        Column::number("ORDERED HERE"),
        Column::number("ORDERED TO HOST"),
        Column::number("UNRETURNED"),
        Column::text("NOTE"),
    ];
    table(
        &columns,
        quotas.iter().map(|quota| {
            vec![
                if output.has_uuids() { quota.device.clone() } else { quota.device_index.to_string() },
                tier_name(quota.tier).to_owned(),
                size(quota.guarantee.get()),
                size(quota.limit.get()),
                size_or_dash(quota.used.get()),
                size_or_dash(quota.free.get()),
                size_or_dash(quota.cached.get()),
                size_or_dash(quota.managed.get()),
                size_or_dash(quota.managed_on_device.get()),
                size_or_dash(quota.managed_on_host.get()),
                size_or_dash(quota.unreturned.get()),
                if quota.is_default { "default" } else { "" }.to_owned(),
            ]
        }),
    )
}

fn allocation_rows(allocations: &[AllocationInfo]) -> String {
    let columns = [
        Column::text("ALLOCATION").key(),
        Column::text("NAME"),
        Column::text("STATE"),
        Column::text("LIFETIME"),
        Column::number("SIZE").always(),
        Column::number("CHARGED"),
        Column::number("RESIDENT"),
        Column::number("UNRETURNED"),
        Column::number("MAPPERS"),
        Column::text("OWNER"),
    ];
    table(
        &columns,
        allocations.iter().map(|info| {
            vec![
                info.id.to_string(),
                text_or_dash(info.name.as_deref().unwrap_or_default()),
                state_name(info.state),
                lifetime_name(info.lifetime).to_owned(),
                size(info.size.get()),
                size_or_dash(info.charged.get()),
                size_or_dash(info.resident.get()),
                size_or_dash(info.unreturned.get()),
                count_or_dash(info.mapper_count.into()),
                info.owner_session.map_or_else(|| "-".to_owned(), |owner| owner.to_string()),
            ]
        }),
    )
}

fn quota_json(quota: &OwnQuota) -> Value {
    json!({
        "device": quota.device,
        "device_index": quota.device_index,
        "tier": tier_name(quota.tier),
        "guarantee_bytes": quota.guarantee.get(),
        "limit_bytes": quota.limit.get(),
        "used_bytes": quota.used.get(),
        "free_bytes": quota.free.get(),
        "cached_bytes": quota.cached.get(),
        "managed_bytes": quota.managed.get(),
        "managed_on_device_bytes": quota.managed_on_device.get(),
        "managed_on_host_bytes": quota.managed_on_host.get(),
        "unreturned_bytes": quota.unreturned.get(),
        "capacity_bytes": quota.capacity.get(),
        "default_quota": quota.is_default,
    })
}

fn allocation_json(info: &AllocationInfo) -> Value {
    json!({
        "allocation_id": info.id.to_string(),
        "name": info.name,
        "device": info.device,
        "state": state_name(info.state),
        "lifetime": lifetime_name(info.lifetime),
        "size_bytes": info.size.get(),
        "charged_bytes": info.charged.get(),
        "resident_bytes": info.resident.get(),
        "unreturned_bytes": info.unreturned.get(),
        "mapper_count": info.mapper_count,
        "owner_session_id": info.owner_session.map(|owner| owner.to_string()),
    })
}

fn state_name(state: AllocationState) -> String {
    state.as_str_name().trim_start_matches("ALLOCATION_STATE_").to_lowercase()
}

fn lifetime_name(lifetime: Lifetime) -> &'static str {
    match lifetime {
        Lifetime::Unspecified | Lifetime::Session => "session",
        Lifetime::Persistent => "persistent",
    }
}
