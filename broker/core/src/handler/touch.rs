//! What sessions use: harvested from their words, for whoever chooses what leaves a device.

use crate::{broker::Broker, event::TouchedPart};

impl Broker {
    pub(crate) fn on_touched(&mut self, _: &[TouchedPart]) {}
}
