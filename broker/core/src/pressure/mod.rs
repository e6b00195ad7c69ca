//! Pressure: how full each place is, in levels, and how it develops.
//!
//! The fill is the charge divided by the capacity. Memory that other programs take lowers the capacity, and
//! so raises the pressure.

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
    tenancy::{TenantClass, TenantId},
    time::Time,
};

/// A report of pressure to clients, sent when it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureNote {
    pub device: DeviceIndex,
    pub tier: Tier,
    pub pressure: Pressure,
    /// In thousandths: the factor by which a program should scale its batches.
    pub batch_factor: u32,
    /// The time until the tier is full if it goes on filling at this rate.
    pub full_in: Option<Duration>,
}

/// The pressure of all places, and the state of the scans that relieve it.
#[derive(Debug, Default)]
pub(crate) struct PressureState {
    pub(crate) gauges: BTreeMap<Place, Gauge>,
    /// Whether a timer is set for the next sample.
    pub(crate) timer_armed: bool,
    /// Parts that were tried since the last sample.
    pub(crate) tried: BTreeSet<PartRef>,
    /// Parts whose write-back ahead of need failed. They are not retried before the next survey.
    pub(crate) failed: BTreeSet<PartRef>,
    /// The last part of the previous scan of each class, with its last use. The next scan begins behind it.
    pub(crate) scanned_to: BTreeMap<(Place, TenantClass), (PartRef, Time)>,
    /// Bytes in host memory that the driver is releasing, by tenant. They are charged until it has.
    pub(crate) returning: BTreeMap<(Place, TenantId), Bytes>,
}
