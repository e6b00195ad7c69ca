//! `vramctl status`: the node at a glance.

use serde_json::json;
use vramd_client::admin::AdminClient;

use crate::{
    commands::{alloc, device, node, quota},
    output::{Output, failure::Failure},
};

pub(crate) fn run(admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let node = admin.node()?;
    let devices = admin.devices()?;
    let quotas = admin.quotas("")?;
    let allocations = admin.allocations("")?;
    let text = || {
        format!(
            "{}\n\nDEVICES\n{}\n\nTENANTS\n{}\n\nALLOCATIONS\n{}",
            node::heading(&node),
            device::rows(&devices),
            quota::rows(&quotas),
            alloc::rows(&allocations)
        )
    };
    let fields = json!({
        "node": node::to_json(&node),
        "devices": devices.iter().map(device::to_json).collect::<Vec<_>>(),
        "quotas": quotas.iter().map(quota::to_json).collect::<Vec<_>>(),
        "allocations": allocations.iter().map(alloc::to_json).collect::<Vec<_>>(),
    });
    output.show(text, fields)
}
