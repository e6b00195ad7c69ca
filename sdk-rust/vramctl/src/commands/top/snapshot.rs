//! One answer of the daemon to all questions of the view, and its JSON.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vramd_client::admin::{AdminClient, Moves};
use vramd_proto::v1;

use crate::{
    commands::{alloc, device, link, moves, node, prefetch, quota, session, tenant, wait},
    output::failure::Failure,
};

/// Lists that cost the daemon time in proportion to their length, and that only some views need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    pub(super) allocations: bool,
    pub(super) sessions: bool,
    pub(super) links: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) node: v1::GetNodeResponse,
    pub(super) devices: Vec<v1::DeviceStatus>,
    pub(super) quotas: Vec<v1::Quota>,
    pub(super) tenants: Vec<v1::Tenant>,
    pub(super) moves: Moves,
    pub(super) waits: Vec<v1::Wait>,
    pub(super) prefetches: Vec<v1::PrefetchEntry>,
    /// Not younger than the rest, and older if no view needs them now.
    pub(super) allocations: Vec<v1::Allocation>,
    /// Empty unless wanted.
    pub(super) sessions: Vec<v1::Session>,
    /// Empty unless wanted.
    pub(super) links: v1::ListLinksResponse,
}

/// Fetches snapshots, and the list of allocations at most as often as its cost allows.
#[derive(Debug, Default)]
pub(super) struct Fetcher {
    allocations: Vec<v1::Allocation>,
    /// When the list may be fetched again for the sums of tiers alone.
    due: Option<Instant>,
}

/// The share of time that the sums of tiers may cost: one part in so many.
const ALLOCATIONS_SHARE: u32 = 200;

impl Fetcher {
    pub(super) fn fetch(&mut self, admin: &AdminClient, wants: Wants) -> Result<Snapshot, Failure> {
        let now = Instant::now();
        if wants.allocations || self.due.is_none_or(|due| due <= now) {
            self.allocations = admin.allocations(None)?;
            self.due = Some(now + cost_pause(now.elapsed()));
        }
        Ok(Snapshot {
            node: admin.node()?,
            devices: admin.devices()?,
            quotas: admin.quotas(None)?,
            tenants: admin.tenants(None)?,
            moves: admin.moves(None)?,
            waits: admin.waits(None)?,
            prefetches: admin.prefetches(None)?,
            allocations: self.allocations.clone(),
            sessions: if wants.sessions { admin.sessions(None)? } else { Vec::new() },
            links: if wants.links { admin.links()? } else { v1::ListLinksResponse::default() },
        })
    }
}

fn cost_pause(cost: Duration) -> Duration {
    cost.saturating_mul(ALLOCATIONS_SHARE)
}

impl Snapshot {
    /// Bytes of parts that lie in a tier of a device.
    pub(super) fn resident(&self, device: &str, tier: v1::Tier) -> u64 {
        let of_device = self.allocations.iter().filter(|allocation| allocation.device == device);
        of_device.map(|allocation| resident(allocation, tier)).sum()
    }

    /// The UUIDs that rows mention.
    pub(super) fn mentioned(&self) -> impl Iterator<Item = &str> {
        let quotas = self.quotas.iter().map(|quota| quota.device.as_str());
        let moving = self.moves.moving.iter().map(|moving| moving.device.as_str());
        quotas.chain(moving).chain(self.moves.ended.iter().map(|ended| ended.device.as_str()))
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "node": node::to_json(&self.node),
            "devices": self.devices.iter().map(device::to_json).collect::<Vec<_>>(),
            "tenants": self.tenants.iter().map(tenant::to_json).collect::<Vec<_>>(),
            "quotas": self.quotas.iter().map(quota::to_json).collect::<Vec<_>>(),
            "allocations": self.allocations.iter().map(alloc::to_json).collect::<Vec<_>>(),
            "moves": self.moves.moving.iter().map(moves::to_json).collect::<Vec<_>>(),
            "ended": self.moves.ended.iter().map(moves::ended_to_json).collect::<Vec<_>>(),
            "waits": self.waits.iter().map(wait::to_json).collect::<Vec<_>>(),
            "prefetches": self.prefetches.iter().map(prefetch::to_json).collect::<Vec<_>>(),
            "sessions": self.sessions.iter().map(session::to_json).collect::<Vec<_>>(),
            "links": self.links.links.iter().map(link::to_json).collect::<Vec<_>>(),
            "traffic": self.links.traffic.iter().map(link::traffic_to_json).collect::<Vec<_>>(),
        })
    }
}

pub(super) fn resident(allocation: &v1::Allocation, tier: v1::Tier) -> u64 {
    match tier {
        v1::Tier::Unspecified | v1::Tier::Device => allocation.resident_bytes,
        v1::Tier::Host => allocation.host_bytes,
        v1::Tier::Disk => allocation.disk_bytes,
    }
}
