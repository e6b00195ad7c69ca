//! `vramctl status`: the node at a glance.

use serde_json::json;
use vramd_client::admin::AdminClient;
use vramd_proto::v1;

use crate::{alloc, device, failure::Failure, output::Output, quota};

pub(crate) fn run(admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let node = admin.node()?;
    let devices = admin.devices()?;
    let quotas = admin.quotas("")?;
    let allocations = admin.allocations("")?;
    let text = || {
        format!(
            "{}\n\nDEVICES\n{}\n\nTENANTS\n{}\n\nALLOCATIONS\n{}",
            heading(&node),
            device::rows(&devices),
            quota::rows(&quotas),
            alloc::rows(&allocations)
        )
    };
    let fields = json!({
        "node": {
            "version": node.version,
            "driver": node.driver,
            "driver_reason": node.driver_reason,
            "draining": node.draining,
            "boot_epoch": node.boot_epoch,
            "session_count": node.session_count,
            "allocation_count": node.allocation_count,
            "fds_in_flight": node.fds_in_flight,
            "invariant_violations": node.invariant_violations,
            "started_at": node.started_at.as_ref().map(ToString::to_string),
        },
        "devices": devices.iter().map(device::to_json).collect::<Vec<_>>(),
        "quotas": quotas.iter().map(quota::to_json).collect::<Vec<_>>(),
        "allocations": allocations.iter().map(alloc::to_json).collect::<Vec<_>>(),
    });
    output.show(text, fields)
}

fn heading(node: &v1::GetNodeResponse) -> String {
    let service = if node.draining { "draining" } else { "in service" };
    let mut text = format!(
        "vramd {}, {service}, {} sessions, {} allocations\ndriver {}: {}",
        node.version, node.session_count, node.allocation_count, node.driver, node.driver_reason
    );
    if node.invariant_violations > 0 {
        text.push_str(&format!("\n{} broken invariants: this is a bug", node.invariant_violations));
    }
    text
}
