//! The order in which parts are evicted. Each policy has its own file.
//!
//! A policy only orders the parts. A part that is pinned, guaranteed, protected by a pin call or without
//! backing is skipped, whatever the policy says.

mod lru;
mod residents;
mod scripted;

use std::fmt;

use vramd_types::DeviceIndex;

use crate::{event::PartRef, time::Time};

use lru::Lru;
pub(crate) use residents::Residents;
use scripted::Scripted;

/// The choice of policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// Least recently used first, by harvested use.
    #[default]
    Lru,
    /// In the given order; other parts come last, in the order of their ids. For tests and comparisons.
    Scripted(Vec<PartRef>),
}

/// The use of parts, as it was last seen, on each tier that parts leave.
#[derive(Debug)]
pub(crate) struct Usage {
    /// Parts on their devices that may leave.
    pub(crate) residents: Residents,
    /// Parts in host memory, in the order of their last use.
    pub(crate) idle_on_host: Residents,
}

impl Usage {
    pub(crate) fn new(policy: &EvictionPolicy) -> Self {
        Self { residents: Residents::new(policy), idle_on_host: Residents::new(&EvictionPolicy::Lru) }
    }
}

impl EvictionPolicy {
    fn make(&self) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::<Lru>::default(),
            Self::Scripted(script) => Box::new(Scripted::new(script)),
        }
    }
}

pub(crate) trait Policy: fmt::Debug + Send {
    /// Adds a part that arrived on the device, or was used there. It was removed before.
    fn insert(&mut self, device: DeviceIndex, part: PartRef, used: Time);
    /// Removes a part, if it is there. `used` is the time with which it was added.
    fn remove(&mut self, device: DeviceIndex, part: PartRef, used: Time);
    /// Returns the parts of a device, first the best victim: all of them, or those behind a part that was
    /// last used at that time, whether or not it is still there.
    fn order(
        &self,
        device: DeviceIndex,
        behind: Option<(PartRef, Time)>,
    ) -> Box<dyn Iterator<Item = PartRef> + '_>;
}
