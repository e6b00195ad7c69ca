//! Who goes next on a link that copies of several classes share.
//!
//! A [`Link`] is asked before each chunk of a copy is begun. It is pure: what waits, and the time, are told by who asks. So the
//! lanes of the drivers and the simulator have the same order.
//!
//! - Classes go in their order: demand, prefetch, write-back.
//! - A class that has had less than its share while it waited goes first until it has had it; prefetches never before demand.
//! - What a class does not want is lent to the others, and a class that begins to wait again has nothing saved up.
//! - Whoever has waited for [`STANDS_AT_MOST`], and was passed by [`PASSED_AT_MOST`] chunks meanwhile or sees none begun for as long,
//!   goes first with one, so that nothing stands for ever.
//!
//! Where several lanes share a link, each asks it for every chunk of its own, and tells it when that has ended. Demand is never held
//! back by another lane. The others go when it is their turn and no demand is under way, or when the link has room beside what is.

#![forbid(unsafe_code)]

#[macro_use]
mod planted;
mod waiting;

use std::time::Duration;

use vramd_types::{Bytes, CopyClass, Shares};

#[cfg(feature = "planted")]
pub use planted::Flaw;
pub use waiting::Waiting;

/// So long a class that waits has nothing.
pub const STANDS_AT_MOST: Duration = Duration::from_secs(1);

/// On a slow link longer, while no more chunks than that are begun of others.
pub const PASSED_AT_MOST: u32 = 16;

/// So much more than it carries may be begun on a link whose speed is known: then it never stands idle between two chunks.
const AHEAD: Duration = Duration::from_millis(1);

/// The rank of who is owed nothing.
const IN_ORDER: u8 = 2;

/// What a class is owed at most, in chunks.
const OWED_CHUNKS_MAX: u64 = 4;

#[derive(Clone, Debug)]
pub struct Link {
    shares: Shares,
    /// What is begun at once of what nobody waits for.
    chunk: Bytes,
    /// What was begun of other classes and belonged to this one, of which something waited: in hundredths of a byte.
    owed: [u64; CopyClass::COUNT],
    /// Since it began to wait, or had a chunk for the last time.
    stands: [Option<Stand>; CopyClass::COUNT],
    speed: Option<Speed>,
    #[cfg(feature = "planted")]
    planted: Option<Flaw>,
}

#[derive(Clone, Copy, Debug)]
struct Stand {
    since: Duration,
    /// The chunks of others, and when the last of them was begun.
    passed: u32,
    last: Duration,
}

/// Of a link that several lanes share.
#[derive(Clone, Debug)]
struct Speed {
    /// Bytes per second.
    carries: u64,
    /// When what was begun should have crossed it: never later than what is under way now would take.
    through: Duration,
    /// Bytes of each class that were begun and have not ended.
    under_way: [u64; CopyClass::COUNT],
}

