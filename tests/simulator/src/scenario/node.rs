//! The node of a world: small devices and narrow bounds, so that everything that can be full is full
//! sometimes.

use std::time::Duration;

use broker_core::{
    Config, DeviceConfig, EvictionPolicy, Limits, PartRef, PressureBounds, StoredQuota, StoredQuotas, Tier,
};
use vramd_types::{AllocationId, Bytes, IdSource, PartIndex, Quantity, Shares};

use super::TENANTS;
use crate::dice::Dice;

pub(super) fn config(dice: &mut Dice) -> Config {
    let devices = (0..dice.between(1, 2))
        .map(|index| {
            let total = Bytes::mib(32 + dice.small(12) * 16);
            let share = match dice.chance(300) {
                true => Bytes::new(total.get() / 10 * 9),
                false => total,
            };
            DeviceConfig {
                uuid: format!("GPU-{index}"),
                name: "sim".to_owned(),
                total,
                share,
                host: match dice.roll(9) {
                    0 | 1 => Bytes::ZERO,
                    2 | 3 => Bytes::mib(4 + dice.small(12)),
                    4 => total,
                    5 | 6 => Bytes::new(total.get() * 2),
                    _ => Bytes::new(total.get() * 4),
                },
                disk: match dice.roll(8) {
                    0..3 => Bytes::ZERO,
                    3 | 4 => Bytes::mib(4 + dice.small(12)),
                    5 => total,
                    _ => Bytes::new(total.get() * 4),
                },
                context_bytes: if dice.chance(250) { Bytes::mib(2) } else { Bytes::ZERO },
                maps_host: true,
                makes_fixed: dice.chance(600),
            }
        })
        .collect();
    Config {
        boot_epoch: 1,
        devices,
        part_size: Bytes::mib(dice.one(&[2, 4, 8])),
        default_limit: dice.one(&[
            Quantity::Percent(100),
            Quantity::Percent(100),
            Quantity::Percent(60),
            Quantity::Bytes(Bytes::mib(24)),
        ]),
        default_host_limit: dice.one(&[
            Quantity::Percent(100),
            Quantity::Percent(60),
            Quantity::Bytes(Bytes::mib(24)),
        ]),
        default_disk_limit: dice.one(&[
            Quantity::Percent(100),
            Quantity::Percent(60),
            Quantity::Bytes(Bytes::mib(24)),
        ]),
        sessions_reserved: dice.small(3),
        eviction: EvictionPolicy::Lru,
        victim_script: victim_script(dice),
        check_clean_backings: false,
        files: false,
        pressure: PressureBounds::default(),
        shares: Shares::default(),
        tenants: std::collections::BTreeMap::new(),
        limits: limits(dice),
    }
}

/// The bounds of the pressure levels, and how soon a part is cold; in some worlds none ever is.
pub(crate) fn pressure(dice: &mut Dice) -> PressureBounds {
    let (elevated_percent, high_percent, critical_percent, fall_percent, evict_to_percent) =
        dice.one(&[(80, 90, 95, 3, 85), (40, 60, 80, 5, 50), (10, 20, 30, 2, 15), (60, 80, 100, 10, 65)]);
    PressureBounds {
        elevated_percent,
        high_percent,
        critical_percent,
        fall_percent,
        evict_to_percent,
        cold_after: Duration::from_millis(dice.one(&[0, 1, 10, 100, 1000])),
        sample_interval: Duration::from_millis(dice.one(&[2, 10, 50])),
    }
}

/// A random order of eviction, or none: then the policy decides.
fn victim_script(dice: &mut Dice) -> Vec<PartRef> {
    if dice.chance(700) {
        return Vec::new();
    }
    let mut ids = IdSource::new(1);
    let ids: Vec<_> = std::iter::from_fn(|| ids.next_raw()).take(64).map(AllocationId::from_raw).collect();
    let part = |dice: &mut Dice| PartRef { allocation: dice.one(&ids), part: PartIndex(dice.small(4)) };
    (0..64).map(|_| part(dice)).collect()
}

fn limits(dice: &mut Dice) -> Limits {
    let mut limits = drawn_limits(dice);
    limits.cached_idle_for = limits.cached_for * 4;
    limits
}

fn drawn_limits(dice: &mut Dice) -> Limits {
    let mut one = |usual: usize, tight: usize| if dice.chance(200) { tight } else { usual };
    Limits {
        sessions_max: one(32, 4),
        sessions_per_tenant_max: one(16, 3),
        allocations_per_tenant_max: one(200, 12),
        parts_per_tenant_max: one(1000, 24),
        extents_max: one(2000, 40),
        batch_items_max: one(16, 3),
        readers_max: one(8, 1),
        pending_requests_max: one(64, 8),
        pending_requests_per_tenant_max: one(32, 5),
        fds_in_flight_max: one(64, 4),
        fds_in_flight_per_tenant_max: one(32, 2),
        pins_waiting_max: one(16, 2),
        words_per_session_max: if dice.chance(150) { 6 } else { 128 },
        pin_stall: Duration::from_millis(dice.one(&[1, 3, 10])),
        map_answer_timeout: Duration::from_millis(dice.one(&[5, 20, 60])),
        revoke_answer_timeout: Duration::from_millis(dice.one(&[5, 15, 40])),
        unmap_answer_timeout: Duration::from_millis(dice.one(&[2, 5, 40])),
        end_silent_after: Duration::from_millis(dice.one(&[0, 0, 0, 100])),
        survey_interval: Duration::from_millis(dice.one(&[20, 50, 200])),
        cached_bytes_per_tenant_max: Bytes::mib(dice.one(&[0, 0, 8, 64])),
        cached_for: Duration::from_millis(dice.one(&[5, 50, 500])),
        pin_parts_waiting_max: dice.one(&[4, 48, 48, 48]),
        ..Limits::default()
    }
}

/// Quotas from an earlier life of the daemon, small enough to be backed.
pub(super) fn stored(dice: &mut Dice, config: &Config) -> StoredQuotas {
    let has_host = config.devices.iter().any(|device| !device.host.is_zero());
    let has_disk = config.devices.iter().any(|device| !device.disk.is_zero());
    let mut quotas = Vec::new();
    for tenant in TENANTS {
        if dice.chance(400) {
            let device = match dice.roll(4) {
                0 | 1 => "*".to_owned(),
                2 => config.devices[0].uuid.clone(),
                _ => "GPU-absent".to_owned(),
            };
            let guarantee = Quantity::Bytes(Bytes::mib(dice.small(4) * 2));
            let limit = Quantity::Bytes(Bytes::mib(8 + dice.small(40)));
            quotas.push(StoredQuota {
                tenant: tenant.to_owned(),
                device,
                tier: Tier::Device,
                guarantee,
                limit,
            });
        }
        for (tier, is_there) in [(Tier::Host, has_host), (Tier::Disk, has_disk)] {
            if is_there && dice.chance(300) {
                quotas.push(StoredQuota {
                    tenant: tenant.to_owned(),
                    device: "*".to_owned(),
                    tier,
                    guarantee: Quantity::Bytes(Bytes::ZERO),
                    limit: Quantity::Bytes(Bytes::mib(dice.small(32))),
                });
            }
        }
    }
    StoredQuotas { quotas, ..StoredQuotas::default() }
}
