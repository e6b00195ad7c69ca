//! Converts settings to messages.

use broker_core::{EvictionPolicy, PressureBounds, Settings, TierSettings};
use vramd_proto::v1;
use vramd_types::{CopyClass, Shares};

/// Converts all settings.
pub(crate) fn settings(settings: &Settings) -> v1::Settings {
    let Settings { pressure, tiers, shares, eviction_policy } = settings;
    v1::Settings {
        pressure: Some(of_pressure(pressure)),
        tiers: Some(of_tiers(*tiers)),
        shares: Some(of_shares(*shares)),
        eviction: Some(v1::EvictionSettings { policy: Some(of_policy(*eviction_policy).into()) }),
    }
}

fn of_pressure(bounds: &PressureBounds) -> v1::PressureSettings {
    v1::PressureSettings {
        elevated_percent: Some(bounds.elevated_percent),
        high_percent: Some(bounds.high_percent),
        critical_percent: Some(bounds.critical_percent),
        fall_percent: Some(bounds.fall_percent),
        evict_to_percent: Some(bounds.evict_to_percent),
        cold_after_ms: Some(u64::try_from(bounds.cold_after.as_millis()).unwrap_or(u64::MAX)),
    }
}

/// The message's policies have the names of the core's, which a test checks.
fn of_policy(policy: EvictionPolicy) -> v1::EvictionPolicy {
    v1::EvictionPolicy::named(policy.name()).unwrap_or_default()
}

fn of_shares(shares: Shares) -> v1::ShareSettings {
    let [demand_percent, prefetch_percent, write_back_percent] =
        CopyClass::ALL.map(|class| Some(shares.percent(class)));
    v1::ShareSettings { demand_percent, prefetch_percent, write_back_percent }
}

fn of_tiers(tiers: TierSettings) -> v1::TierSettings {
    v1::TierSettings { host_bytes: Some(tiers.host.get()), disk_bytes: Some(tiers.disk.get()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_of_the_core_has_a_message_and_the_other_way_round() {
        let of_core: Vec<_> = EvictionPolicy::ALL.map(of_policy).into();
        assert_eq!(of_core, v1::EvictionPolicy::all().collect::<Vec<_>>());
        for message in v1::EvictionPolicy::all() {
            assert_eq!(message.name().parse().map(of_policy), Ok(message));
        }
    }
}
