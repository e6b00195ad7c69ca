//! Draws whether a session and operators make as many requests as the daemon remembers, and repeat the oldest.

use broker_core::{RequestKey, StoredChange, StoredRequest, Tier};

use super::TENANTS;
use crate::dice::Dice;

/// A stream of its own: worlds without such requests are the same as before they existed.
const STREAM: u64 = 8;

/// One in this many worlds has such requests.
const ONE_IN: u64 = 8;

/// How many requests of a uid were stored by earlier lives of the daemon: one fewer than it remembers.
const STORED: u64 = 1023;

#[derive(Clone, Copy, Debug)]
pub struct Insistence {
    /// Microseconds until they begin.
    pub begins_micros: u64,
}

impl Insistence {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        let is_there = dice.roll(ONE_IN) == 0;
        is_there.then_some(Self { begins_micros: dice.between(5_000, 40_000) })
    }

    /// Requests of operators that earlier lives of the daemon have stored.
    pub(super) fn stored(&self) -> Vec<StoredRequest> {
        let request = |number: u64| {
            let RequestKey { id, fingerprint } = Self::stored_key(number);
            let tenant = TENANTS[usize::try_from(number).unwrap_or(0) % TENANTS.len()].to_owned();
            let (device, tier) = ("*".to_owned(), Tier::Device);
            let change = match number.is_multiple_of(3) {
                true => StoredChange::QuotaDeleted { device, tier },
                false => StoredChange::QuotaSet { device, tier },
            };
            StoredRequest { uid: 0, id, fingerprint, tenant, change }
        };
        (0..STORED).map(request).collect()
    }

    /// An id that no process uses.
    fn stored_key(number: u64) -> RequestKey {
        let mut id = [0xcc; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        RequestKey { id, fingerprint: id }
    }
}
