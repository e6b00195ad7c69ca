//! Settings are those of the start plus every accepted change: the whole of a valid change, and nothing of
//! any other.

use broker_core::{
    Broker, Config, OperatorRequest, PressureBounds, PressureChange, Refusal, Settings, SettingsChange,
    ShareChange, Tier, TierSettings, Time, invariants::SETTINGS,
};
use vramd_types::{Bytes, CopyClass, GRANULARITY, Shares};

use crate::oracle::{Oracle, facts::Asked};

/// Settings in force now, and earlier ones where they still matter.
#[derive(Clone, Debug)]
pub(crate) struct SettingsFacts {
    pub(crate) now: Settings,
    configured: TierSettings,
    /// The shares that the driver was sent, just before the change that they belong to.
    shares_told: Option<Shares>,
    /// Earlier values of `cold_after`, and until when each held.
    colds: Vec<(Time, std::time::Duration)>,
}

impl SettingsFacts {
    pub(crate) fn new(config: &Config) -> Self {
        let largest = |of: fn(&broker_core::DeviceConfig) -> Bytes| {
            config.devices.iter().map(of).max().unwrap_or(Bytes::ZERO)
        };
        let tiers = TierSettings { host: largest(|it| it.host), disk: largest(|it| it.disk) };
        let now = Settings {
            pressure: config.pressure,
            tiers,
            shares: config.shares,
            eviction_policy: config.eviction,
        };
        Self { now, configured: tiers, shares_told: None, colds: Vec::new() }
    }

    /// The shortest time after which a part was cold at any moment since then, if any part ever was.
    pub(crate) fn cold_after(&self, since: Time) -> Option<std::time::Duration> {
        let before = self.colds.iter().filter(|(until, _)| *until >= since).map(|(_, cold)| *cold);
        before.chain([self.now.pressure.cold_after]).filter(|cold| !cold.is_zero()).min()
    }
}

impl Oracle {
    pub(crate) fn bounds(&self) -> &PressureBounds {
        &self.settings.now.pressure
    }

    /// Bytes of a tier that operators let the broker hand out.
    pub(crate) fn offered(&self, tier: Tier) -> u64 {
        match tier {
            Tier::Device => u64::MAX,
            Tier::Host => self.settings.now.tiers.host.get(),
            Tier::Disk => self.settings.now.tiers.disk.get(),
        }
    }

    /// Records the shares that the driver was sent. The change follows at once.
    pub(crate) fn record_driver_shares(&mut self, shares: Shares) {
        let before = self.settings.shares_told.replace(shares);
        self.expect(SETTINGS, before.is_none(), || {
            format!("shares are sent to the driver again: {shares:?}")
        });
    }

    /// Checks a reported change: it is the one just requested, and valid.
    pub(crate) fn check_settings_change(&mut self, before: &Settings, after: &Settings) {
        let known = self.settings.now;
        let asked = self.step.call.as_ref().and_then(|(_, call)| match &call.asked {
            Asked::Operator { request: OperatorRequest::ChangeSettings(change), .. } => Some(*change),
            _ => None,
        });
        let asked = asked.filter(|_| self.step.repeat.is_new());
        let expected = asked.map(|change| apply(&known, &change));
        let good = asked.is_some_and(|change| self.judge_change(&change));
        self.expect(SETTINGS, *before == known && Some(*after) == expected && good && before != after, || {
            format!(
                "settings go from {before:?} to {after:?}; they were {known:?}, and {asked:?} was requested"
            )
        });
        let reported = self.settings.shares_told.take();
        let should_be = (before.shares != after.shares).then_some(after.shares);
        self.expect(SETTINGS, reported == should_be, || {
            format!("the driver was sent shares {reported:?}, not {should_be:?}")
        });
        self.settings.colds.push((self.facts.now, known.pressure.cold_after));
        self.settings.now = *after;
        self.step.settings_changed = true;
        self.facts.idle_since.clear();
    }

    /// Whether the reply shows the settings in force, with the change made.
    pub(crate) fn matches_settings(&self, change: &SettingsChange, reported: &Settings) -> bool {
        let made = !self.step.repeat.is_new() || apply(&self.settings.now, change) == self.settings.now;
        *reported == self.settings.now && made
    }

    /// Checks that a refused change was invalid.
    pub(crate) fn check_settings_refusal(&mut self, change: &SettingsChange, refusal: &Refusal) {
        if matches!(refusal, Refusal::QueueFull { .. } | Refusal::RequestIdReused { .. }) {
            return;
        }
        let good = self.judge_change(change);
        self.expect(SETTINGS, !good, || format!("{change:?} is valid and is refused: {refusal:?}"));
    }

