//! Draws the eviction policy of a world, and whether operators change it.

use broker_core::{Config, EvictionPolicy};

use crate::dice::Dice;

/// A stream of its own: other draws do not depend on it.
const STREAM: u64 = 16;

/// One in this many worlds has any of the policies, or several. Of the others each second one has the default, and the
/// rest LRU, of which oracles know the most.
const ONE_IN: u64 = 4;

/// Operators change the policy.
#[derive(Clone, Copy, Debug)]
pub struct Policies;

impl Policies {
    pub(super) fn draw(config: &mut Config, seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        if dice.roll(ONE_IN) != 0 {
            if dice.chance(500) {
                config.eviction = EvictionPolicy::default();
            }
            return None;
        }
        config.eviction = dice.one(&EvictionPolicy::ALL);
        dice.chance(500).then_some(Self)
    }
}
