//! Observes the memory kept ready for future parts: cached memory as the core reports it, and pinned free memory as the
//! driver reports it.

use broker_core::Tier;
use broker_driver::FreePinnedFacts;
use opentelemetry::{KeyValue, Value};
use vramd_types::{Bytes, HostNode};

use super::{instruments::Sources, metrics, series::text};

pub(super) fn usage(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for device in &sources.figures().devices {
        observe(device.cached.get(), &on_device(&device.uuid));
    }
    for free in free_pinned(sources) {
        let all = free.ordinary.saturating_add(free.smaller).saturating_add(free.larger);
        observe(all.get(), &on_host_node(free.node));
    }
}

/// Observes the bytes in sizes other than the ordinary part size.
pub(super) fn other_sizes(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    let mut both = |place: [KeyValue; 3], smaller: Bytes, larger: Bytes| {
        let [tier, device, node] = place;
        let mut attributes = [tier, device, node, text(metrics::EXTENT_SIZE, "smaller")];
        observe(smaller.get(), &attributes);
        attributes[3].value = Value::from("larger");
        observe(larger.get(), &attributes);
    };
    for device in &sources.figures().devices {
        both(on_device(&device.uuid), device.cached_smaller, device.cached_larger);
    }
    for free in free_pinned(sources) {
        both(on_host_node(free.node), free.smaller, free.larger);
    }
}

pub(super) fn rebuilds(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for free in free_pinned(sources) {
        observe(free.rebuilds, &[text(metrics::HOST_NODE, free.node.to_string())]);
    }
}

/// The pinned free memory of each host node.
fn free_pinned(sources: &Sources) -> Vec<FreePinnedFacts> {
    sources.driver().map(|driver| driver.free_pinned()).unwrap_or_default()
}

fn on_device(uuid: &str) -> [KeyValue; 3] {
    let tier = text(metrics::TIER, Tier::Device.to_string());
    [tier, text(metrics::HW_ID, uuid.to_owned()), text(metrics::HOST_NODE, "")]
}

fn on_host_node(node: HostNode) -> [KeyValue; 3] {
    let tier = text(metrics::TIER, Tier::Host.to_string());
    [tier, text(metrics::HW_ID, ""), text(metrics::HOST_NODE, node.to_string())]
}
