//! `vramctl device …`

use clap::Subcommand;
use serde_json::{Value, json};
use vramd_client::{Reason, admin::AdminClient};
use vramd_proto::v1;

use super::{names::level_name, quota};
use crate::output::{
    Output,
    device_names::DeviceNames,
    failure::Failure,
    table::{Column, table},
    text::{facts, size, size_or_dash},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the node's devices and how full they are.
    List,
    /// Show one device, and the quota and charge of each tenant there.
    Show {
        /// Index or UUID.
        device: String,
    },
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let devices = admin.devices()?;
    match verb {
        Verb::List => {
            let fields = json!({ "devices": devices.iter().map(to_json).collect::<Vec<_>>() });
            output.show(|| rows(&devices, output.has_uuids()), fields)
        }
        Verb::Show { device: text } => {
            let Some(status) = devices.iter().find(|status| is_named(status, &text)) else {
                return Err(Failure::not_found(Reason::DeviceUnknown, "device", &text));
            };
            let uuid = &status.device.clone().unwrap_or_default().uuid;
            let mut quotas = admin.quotas(None)?;
            quotas.retain(|quota| quota.device == *uuid);
            let fields = json!({
                "device": to_json(status),
                "quotas": quotas.iter().map(quota::to_json).collect::<Vec<_>>(),
            });
            let names = names(&devices, [], output);
            output.show(|| format!("{}\n\nTENANTS\n{}", sheet(status), quota::rows(&quotas, &names)), fields)
        }
    }
}

/// The names of devices in the tables of this output. `mentioned` are UUIDs that the node may not list.
pub(crate) fn names<'a>(
    devices: &[v1::DeviceStatus],
    mentioned: impl IntoIterator<Item = &'a str>,
    output: &Output,
) -> DeviceNames {
    if output.has_uuids() { DeviceNames::uuids() } else { DeviceNames::short(devices, mentioned) }
}

/// The same for a command that has no list of devices yet: it fetches one if a table needs it. Names are a convenience, so if the list
/// cannot be had the table shows UUIDs, and the command succeeds.
pub(crate) fn fetch_names<'a>(
    admin: &AdminClient,
    mentioned: impl IntoIterator<Item = &'a str>,
    output: &Output,
) -> DeviceNames {
    if output.is_json() || output.has_uuids() {
        return DeviceNames::uuids();
    }
    admin.devices().map_or_else(|_| DeviceNames::uuids(), |devices| DeviceNames::short(&devices, mentioned))
}

fn is_named(status: &v1::DeviceStatus, text: &str) -> bool {
    let device = status.device.clone().unwrap_or_default();
    device.uuid == text || device.index.to_string() == text
}

fn sheet(status: &v1::DeviceStatus) -> String {
    let device = status.device.clone().unwrap_or_default();
    facts(&[
        ("device", device.index.to_string()),
        ("uuid", device.uuid),
        ("name", device.name),
        ("total", size(status.total_bytes)),
        ("capacity", size(status.capacity_bytes)),
        ("charged", size_or_dash(status.held_bytes)),
        ("cached", size_or_dash(status.cached_bytes)),
        ("managed", size_or_dash(status.managed_bytes)),
        ("ordered-here", size_or_dash(status.managed_on_device_bytes)),
        ("ordered-to-host", size_or_dash(status.managed_on_host_bytes)),
        ("unreturned", size_or_dash(status.unreturned_bytes)),
        ("unbrokered", size_or_dash(status.unbrokered_bytes)),
        ("contexts", size_or_dash(status.context_reserve_bytes)),
        ("committed", size_or_dash(status.committed_bytes)),
        ("shortfall", size_or_dash(status.shortfall_bytes)),
        ("host", size_or_dash(status.host_capacity_bytes)),
        ("host-charged", size_or_dash(status.host_held_bytes)),
        ("disk", size_or_dash(status.disk_capacity_bytes)),
        ("disk-charged", size_or_dash(status.disk_held_bytes)),
        ("moving-in", size_or_dash(status.moving_in_bytes)),
        ("moving-out", size_or_dash(status.moving_out_bytes)),
        ("pressure", pressure(status)),
        ("awaited", format!("{} parts", status.awaited_part_count)),
    ])
}