    /// Checks the settings that the core shows.
    pub(crate) fn check_settings(&mut self, broker: &Broker) {
        let (shown, known) = (broker.settings(), self.settings.now);
        self.expect(SETTINGS, shown == known, || format!("settings are {shown:?}, not {known:?}"));
    }

    fn judge_change(&mut self, change: &SettingsChange) -> bool {
        let (now, max) = (self.settings.now, self.settings.configured);
        let after = apply(&now, change);
        let tiers = [
            (Tier::Host, change.tiers.host, now.tiers.host, max.host),
            (Tier::Disk, change.tiers.disk, now.tiers.disk, max.disk),
        ];
        let fits = tiers.into_iter().all(|(tier, said, now, max)| {
            said.is_none_or(|said| {
                !max.is_zero()
                    && said <= max
                    && said.get() % GRANULARITY.get() == 0
                    && (said >= now || self.largest_guarantee(tier) <= said.get())
            })
        });
        let ShareChange { demand_percent, prefetch_percent, write_back_percent } = change.shares;
        let shares = [demand_percent, prefetch_percent, write_back_percent];
        let shares = shares.into_iter().zip(CopyClass::ALL);
        let percents = shares.map(|(said, class)| said.unwrap_or_else(|| now.shares.percent(class)));
        let shared = percents.fold(0, u32::saturating_add) <= 100;
        *change != SettingsChange::default() && has_ascending_levels(&after.pressure) && fits && shared
    }

    /// The sum of guarantees in that tier of a device, on the device where it is largest.
    fn largest_guarantee(&mut self, tier: Tier) -> u64 {
        self.learn_tenants();
        let places = 0..self.facts.places.len();
        let places: Vec<_> = places.filter(|place| self.facts.places[*place].tier == tier).collect();
        let mut largest = 0;
        for place in places {
            let tenants = 0..self.facts.tenants.len();
            let guaranteed: u64 = tenants.map(|tenant| self.quota_now(tenant, place).0).sum();
            largest = largest.max(guaranteed);
        }
        largest
    }
}

fn apply(settings: &Settings, change: &SettingsChange) -> Settings {
    let mut after = *settings;
    let PressureChange { elevated_percent, high_percent, critical_percent, .. } = change.pressure;
    let PressureChange { fall_percent, evict_to_percent, cold_after, .. } = change.pressure;
    let bounds = &mut after.pressure;
    for (percent, said) in [
        (&mut bounds.elevated_percent, elevated_percent),
        (&mut bounds.high_percent, high_percent),
        (&mut bounds.critical_percent, critical_percent),
        (&mut bounds.fall_percent, fall_percent),
        (&mut bounds.evict_to_percent, evict_to_percent),
    ] {
        *percent = said.unwrap_or(*percent);
    }
    bounds.cold_after = cold_after.unwrap_or(bounds.cold_after);
    after.eviction_policy = change.eviction_policy.unwrap_or(after.eviction_policy);
    after.tiers.host = change.tiers.host.unwrap_or(after.tiers.host);
    after.tiers.disk = change.tiers.disk.unwrap_or(after.tiers.disk);
    let ShareChange { demand_percent, prefetch_percent, write_back_percent } = change.shares;
    let said = [demand_percent, prefetch_percent, write_back_percent];
    let [demand, prefetch, write_back] = CopyClass::ALL.map(|class| {
        let said = said.get(class.index()).copied().flatten();
        said.unwrap_or_else(|| settings.shares.percent(class))
    });
    // Invalid shares make the change refused.
    after.shares = Shares::new(demand, prefetch, write_back).unwrap_or(settings.shares);
    after
}

/// Each level is entered above the one below it, and left above where that one is entered. The eviction
/// target ends level high.
fn has_ascending_levels(bounds: &PressureBounds) -> bool {
    let [elevated, high, critical, fall, evict_to] = [
        bounds.elevated_percent,
        bounds.high_percent,
        bounds.critical_percent,
        bounds.fall_percent,
        bounds.evict_to_percent,
    ]
    .map(i64::from);
    let percent = |it: i64| (1..=100).contains(&it);
    [elevated, high, critical, evict_to].into_iter().all(percent)
        && elevated - fall > 0
        && high - fall > elevated
        && critical - fall > high
        && evict_to < high - fall
}
