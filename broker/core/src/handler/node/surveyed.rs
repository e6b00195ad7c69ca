//! The result of a survey: the ledger learns which memory other programs have, and parts and waiters that were
//! stuck are tried again.

use vramd_types::{Bytes, DeviceIndex};

use crate::{broker::Broker, command::Notice, event::Tier, follow_up::Fact, ledger::Place, line::MemoryNews};

impl Broker {
    /// Begins a round of surveys.
    pub(crate) fn begin_surveys(&mut self) {
        self.line.learn(MemoryNews::SurveysBegin);
        self.survey_all();
        self.arm_survey();
    }

    pub(crate) fn on_surveyed(
        &mut self,
        device: DeviceIndex,
        unbrokered: Bytes,
        contexts: u32,
        host_missing: Bytes,
    ) {
        let done = self.node.surveys.done.entry(device).or_default();
        *done = done.saturating_add(1);
        let is_first = *done == 1;
        let (place, host) = (Place::device(device), Place { device, tier: Tier::Host });
        let before = [place, host].map(|place| (place, self.fill(place)));
        // The driver counts resident pages of managed memory as another program's, and its tenant is charged for them.
        let explained = self.allocations.managed.sums_in(place).charged;
        planted!(self, ManagedCountedTwice => explained = Bytes::ZERO);
        let unbrokered = unbrokered.saturating_sub(explained);
        if self.ledger.balances(place).is_some_and(|balances| balances.unbrokered() != unbrokered) {
            self.push_notice(Notice::Unbrokered { device, bytes: unbrokered });
        }
        let reserved = self.context_reserve(device, contexts);
        let found = self.node.surveys.resolve_awaited(device);
        planted!(self, EarlySurveyBelieved => found = true);
        self.withhold(place, |ledger| {
            ledger.set_withheld(place, unbrokered, reserved);
            if found {
                ledger.lift_cap(place);
            }
        });
        self.withhold(host, |ledger| ledger.set_withheld(host, host_missing, Bytes::ZERO));
        // Memory that other programs had before the first survey is no growth.
        if is_first {
            before.into_iter().for_each(|(place, before)| self.note_resized(place, before));
        }
        self.cover_shortfall(device);
        self.line.learn(MemoryNews::Surveyed(device));
        self.usage.residents.clear_stuck();
        self.usage.idle_on_host.clear_stuck();
        self.note_all_in_place();
        self.node.pressure.failed.clear();
        self.follow_ups.push(Fact::Surveyed);
        if self.node.surveys.under_way.remove(&device) == Some(true) {
            self.survey(device);
        }
    }
}
