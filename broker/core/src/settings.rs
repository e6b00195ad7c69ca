//! Settings: values that operators may change while the daemon runs. They begin as configured; a change lasts
//! until the daemon ends.
//!
//! Each group of settings has one struct for its values and one for a change of them.

use std::{fmt, time::Duration};

use vramd_types::{Bytes, CopyClass, GRANULARITY, Shares};

use crate::{
    config::Config,
    error::Refusal,
    event::Tier,
    eviction::EvictionPolicy,
    pressure::{InvalidBounds, PressureBounds},
};

/// All settings in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub pressure: PressureBounds,
    pub tiers: TierSettings,
    pub shares: Shares,
    pub eviction_policy: EvictionPolicy,
}

/// How many bytes of each tier below a device may be handed out, per device. The configured size is the
/// maximum, since the driver was opened with it. Zero closes the tier for new bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierSettings {
    pub host: Bytes,
    pub disk: Bytes,
}

/// A change of settings. Fields that are `None` keep their value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsChange {
    pub pressure: PressureChange,
    pub tiers: TierChange,
    pub shares: ShareChange,
    pub eviction_policy: Option<EvictionPolicy>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureChange {
    pub elevated_percent: Option<u32>,
    pub high_percent: Option<u32>,
    pub critical_percent: Option<u32>,
    pub fall_percent: Option<u32>,
    pub evict_to_percent: Option<u32>,
    pub cold_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierChange {
    pub host: Option<Bytes>,
    pub disk: Option<Bytes>,
}

/// In percent of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareChange {
    pub demand_percent: Option<u32>,
    pub prefetch_percent: Option<u32>,
    pub write_back_percent: Option<u32>,
}

impl Settings {
    pub(crate) fn of(config: &Config) -> Self {
        let largest = |of: fn(&crate::config::DeviceConfig) -> Bytes| {
            config.devices.iter().map(of).max().unwrap_or(Bytes::ZERO)
        };
        let tiers = TierSettings { host: largest(|device| device.host), disk: largest(|device| device.disk) };
        Self { pressure: config.pressure, tiers, shares: config.shares, eviction_policy: config.eviction }
    }

    /// Returns the settings after a change. It fails if the change contradicts other settings or the
    /// configuration.
    pub(crate) fn changed(&self, change: &SettingsChange, configured: &Self) -> Result<Self, Refusal> {
        if *change == SettingsChange::default() {
            return Err(Refusal::RequestInvalid {
                field: "change",
                problem: "the change is empty; name at least one setting",
            });
        }
        Ok(Self {
            pressure: change.pressure.applied_to(self.pressure)?,
            tiers: change.tiers.applied_to(self.tiers, configured.tiers)?,
            shares: change.shares.applied_to(self.shares)?,
            eviction_policy: change.eviction_policy.unwrap_or(self.eviction_policy),
        })
    }
}

/// The settings as one line of text, for the log.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pressure, tiers, shares, eviction_policy } = self;
        let [demand, prefetch, write_back] = CopyClass::ALL.map(|class| shares.percent(class));
        write!(
            f,
            "elevated {}%, high {}%, critical {}%, fall {}%, evict to {}%, cold after {} ms, host {}, disk {}, \
             demand {demand}%, prefetch {prefetch}%, write-back {write_back}%, eviction policy {eviction_policy}",
            pressure.elevated_percent,
            pressure.high_percent,
            pressure.critical_percent,
            pressure.fall_percent,
            pressure.evict_to_percent,
            pressure.cold_after.as_millis(),
            tiers.host,
            tiers.disk,
        )
    }
}

impl TierSettings {
    pub const fn of(&self, tier: Tier) -> Option<Bytes> {
        match tier {
            Tier::Device => None,
            Tier::Host => Some(self.host),
            Tier::Disk => Some(self.disk),
        }
    }
}