/// One line for each device; with its UUID on demand.
pub(crate) fn rows(devices: &[v1::DeviceStatus], has_uuids: bool) -> String {
    let columns = [
        Column::text("DEVICE").key(),
        Column::text("UUID"),
        Column::text("NAME"),
        Column::number("TOTAL").always(),
        Column::number("CAPACITY").always(),
        Column::number("CHARGED").always(),
        Column::number("CACHED"),
        Column::number("UNRETURNED"),
        Column::number("UNBROKERED"),
        Column::number("COMMITTED"),
        Column::number("SHORTFALL"),
        Column::number("HOST"),
        Column::number("DISK"),
        Column::text("PRESSURE"),
    ];
    table(
        &columns,
        devices.iter().map(|status| {
            let device = status.device.clone().unwrap_or_default();
            vec![
                device.index.to_string(),
                if has_uuids { device.uuid } else { String::new() },
                device.name,
                size(status.total_bytes),
                size(status.capacity_bytes),
                size_or_dash(status.held_bytes),
                size_or_dash(status.cached_bytes),
                size_or_dash(status.unreturned_bytes),
                size_or_dash(status.unbrokered_bytes),
                size_or_dash(status.committed_bytes),
                size_or_dash(status.shortfall_bytes),
                charged_of(status.host_held_bytes, status.host_capacity_bytes),
                charged_of(status.disk_held_bytes, status.disk_capacity_bytes),
                pressure(status),
            ]
        }),
    )
}

/// The charge and the capacity of a tier below the device, like `600 MiB/1 GiB`. A dash where there is no such tier.
fn charged_of(charged: u64, capacity: u64) -> String {
    match (charged, capacity) {
        (0, 0) => "-".to_owned(),
        _ => format!("{}/{}", size(charged), size(capacity)),
    }
}

/// The levels of the device, the host and the disk, like `high/normal/-`.
fn pressure(status: &v1::DeviceStatus) -> String {
    let levels = [status.pressure(), status.host_pressure(), status.disk_pressure()];
    levels.map(|level| level_name(level).unwrap_or_else(|| "-".to_owned())).join("/")
}

pub(crate) fn to_json(status: &v1::DeviceStatus) -> Value {
    let device = status.device.clone().unwrap_or_default();
    json!({
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "total_bytes": status.total_bytes,
        "capacity_bytes": status.capacity_bytes,
        "held_bytes": status.held_bytes,
        "cached_bytes": status.cached_bytes,
        "managed_bytes": status.managed_bytes,
        "managed_on_device_bytes": status.managed_on_device_bytes,
        "managed_on_host_bytes": status.managed_on_host_bytes,
        "unreturned_bytes": status.unreturned_bytes,
        "unbrokered_bytes": status.unbrokered_bytes,
        "committed_bytes": status.committed_bytes,
        "shortfall_bytes": status.shortfall_bytes,
        "context_reserve_bytes": status.context_reserve_bytes,
        "host_capacity_bytes": status.host_capacity_bytes,
        "host_held_bytes": status.host_held_bytes,
        "disk_capacity_bytes": status.disk_capacity_bytes,
        "disk_held_bytes": status.disk_held_bytes,
        "pressure": level_name(status.pressure()),
        "host_pressure": level_name(status.host_pressure()),
        "disk_pressure": level_name(status.disk_pressure()),
        "moving_in_bytes": status.moving_in_bytes,
        "moving_out_bytes": status.moving_out_bytes,
        "awaited_part_count": status.awaited_part_count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_one_short_column() {
        let mut status = v1::DeviceStatus::default();
        assert_eq!(pressure(&status), "-/-/-", "a daemon that reports none");
        status.pressure = v1::PressureLevel::High.into();
        status.host_pressure = v1::PressureLevel::Normal.into();
        assert_eq!(pressure(&status), "high/normal/-");
        let fields = to_json(&status);
        assert_eq!((&fields["pressure"], &fields["host_pressure"]), (&"high".into(), &"normal".into()));
        assert_eq!(fields["disk_pressure"], Value::Null);
    }

    #[test]
    fn a_tier_shows_its_charge_and_its_capacity() {
        assert_eq!(charged_of(0, 1 << 30), "0 B/1 GiB");
        assert_eq!(charged_of(3 << 20, 1 << 20), "3 MiB/1 MiB", "a tier that was made smaller");
        assert_eq!(charged_of(0, 0), "-");
    }
}
