//! Pressure: how full a device or a tier below it is, in steps, and where it is going.
//!
//! Full is what is charged of what can be handed out. So what others take of a device is pressure like any other: the capacity
//! is less then.

mod bounds;
mod gauge;
mod level;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vramd_types::{Bytes, DeviceIndex};

pub use bounds::{InvalidBounds, PressureBounds};
pub(crate) use gauge::{Fill, Gauge, Outlook};
pub use level::Pressure;

use crate::{
    event::{PartRef, Tier},
    ledger::Place,
    tenancy::TenantId,
    time::Time,
};

/// What a client is told, whenever it is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureNote {
    pub device: DeviceIndex,
    pub tier: Tier,
    pub pressure: Pressure,
    /// Thousandths: by what a program that chooses how much it asks for at once should multiply that.
    pub batch_factor: u32,
    /// How long it takes until the tier is full, if it goes on filling as it does.
    pub full_in: Option<Duration>,
}

/// The pressure of all places, and how far it was answered.
#[derive(Debug, Default)]
pub(crate) struct PressureState {
    pub(crate) gauges: BTreeMap<Place, Gauge>,
    /// Whether there is a timer for the next look.
    pub(crate) timer_armed: bool,
    /// Parts that something was tried with since the last look.
    pub(crate) tried: BTreeSet<PartRef>,
    /// Parts that could not be copied ahead: they are not tried until devices are looked at.
    pub(crate) failed: BTreeSet<PartRef>,
    /// Parts up to this one, which was used last then, could do nothing: the next look begins behind it.
    pub(crate) scanned_to: BTreeMap<Place, (PartRef, Time)>,
    /// What the driver was told to let go of in the host's memory, by tenant: it is charged there until the driver has.
    pub(crate) returning: BTreeMap<(Place, TenantId), Bytes>,
}
