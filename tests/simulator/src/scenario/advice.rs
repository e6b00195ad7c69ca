//! Draws whether owners advise how their memory is used, how often, and whether operators overrule them.

use broker_core::{AdvicePermission, Config, StoredQuotas};

use super::TENANTS;
use crate::dice::Dice;

/// A stream of its own: worlds without advice are the same as before it existed.
const STREAM: u64 = 6;

/// One in this many worlds has owners that advise.
const ONE_IN: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Advising {
    /// Of a thousand requests, how many are advice.
    pub rate: u64,
    /// Of a thousand pieces of advice, how many set access in place.
    pub sets: u64,
    /// The host tier is at least as large as the device.
    roomy: bool,
}

impl Advising {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        let is_there = dice.roll(ONE_IN) == 0;
        let advising =
            Self { rate: dice.one(&[50, 150, 400]), sets: dice.one(&[500, 800]), roomy: dice.chance(500) };
        is_there.then_some(advising)
    }

    pub(super) fn apply_to(&self, config: &mut Config) {
        for device in &mut config.devices {
            if self.roomy {
                device.host = device.host.max(device.total);
            }
        }
    }
}

/// A stream of its own, for the same reason.
const RETAINING_STREAM: u64 = 17;

/// Owners that advise which parts leave first.
#[derive(Clone, Copy, Debug)]
pub struct Retaining {
    /// Of a thousand requests, how many are such advice.
    pub rate: u64,
}

impl Retaining {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, RETAINING_STREAM);
        (dice.roll(ONE_IN) == 0).then(|| Self { rate: dice.one(&[50, 150, 400]) })
    }
}

/// A stream of its own, for the same reason.
const OVERRULING_STREAM: u64 = 22;

/// One in this many worlds with such advice has operators who overrule it.
const OVERRULED_ONE_IN: u64 = 2;

/// Operators that forbid the advice of tenants, and advise in the owners' stead.
#[derive(Clone, Copy, Debug)]
pub struct Overruling {
    /// Of a thousand acts of operators, how many forbid or allow the advice of a tenant.
    pub permissions: u64,
    /// Of a thousand acts of operators, how many advise, or clear that.
    pub advice: u64,
}

impl Overruling {
    pub(super) fn draw(config: &mut Config, stored: &mut StoredQuotas, seed: u64) -> Option<Self> {
        Retaining::draw(seed)?;
        let mut dice = Dice::new(seed, OVERRULING_STREAM);
        if dice.roll(OVERRULED_ONE_IN) != 0 {
            return None;
        }
        for tenant in TENANTS {
            if dice.chance(150) {
                config.tenants.entry(tenant.to_owned()).or_default().advice = AdvicePermission::Forbidden;
            }
        }
        for row in &mut stored.tenants {
            row.standing.advice = dice.one(&AdvicePermission::ALL);
        }
        Some(Self { permissions: dice.one(&[20, 60, 150]), advice: dice.one(&[0, 20, 150]) })
    }
}
