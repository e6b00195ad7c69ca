//! Harvests: from the words, the daemon reads which sessions have used a part since the last harvest, and
//! which pin it.

use std::{collections::BTreeMap, time::Duration};

use broker_core::{Event, MapPart, PartRef, PartUse, Slot};
use vramd_types::SessionId;
use vramd_words::{LastUse, State};

use super::{World, driver::soon, queue::Action, words::Words};

/// State of each slot at the last harvest.
#[derive(Debug)]
pub(super) struct Harvest {
    session: SessionId,
    seen: BTreeMap<Slot, Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    part: PartRef,
    touch: LastUse,
    pinned: bool,
    written: bool,
}

impl Harvest {
    pub(super) const fn new(session: SessionId) -> Self {
        Self { session, seen: BTreeMap::new() }
    }

    /// The slot's word serves the part from now on.
    pub(super) fn track_map(&mut self, sent: &MapPart, slot: Slot, touch: LastUse) {
        self.seen.insert(slot, Seen { part: sent.part, touch, pinned: false, written: false });
    }
}

impl Words {
    /// Returns what has changed since the last harvest. An impossible word says nothing.
    fn harvest(&mut self) -> Vec<PartUse> {
        let Self { harvest: Harvest { session, seen }, daemon, .. } = self;
        let mut touched = Vec::new();
        for (slot, seen) in seen {
            let Some(word) = daemon.slot(slot.0) else { continue };
            let Ok((state, written)) = word.state().and_then(|state| Ok((state, word.is_written()?))) else {
                continue;
            };
            let pins = matches!(state, State::Resident { pins } | State::Revoking { pins } if pins > 0);
            let touch = word.last_use();
            let is_used = (touch, pins) != (seen.touch, seen.pinned);
            if is_used || (written && !seen.written) {
                touched.push(PartUse { session: *session, part: seen.part, pinned: pins, written });
            }
            (seen.touch, seen.pinned, seen.written) = (touch, pins, written);
        }
        touched
    }
}

impl World {
    pub(super) fn harvest_again(&mut self) {
        if !self.calm {
            self.harvest();
            let again = self.links.between(1, self.scenario.harvest_micros * 2);
            self.queue.schedule(self.now.after(Duration::from_micros(again)), 0, Action::Harvest);
        }
    }

    /// Harvests all words. Returns whether anything has changed; the broker hears of it a little later.
    pub(super) fn harvest(&mut self) -> bool {
        let open = self.channels.values_mut().filter(|channel| channel.broker_open);
        let touched: Vec<_> =
            open.filter_map(|channel| channel.words.as_mut()).flat_map(Words::harvest).collect();
        if touched.is_empty() {
            return false;
        }
        let when = soon(&mut self.links, self.now, 1, 60);
        self.queue.schedule(when, self.life, Action::Arrive(Event::PartsUsed(touched)));
        true
    }
}
