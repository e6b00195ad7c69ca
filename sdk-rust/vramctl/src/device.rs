//! `vramctl device …`

use clap::Subcommand;
use serde_json::{Value, json};
use vramd_client::admin::AdminClient;
use vramd_proto::v1;

use crate::{
    failure::Failure,
    output::Output,
    table::{size, size_or_dash, table},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows the node's devices and how full they are.
    List,
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let Verb::List = verb;
    let devices = admin.devices()?;
    let fields = json!({ "devices": devices.iter().map(to_json).collect::<Vec<_>>() });
    output.show(|| rows(&devices), fields)
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
            ]
        }),
    )
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
    })
}
