//! One link: what each class has had of it, and what is under way there.

use std::time::Duration;

use vramd_types::{Bytes, CopyClass, Shares};

#[cfg(feature = "planted")]
use crate::Flaw;
use crate::{PASSED_AT_MOST, STANDS_AT_MOST};

/// So much more than it carries may be begun on a link whose speed is known: then it never stands idle between two chunks.
const AHEAD: Duration = Duration::from_millis(1);

/// What a class is owed at most, in chunks.
const OWED_CHUNKS_MAX: u64 = 4;

/// What the lanes in which each class waits could fill of a link together, in percent; nothing of what does not wait.
pub(crate) type Wanted = [u32; CopyClass::COUNT];

#[derive(Clone, Debug)]
pub(crate) struct Link {
    shares: Shares,
    /// What is begun at once of what nobody waits for.
    chunk: Bytes,
    wanted: Wanted,
    /// What was begun of other classes and belonged to this one, of which something waited: in hundredths of a byte.
    owed: [u64; CopyClass::COUNT],
    /// Since it began to wait, or had a chunk for the last time.
    stands: [Option<Stand>; CopyClass::COUNT],
    speed: Option<Speed>,
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<Flaw>,
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
    pub(crate) fn of_lane(shares: Shares, chunk: Bytes) -> Self {
        Self {
            shares,
            chunk,
            wanted: [0; CopyClass::COUNT],
            owed: [0; CopyClass::COUNT],
            stands: [None; CopyClass::COUNT],
            speed: None,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }

    /// Of several lanes, which carries so many bytes per second.
    pub(crate) fn shared(shares: Shares, chunk: Bytes, carries: u64) -> Self {
        let under_way = [0; CopyClass::COUNT];
        let speed = Some(Speed { carries: carries.max(1), through: Duration::ZERO, under_way });
        Self { speed, ..Self::of_lane(shares, chunk) }
    }

    pub(crate) fn share_by(&mut self, shares: Shares) {
        self.shares = shares;
        self.owed = [0; CopyClass::COUNT];
    }

    /// What waits from now on. Who waits no more saves nothing up.
    pub(crate) fn waits(&mut self, now: Duration, wanted: Wanted) {
        self.wanted = wanted;
        for at in CopyClass::ALL.map(CopyClass::index) {
            match wanted[at] > 0 {
                true => _ = self.stands[at].get_or_insert(Stand { since: now, passed: 0, last: now }),
                false if planted!(self, ShareSavedUp) => self.stands[at] = None,
                false => (self.stands[at], self.owed[at]) = (None, 0),
            }
        }
    }

    /// A chunk of that class was begun, while this still waited.
    pub(crate) fn begun(&mut self, now: Duration, class: CopyClass, length: Bytes) {
        let saves_up = planted!(self, ShareSavedUp);
        let wanted = self.wanted;
        let has_part = |other: &CopyClass| saves_up || wanted[other.index()] > 0;
        for other in CopyClass::ALL.into_iter().filter(has_part) {
            let at = other.index();
            let share = length.get().saturating_mul(u64::from(self.share_beside(class, other)));
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
    pub(crate) fn ended(&mut self, now: Duration, class: CopyClass, length: Bytes) {
        if let Some(speed) = &mut self.speed {
            let under_way = &mut speed.under_way[class.index()];
            *under_way = under_way.saturating_sub(length.get());
            let all = speed.under_way.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
            speed.through = speed.through.min(now.saturating_add(speed.takes(all)));
        }
    }

    /// Something of the class waits, and it has had nothing for so long that it may have one chunk.
    pub(crate) fn has_stood(&self, now: Duration, class: CopyClass) -> bool {
        let for_long = |since: Duration| now.saturating_sub(since) >= STANDS_AT_MOST;
        let has_stood = |it: Stand| for_long(it.since) && (it.passed >= PASSED_AT_MOST || for_long(it.last));
        class != CopyClass::Demand && self.stands[class.index()].is_some_and(has_stood)
    }

    /// Something of the class waits, or has had nothing, since then.
    pub(crate) fn stands_since(&self, class: CopyClass) -> Option<Duration> {
        self.stands[class.index()].map(|stand| stand.since)
    }

    /// Something of the class waits, and it lacks a chunk of its share.
    pub(crate) fn is_owed(&self, class: CopyClass) -> bool {
        let behind_demand = class == CopyClass::Prefetch && self.has_waiting(CopyClass::Demand);
        match behind_demand {
            true => planted!(self, PrefetchBeforeDemand),
            false => self.owed[class.index()] >= self.chunk_owed(),
        }
    }

    /// Whether what goes in order is not begun now by one of the lanes that share it.
    pub(crate) fn holds_back(&self, now: Duration, class: CopyClass) -> bool {
        let Some(speed) = self.speed.as_ref().filter(|_| class != CopyClass::Demand) else { return false };
        let has_room = speed.through <= now.saturating_add(AHEAD);
        // How fast a link is may have been measured badly: alone, a class goes as fast as it can.
        let crosses_demand = speed.under_way[CopyClass::Demand.index()] > 0;
        let is_next = !CopyClass::ALL.into_iter().any(|other| other < class && self.has_waiting(other));
        !(has_room || is_next && !crosses_demand)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.speed.is_some()
    }

    fn has_waiting(&self, class: CopyClass) -> bool {
        self.wanted[class.index()] > 0
    }

    /// What belongs to a class of what is begun of another, in percent: no more than its lanes could take.
    fn share_beside(&self, begun: CopyClass, class: CopyClass) -> u32 {
        // Of what demand has nothing belongs to a prefetch.
        let has_share = (begun, class) != (CopyClass::Demand, CopyClass::Prefetch);
        // Who is to save up what it does not want has a share of that.
        let takes = if planted!(self, ShareSavedUp) { u32::MAX } else { self.wanted[class.index()] };
        let share = self.shares.percent(class).min(takes);
        if has_share && !planted!(self, ShareLentForEver) { share } else { 0 }
    }

    fn chunk_owed(&self) -> u64 {
        self.chunk.get().saturating_mul(100)
    }
}
