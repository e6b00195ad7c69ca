//! What is held ready for parts to come: the core says it of devices, the driver of the host's memory.

use broker_core::Tier;
use broker_driver::KeptFacts;
use opentelemetry::{KeyValue, Value};
use vramd_types::{Bytes, HostNode};

use super::{metrics::Shown, registry as of, series::text};

pub(super) fn usage(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    for device in &shown.figures().devices {
        say(device.cached.get(), &on_device(&device.uuid));
    }
    for kept in kept(shown) {
        let all = kept.usual.saturating_add(kept.smaller).saturating_add(kept.larger);
        say(all.get(), &near(kept.node));
    }
}

/// Of that, what is of other sizes than the usual one.
pub(super) fn other_sizes(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    let mut both = |place: [KeyValue; 3], smaller: Bytes, larger: Bytes| {
        let [tier, device, node] = place;
        let mut attributes = [tier, device, node, text(of::EXTENT_SIZE, "smaller")];
        say(smaller.get(), &attributes);
        attributes[3].value = Value::from("larger");
        say(larger.get(), &attributes);
    };
    for device in &shown.figures().devices {
        both(on_device(&device.uuid), device.cached_smaller, device.cached_larger);
    }
    for kept in kept(shown) {
        both(near(kept.node), kept.smaller, kept.larger);
    }
}

pub(super) fn rebuilds(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    for kept in kept(shown) {
        say(kept.rebuilds, &[text(of::HOST_NODE, kept.node.to_string())]);
    }
}

/// Of the host's memory.
fn kept(shown: &Shown) -> Vec<KeptFacts> {
    shown.driver().map(|driver| driver.kept()).unwrap_or_default()
}

fn on_device(uuid: &str) -> [KeyValue; 3] {
    let tier = text(of::TIER, Tier::Device.to_string());
    [tier, text(of::HW_ID, uuid.to_owned()), text(of::HOST_NODE, "")]
}

fn near(node: HostNode) -> [KeyValue; 3] {
    let tier = text(of::TIER, Tier::Host.to_string());
    [tier, text(of::HW_ID, ""), text(of::HOST_NODE, node.to_string())]
}
