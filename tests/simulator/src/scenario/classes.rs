//! Draws the classes and weights of tenants: from the configuration, from an earlier life of the daemon, and as operators
//! change them.

use std::time::Duration;

use broker_core::{Config, PressureBounds, Standing, StoredQuotas, StoredTenant, TenantClass, TenantWeight};

use vramd_types::Bytes;

use super::{Seat, TENANTS};
use crate::dice::Dice;

/// A stream of its own: worlds in which all tenants are equal are the same as before there were classes.
const STREAM: u64 = 20;

/// One in this many worlds has unequal tenants.
const ONE_IN: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub struct Classes {
    /// Of a thousand acts of operators, how many change the class or the weight of a tenant.
    pub changes: u64,
    /// Whether all tenants are of one class, so that weights alone decide.
    pub only_weights: bool,
    /// Whether all tenants ask ahead all the time, for parts of one device, which pressure keeps half full.
    pub is_contended: bool,
    /// How soon parts are cold there.
    cold_after: Duration,
}

impl Classes {
    pub(super) fn draw(config: &mut Config, stored: &mut StoredQuotas, seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        if dice.roll(ONE_IN) != 0 {
            return None;
        }
        let classes = Self {
            changes: dice.one(&[0, 20, 100]),
            only_weights: dice.chance(250),
            is_contended: dice.chance(500),
            cold_after: Duration::from_millis(dice.one(&[1, 5, 20])),
        };
        for tenant in TENANTS {
            if dice.chance(700) {
                config.tenants.insert(tenant.to_owned(), classes.some(&mut dice));
            }
            if dice.chance(300) {
                let standing = classes.some(&mut dice);
                stored.tenants.push(StoredTenant { tenant: tenant.to_owned(), standing });
            }
        }
        Some(classes)
    }

    /// Lets every tenant sit at a seat with pins, and see every device.
    pub(super) fn apply_to(self, config: &mut Config, seats: &mut Vec<Seat>, tenants: &[&'static str]) {
        if !self.is_contended {
            return;
        }
        config.devices.truncate(1);
        while seats.len() < tenants.len() {
            seats.push(seats[0].clone());
        }
        for (seat, tenant) in seats.iter_mut().zip(tenants.iter().cycle()) {
            (seat.tenant, seat.pins, seat.devices) = (tenant, true, None);
        }
        config.pressure = PressureBounds {
            elevated_percent: 40,
            high_percent: 60,
            critical_percent: 80,
            fall_percent: 5,
            evict_to_percent: 50,
            cold_after: self.cold_after,
            ..config.pressure
        };
        for device in &mut config.devices {
            device.host = device.host.max(Bytes::new(device.total.get() * 2));
        }
    }

    fn some(self, dice: &mut Dice) -> Standing {
        let class = if self.only_weights { TenantClass::Initiated } else { dice.one(&TenantClass::ALL) };
        Standing { class, weight: some_weight(dice), ..Standing::default() }
    }
}

pub(crate) fn some_weight(dice: &mut Dice) -> TenantWeight {
    TenantWeight::new(dice.one(&[1, 10, 100, 100, 300, 10_000])).unwrap_or_default()
}
