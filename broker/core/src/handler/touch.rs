//! What sessions use: harvested from their words, for whoever chooses what leaves a device.

use crate::{broker::Broker, event::TouchedPart};

impl Broker {
    pub(crate) fn on_touched(&mut self, touched: &[TouchedPart]) {
        let mut unpinned = false;
        for TouchedPart { session, part, pinned } in touched {
            // What the session has been told to unmap meanwhile is no use of it any more.
            if !self.map_state(*session, *part).is_some_and(|state| state.maps()) {
                continue;
            }
            self.residents.touched(*part, self.now);
            match pinned {
                true => self.residents.pinned(*part, *session),
                false => unpinned |= self.residents.unpinned(*part, *session),
            }
        }
        if unpinned && !planted!(self, TouchIgnored) {
            self.unsettle_short();
        }
    }

    /// Whether anybody waits for others to let go of something.
    pub(crate) fn is_room_wanted(&self) -> bool {
        !self.demands.is_empty() || !self.over_limit.is_empty()
    }
}
