//! The set of the turn that comes next is brought to its device ahead of the hand-over.
//!
//! It takes only room that is free, as anything that is brought unasked does (`prefetch/speculate.rs`), and none above the
//! level at which cold parts leave. So no other session loses a part for it. It goes on as long as the turn waits: with
//! each part that has come, and with each look at the turns, since room may be free by then.

use vramd_types::{DeviceIndex, SessionId};

use crate::{broker::Broker, event::PartRef, pressure::Pressure};

impl Broker {
    /// Brings parts of the set whose turn is next on each device.
    pub(crate) fn bring_next_sets(&mut self) {
        let devices: Vec<DeviceIndex> = self.sessions.turns.devices().into_iter().collect();
        for device in devices {
            let Some((id, _)) = self.fronts_on(device).next else { continue };
            planted!(self, SetBroughtOutOfTurn => id = self.last_turn_waiting(device).unwrap_or(id));
            while let Some(part) = self.next_part_ahead(id)
                && self.bring(id, part, Pressure::Elevated)
            {
                self.sessions.turns.pass_part(id);
            }
        }
    }

    /// The first part of the set of a session's turn that was not looked at since it waits.
    fn next_part_ahead(&self, id: SessionId) -> Option<PartRef> {
        let looked_at = self.sessions.turns.get(id).filter(|turn| turn.is_waiting())?.looked_at;
        let mut left = looked_at;
        self.members_of(self.set_of_turn(id)?).find_map(|(allocation, entry)| {
            let found = entry.indices().nth(left).map(|part| PartRef { allocation, part });
            left = left.saturating_sub(entry.part_count() as usize);
            found
        })
    }
}
