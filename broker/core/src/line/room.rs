//! Room on its way: extents that are leaving their devices, and the operations that wait for them. Also the
//! data of a plan that makes room.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;
use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::{
    event::PartRef,
    ledger::Shortage,
    pool::Age,
    tenancy::{Arrival, OpId, TenantId},
};

/// Extents that are leaving their devices, and the operations that wait for them.
#[derive(Debug, Default)]
pub(crate) struct AwaitedRoom {
    leaving: BTreeMap<ExtentId, LeavingExtent>,
    pending: BTreeMap<OpId, usize>,
}

#[derive(Debug)]
struct LeavingExtent {
    was: Footprint,
    waiting: SmallVec<[OpId; 2]>,
}

/// A number of bytes of one tenant on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub(crate) tenant: TenantId,
    pub(crate) device: DeviceIndex,
    pub(crate) size: Bytes,
}

/// The room that a waiter needs on one device.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    pub(crate) footprint: Footprint,
    /// Parts of earlier pin calls are left alone.
    pub(crate) arrived: Arrival,
    /// Cached extents that the waiter will reuse.
    pub(crate) own_cached: Vec<Age>,
    /// The waiter lets those behind it pass while it is short.
    pub(crate) lets_pass: bool,
}

/// Why no plan gives a waiter what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unmet {
    pub(crate) shortage: Shortage,
    /// It only stands behind a waiter that is short.
    pub(crate) is_behind: bool,
}

/// The extents and parts that have to leave a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoomPlan {
    /// Extents that are leaving already.
    pub(crate) awaited: Vec<ExtentId>,
    pub(crate) given_up: BTreeSet<Age>,
    /// Parts that leave for a tier below, each with the arrival of the waiter that needs the room.
    pub(crate) victims: Vec<(PartRef, Arrival)>,
    /// Parts of sessions in doubt, which are asked to unmap them at the same time.
    pub(crate) ahead: Vec<PartRef>,
}

impl Unmet {
    /// Whether the device lacks room for the waiter's own need.
    pub(crate) const fn is_own(&self) -> bool {
        !self.is_behind && matches!(self.shortage, Shortage::Room { .. })
    }
}

impl RoomPlan {
    /// Whether the plan waits for nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.awaited.is_empty() && self.given_up.is_empty() && self.victims.is_empty()
    }
}

impl AwaitedRoom {
    /// Records an extent that begins to leave its device.
    pub(crate) fn track(&mut self, extent: ExtentId, was: Footprint) {
        self.leaving.entry(extent).or_insert_with(|| LeavingExtent { was, waiting: SmallVec::new() });
    }

    /// Whether any extent is leaving the device.
    pub(crate) fn is_leaving(&self, device: DeviceIndex) -> bool {
        self.leaving.values().any(|leaving| leaving.was.device == device)
    }

    /// The extents that are leaving.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExtentId, Footprint)> {
        self.leaving.iter().map(|(extent, leaving)| (*extent, leaving.was))
    }

    pub(crate) fn expect(&mut self, extent: ExtentId, op: OpId) {
        if let Some(leaving) = self.leaving.get_mut(&extent) {
            leaving.waiting.push(op);
            let left = self.pending.entry(op).or_default();
            *left = left.saturating_add(1);
        }
    }

    /// Whether any operation waits for an extent to leave.
    pub(crate) fn is_any_expected(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(crate) fn is_expected_by(&self, op: OpId) -> bool {
        self.pending.contains_key(&op)
    }

    /// The operations that wait for nothing further, now that this extent was returned, or stays after all.
    pub(crate) fn take_ready(&mut self, extent: ExtentId) -> Vec<OpId> {
        let waiting = self.leaving.remove(&extent).map(|leaving| leaving.waiting).unwrap_or_default();
        let mut ready = waiting.to_vec();
        ready.retain(|op| {
            let left = self.pending.get(op).map_or(0, |left| left.saturating_sub(1));
            match left {
                0 => self.pending.remove(op).is_some(),
                _ => self.pending.insert(*op, left).is_none(),
            }
        });
        ready
    }
}
