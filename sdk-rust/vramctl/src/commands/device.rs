//! `vramctl device …`

use clap::Subcommand;
use serde_json::{Value, json};
use vramd_client::{Reason, admin::AdminClient};
use vramd_proto::v1;

use crate::{
    commands::quota,
    output::{
        Output,
        failure::Failure,
        table::{facts, size, size_or_dash, table},
    },
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows the node's devices and how full they are.
    List,
    /// Shows one device, and what each tenant may have and has there.
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
            output.show(|| rows(&devices), fields)
        }
        Verb::Show { device: text } => {
            let Some(status) = devices.iter().find(|status| is_called(status, &text)) else {
                return Err(Failure::not_found(Reason::DeviceUnknown, "device", &text));
            };
            let uuid = &status.device.clone().unwrap_or_default().uuid;
            let mut quotas = admin.quotas("")?;
            quotas.retain(|quota| quota.device == *uuid);
            let fields = json!({
                "device": to_json(status),
                "quotas": quotas.iter().map(quota::to_json).collect::<Vec<_>>(),
            });
            output.show(|| format!("{}\n\nTENANTS\n{}", sheet(status), quota::rows(&quotas)), fields)
        }
    }
}

fn is_called(status: &v1::DeviceStatus, text: &str) -> bool {
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
        ("held", size_or_dash(status.held_bytes)),
        ("cached", size_or_dash(status.cached_bytes)),
        ("unreturned", size_or_dash(status.unreturned_bytes)),
        ("unbrokered", size_or_dash(status.unbrokered_bytes)),
        ("contexts", size_or_dash(status.context_reserve_bytes)),
        ("committed", size_or_dash(status.committed_bytes)),
        ("shortfall", size_or_dash(status.shortfall_bytes)),
        ("host", size_or_dash(status.host_capacity_bytes)),
        ("host-held", size_or_dash(status.host_held_bytes)),
        ("disk", size_or_dash(status.disk_capacity_bytes)),
        ("disk-held", size_or_dash(status.disk_held_bytes)),
        ("moving-in", size_or_dash(status.moving_in_bytes)),
        ("moving-out", size_or_dash(status.moving_out_bytes)),
        ("pressure", pressure(status)),
        ("awaited", format!("{} parts", status.awaited_part_count)),
    ])
}

pub(crate) fn rows(devices: &[v1::DeviceStatus]) -> String {
    let columns = [
        "DEVICE",
        "UUID",
        "NAME",
        ">TOTAL",
        ">CAPACITY",
        ">HELD",
        ">CACHED",
        ">UNRETURNED",
        ">UNBROKERED",
        ">COMMITTED",
        ">SHORTFALL",
        ">HOST",
        ">HOST-HELD",
        ">DISK",
        ">DISK-HELD",
        "PRESSURE",
    ];
    table(
        &columns,
        devices.iter().map(|status| {
            let device = status.device.clone().unwrap_or_default();
            vec![
                device.index.to_string(),
                device.uuid,
                device.name,
                size(status.total_bytes),
                size(status.capacity_bytes),
                size_or_dash(status.held_bytes),
                size_or_dash(status.cached_bytes),
                size_or_dash(status.unreturned_bytes),
                size_or_dash(status.unbrokered_bytes),
                size_or_dash(status.committed_bytes),
                size_or_dash(status.shortfall_bytes),
                size_or_dash(status.host_capacity_bytes),
                size_or_dash(status.host_held_bytes),
                size_or_dash(status.disk_capacity_bytes),
                size_or_dash(status.disk_held_bytes),
                pressure(status),
            ]
        }),
    )
}

/// Of the device, the host and the disk, like `high/normal/-`.
fn pressure(status: &v1::DeviceStatus) -> String {
    let levels = [status.pressure(), status.host_pressure(), status.disk_pressure()];
    levels.map(|level| level_name(level).unwrap_or_else(|| "-".to_owned())).join("/")
}

/// `None` where there is no such tier, or the daemon is too old to say.
pub(crate) fn level_name(level: v1::PressureLevel) -> Option<String> {
    let name = level.as_str_name().trim_start_matches("PRESSURE_LEVEL_");
    (level != v1::PressureLevel::Unspecified).then(|| name.to_lowercase())
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
        assert_eq!(pressure(&status), "-/-/-", "a daemon that does not say");
        status.pressure = v1::PressureLevel::High.into();
        status.host_pressure = v1::PressureLevel::Normal.into();
        assert_eq!(pressure(&status), "high/normal/-");
        let fields = to_json(&status);
        assert_eq!((&fields["pressure"], &fields["host_pressure"]), (&"high".into(), &"normal".into()));
        assert_eq!(fields["disk_pressure"], Value::Null);
    }
}