impl Speed {
    fn takes(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.carries);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Link {
    /// Of one lane, which knows what is under way there.
    pub fn of_lane(shares: Shares, chunk: Bytes) -> Self {
        let (owed, stands) = ([0; CopyClass::COUNT], [None; CopyClass::COUNT]);
        Self {
            shares,
            chunk,
            owed,
            stands,
            speed: None,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }

    /// Of several lanes, which carries so many bytes per second.
    pub fn shared(shares: Shares, chunk: Bytes, carries: u64) -> Self {
        let under_way = [0; CopyClass::COUNT];
        let speed = Some(Speed { carries: carries.max(1), through: Duration::ZERO, under_way });
        Self { speed, ..Self::of_lane(shares, chunk) }
    }

    pub fn share_by(&mut self, shares: Shares) {
        self.shares = shares;
        self.owed = [0; CopyClass::COUNT];
    }

    /// The classes of which something waits, those that go first before the others.
    pub fn order(&self, now: Duration, waiting: Waiting) -> impl Iterator<Item = CopyClass> {
        let mut order = CopyClass::ALL;
        order.sort_by_key(|class| self.rank(*class, now, waiting));
        order.into_iter().filter(move |class| waiting.has(*class))
    }

    /// Whether a chunk of that class, which waits, may be begun now by one of the lanes that share it.
    pub fn permits(&self, now: Duration, class: CopyClass, waiting: Waiting) -> bool {
        if class == CopyClass::Demand {
            return true;
        }
        let has_room = self.speed.as_ref().is_some_and(|speed| speed.through <= now.saturating_add(AHEAD));
        // How fast a link is may have been measured badly: alone, a class goes as fast as it can.
        let crosses_demand =
            self.speed.as_ref().is_some_and(|speed| speed.under_way[CopyClass::Demand.index()] > 0);
        let is_next = self.order(now, waiting).next() == Some(class);
        has_room || is_next && (!crosses_demand || self.rank(class, now, waiting) < IN_ORDER)
    }

    /// What waits from now on. Who waits no more saves nothing up.
    pub fn waits(&mut self, now: Duration, waiting: Waiting) {
        for class in CopyClass::ALL {
            let at = class.index();
            match waiting.has(class) {
                true => _ = self.stands[at].get_or_insert(Stand { since: now, passed: 0, last: now }),
                false if planted!(self, ShareSavedUp) => self.stands[at] = None,
                false => (self.stands[at], self.owed[at]) = (None, 0),
            }
        }
    }

    /// A chunk of that class was begun, while this still waited: that class too, if it has more.
    pub fn begun(&mut self, now: Duration, class: CopyClass, length: Bytes, waiting: Waiting) {
        self.waits(now, waiting.with(class));
        let saves_up = planted!(self, ShareSavedUp);
        let has_part = |other: &CopyClass| saves_up || waiting.has(*other) || *other == class;
        for other in CopyClass::ALL.into_iter().filter(has_part) {
            let at = other.index();
            // Of what demand has nothing belongs to a prefetch.
            let has_share = (class, other) != (CopyClass::Demand, CopyClass::Prefetch);
            let percent = if has_share { self.shares.percent(other) } else { 0 };
            let share = length.get().saturating_mul(u64::from(percent));
            let share = if planted!(self, ShareLentForEver) { 0 } else { share };
            let paid = if other == class { length.get().saturating_mul(100) } else { 0 };
            let owed = self.owed[at].saturating_add(share).saturating_sub(paid);
            let at_most = if saves_up { u64::MAX } else { self.chunk_owed() * OWED_CHUNKS_MAX };
            self.owed[at] = owed.min(at_most);
            if let Some(stand) = &mut self.stands[at] {
                let passed = stand.passed.saturating_add(1);
                *stand = match other == class {
                    true => Stand { since: now, passed: 0, last: now },
                    false => Stand { passed, last: now, ..*stand },
                };
            }
        }
        if let Some(speed) = &mut self.speed {
            speed.through = now.max(speed.through).saturating_add(speed.takes(length.get()));
            let under_way = &mut speed.under_way[class.index()];
            *under_way = under_way.saturating_add(length.get());
        }
    }

    /// One that was begun as that class has ended, well or not.
    pub fn ended(&mut self, now: Duration, class: CopyClass, length: Bytes) {
        if let Some(speed) = &mut self.speed {
            let under_way = &mut speed.under_way[class.index()];
            *under_way = under_way.saturating_sub(length.get());
            let all = speed.under_way.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
            speed.through = speed.through.min(now.saturating_add(speed.takes(all)));
        }
    }

    /// The lower, the sooner.
    fn rank(&self, class: CopyClass, now: Duration, waiting: Waiting) -> u8 {
        let at = class.index();
        let stands = class != CopyClass::Demand
            && self.stands[at].is_some_and(|stand| {
                let for_long = |since: Duration| now.saturating_sub(since) >= STANDS_AT_MOST;
                for_long(stand.since) && (stand.passed >= PASSED_AT_MOST || for_long(stand.last))
            });
        let behind_demand = class == CopyClass::Prefetch && waiting.has(CopyClass::Demand);
        let is_owed = self.owed[at] >= self.chunk_owed() && !behind_demand;
        let is_owed = is_owed || behind_demand && planted!(self, PrefetchBeforeDemand);
        match (stands, is_owed) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => IN_ORDER,
        }
    }

    fn chunk_owed(&self) -> u64 {
        self.chunk.get().saturating_mul(100)
    }
}

#[cfg(test)]
mod tests;
