//! Records how long programs wait for their turns, have them, and what the hand-overs take. Turns are few, so each device
//! has series of its own.

use std::time::Duration;

use broker_core::{Notice, Time};
use opentelemetry::{
    KeyValue,
    metrics::{Histogram, Meter},
};
use vramd_types::DeviceIndex;

use super::{instruments::histogram, metrics};

#[derive(Debug)]
pub(super) struct TurnHistograms {
    wait_seconds: Histogram<f64>,
    hand_over_seconds: Histogram<f64>,
    held_seconds: Histogram<f64>,
    /// UUIDs, in the daemon's order.
    devices: Vec<String>,
}

impl TurnHistograms {
    pub(super) fn new(meter: &Meter, devices: Vec<String>) -> Self {
        Self {
            wait_seconds: histogram(meter, &metrics::TURN_WAIT),
            hand_over_seconds: histogram(meter, &metrics::TURN_HAND_OVER),
            held_seconds: histogram(meter, &metrics::TURN_DURATION),
            devices,
        }
    }

    /// Records a turn that is granted or has ended. `since` returns the time that has passed since a moment.
    pub(super) fn record(&self, notice: &Notice, since: &impl Fn(Time) -> Duration) {
        match notice {
            Notice::TurnGranted { device, since: asked, admitted, .. } => {
                let of_device = self.attributes(*device);
                self.wait_seconds.record(since(*asked).as_secs_f64(), &of_device);
                self.hand_over_seconds.record(since(*admitted).as_secs_f64(), &of_device);
            }
            Notice::TurnEnded { device, granted, .. } => {
                self.held_seconds.record(since(*granted).as_secs_f64(), &self.attributes(*device));
            }
            _ => {}
        }
    }

    fn attributes(&self, device: DeviceIndex) -> [KeyValue; 1] {
        let uuid = self.devices.get(usize::from(device.0)).cloned().unwrap_or_default();
        [KeyValue::new(metrics::HW_ID, uuid)]
    }
}