impl PressureChange {
    fn applied_to(&self, before: PressureBounds) -> Result<PressureBounds, Refusal> {
        let bounds = PressureBounds {
            elevated_percent: self.elevated_percent.unwrap_or(before.elevated_percent),
            high_percent: self.high_percent.unwrap_or(before.high_percent),
            critical_percent: self.critical_percent.unwrap_or(before.critical_percent),
            fall_percent: self.fall_percent.unwrap_or(before.fall_percent),
            evict_to_percent: self.evict_to_percent.unwrap_or(before.evict_to_percent),
            cold_after: self.cold_after.unwrap_or(before.cold_after),
            sample_interval: before.sample_interval,
        };
        match bounds.first_problem() {
            None => Ok(bounds),
            Some(wrong) => Err(self.refused(bounds, wrong)),
        }
    }

    /// At least one of the fields in question is in the change, since the settings before it were valid.
    fn refused(&self, bounds: PressureBounds, InvalidBounds { fields, problem }: InvalidBounds) -> Refusal {
        let named = fields.iter().find(|field| self.names(field));
        let field = named.or_else(|| fields.first()).copied().unwrap_or_default();
        let given = bounds.percent(field).map_or_else(String::new, |percent| percent.to_string());
        let allowed = bounds.allowed(field).map_or_else(
            || "no value, given the others".to_owned(),
            |allowed| format!("{} to {}", allowed.start(), allowed.end()),
        );
        Refusal::SettingInvalid { field, given, allowed, problem }
    }

    fn names(&self, field: &str) -> bool {
        let given = match field {
            "elevated_percent" => self.elevated_percent,
            "high_percent" => self.high_percent,
            "critical_percent" => self.critical_percent,
            "fall_percent" => self.fall_percent,
            "evict_to_percent" => self.evict_to_percent,
            _ => None,
        };
        given.is_some()
    }
}

impl TierChange {
    fn applied_to(&self, before: TierSettings, max: TierSettings) -> Result<TierSettings, Refusal> {
        let checked = |field, tier, given: Option<Bytes>, before, max| match given {
            None => Ok(before),
            Some(bytes) => check_tier(field, tier, bytes, max),
        };
        Ok(TierSettings {
            host: checked("host_bytes", Tier::Host, self.host, before.host, max.host)?,
            disk: checked("disk_bytes", Tier::Disk, self.disk, before.disk, max.disk)?,
        })
    }
}

impl ShareChange {
    fn applied_to(&self, before: Shares) -> Result<Shares, Refusal> {
        let given = [
            ("demand_percent", self.demand_percent),
            ("prefetch_percent", self.prefetch_percent),
            ("write_back_percent", self.write_back_percent),
        ];
        let with = |given: Option<u32>, class| given.unwrap_or_else(|| before.percent(class));
        let demand = with(self.demand_percent, CopyClass::Demand);
        let prefetch = with(self.prefetch_percent, CopyClass::Prefetch);
        let write_back = with(self.write_back_percent, CopyClass::WriteBack);
        Shares::new(demand, prefetch, write_back).map_err(|error| {
            // The largest of the changed shares is at fault: without a change the shares were valid.
            let named = given.into_iter().filter_map(|(field, given)| Some((field, given?)));
            let (field, given) = named.max_by_key(|(_, percent)| *percent).unwrap_or_default();
            let others =
                [demand, prefetch, write_back].into_iter().fold(0, u32::saturating_add).saturating_sub(given);
            let allowed = match 100_u32.checked_sub(others) {
                Some(max) => format!("0 to {max}"),
                None => "no value, given the others".to_owned(),
            };
            Refusal::SettingInvalid { field, given: given.to_string(), allowed, problem: error.to_string() }
        })
    }
}

/// Checks the new size of a tier. `max` is the configured size.
fn check_tier(field: &'static str, tier: Tier, bytes: Bytes, max: Bytes) -> Result<Bytes, Refusal> {
    if max.is_zero() {
        return Err(Refusal::TierUnsupported { tier });
    }
    let problem = if bytes > max {
        format!("{bytes} exceeds the configured {max}; a restart with another configuration can raise it")
    } else if !bytes.is_multiple_of(GRANULARITY) {
        format!("{bytes} is not a multiple of {GRANULARITY}")
    } else {
        return Ok(bytes);
    };
    let allowed = format!("0 to {}, multiples of {}", max.get(), GRANULARITY.get());
    Err(Refusal::SettingInvalid { field, given: bytes.get().to_string(), allowed, problem })
}
