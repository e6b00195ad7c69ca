//! `ChangeSettings`: levels of pressure, sizes of tiers, shares of links and the eviction policy, changed at run time.
//!
//! A change takes effect whole or not at all. A tier that becomes smaller than its charges keeps them: the
//! daemon admits only guaranteed bytes there, and cold parts leave as under any pressure.

use crate::{
    broker::Broker,
    command::{Command, Notice},
    error::Refusal,
    follow_up::Fact,
    handler::{Start, Started},
    ledger::Place,
    settings::{Settings, SettingsChange},
    tenancy::Outcome,
};

impl Broker {
    /// The settings in force.
    pub const fn settings(&self) -> Settings {
        self.node.settings
    }

    /// The settings of the configuration file, which apply again after the next start. No tier can be larger
    /// than here.
    pub fn configured_settings(&self) -> Settings {
        Settings::of(&self.config)
    }

    pub(crate) fn change_settings(&mut self, uid: u32, change: &SettingsChange) -> Start {
        let before = self.node.settings;
        let after = before.changed(change, &self.configured_settings())?;
        planted!(self, SettingsHalfApplied => self.node.settings.pressure = after.pressure);
        self.check_guarantees_with(&after)?;
        if after != before {
            self.node.settings = after;
            if after.shares != before.shares {
                self.push_command(Command::ShareLinks(after.shares));
                planted!(self, SharesUnreported => _ = self.shell.outbox.pop_back());
            }
            if after.eviction_policy != before.eviction_policy {
                self.usage.residents.change_policy(after.eviction_policy);
                planted!(self, ResidentsLostWithPolicy => self.usage.residents.lose_order());
            }
            let (before, after) = (Box::new(before), Box::new(after));
            let is_smaller = after.tiers.host < before.tiers.host || after.tiers.disk < before.tiers.disk;
            self.push_notice(Notice::SettingsChanged { uid, before, after });
            self.apply_settings(is_smaller);
        }
        Ok(Started::Done(Outcome::SettingsChanged))
    }

    /// Refuses a tier that is smaller than the guarantees there.
    fn check_guarantees_with(&self, after: &Settings) -> Result<(), Refusal> {
        for (place, balances) in self.ledger.places() {
            let Some(requested) = after.tiers.of(place.tier) else { continue };
            let guaranteed = balances.guaranteed();
            if requested < balances.offered() && requested < guaranteed {
                let device = self.uuid(place.device).to_owned();
                return Err(Refusal::TierGuaranteed { device, tier: place.tier, guaranteed, requested });
            }
        }
        Ok(())
    }

    /// Applies the settings to everything that depends on them, now.
    fn apply_settings(&mut self, is_smaller: bool) {
        let places: Vec<Place> = self.ledger.places().map(|(place, _)| place).collect();
        for place in places.iter().copied() {
            let Some(offered) = self.node.settings.tiers.of(place.tier) else { continue };
            let before = self.fill(place);
            self.withhold(place, |ledger| ledger.set_offered(place, offered));
            self.note_resized(place, before);
        }
        if is_smaller {
            self.refuse_batches_without_room_below();
        }
        self.follow_ups.push(Fact::SettingsChanged);
        self.node.pressure.tried.clear();
        self.node.pressure.failed.clear();
        self.node.pressure.scanned_to.clear();
        for place in places.iter().copied() {
            self.follow_ups.push(Fact::PressureDue(place));
        }
        planted!(self, SettingsAppliedLate => return);
        places.into_iter().for_each(|place| self.follow_ups.push(Fact::BalanceChanged(place)));
    }
}
