//! Who leaves a device when somebody needs the room: one policy a file.
//!
//! A policy only says in which order. What is pinned, guaranteed, protected by a pin call or has nothing set aside below is
//! left alone whatever it says.

mod lru;
mod residents;
mod scripted;

use std::fmt;

use vramd_types::DeviceIndex;

use crate::{event::PartRef, time::Time};

use lru::Lru;
pub(crate) use residents::Residents;
use scripted::Scripted;

/// Which policy chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// What was used least recently, by harvested touches.
    #[default]
    Lru,
    /// In this order; what is not in it comes last, in the order of its ids. For tests, and to compare with.
    Scripted(Vec<PartRef>),
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
    /// The part has come to the device, or has been used there.
    fn record_use(&mut self, device: DeviceIndex, part: PartRef, now: Time);
    /// It is not there any more.
    fn remove(&mut self, part: PartRef);
    /// Those that are there, those first that should leave first: all, or those behind a part that was used last at that time,
    /// be it there or not.
    fn order(
        &self,
        device: DeviceIndex,
        behind: Option<(PartRef, Time)>,
    ) -> Box<dyn Iterator<Item = PartRef> + '_>;
}
