//! One link: what each class has had of it, and what is under way there.

use std::time::Duration;

use vramd_types::{Bytes, CopyClass, Shares};

#[cfg(feature = "planted")]
use crate::Flaw;
use crate::{STARVED_AFTER, STARVED_AFTER_CHUNKS};

/// So much more than it carries may be begun on a link whose speed is known: then it never stands idle between two chunks.
const AHEAD_MAX: Duration = Duration::from_millis(1);

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
    waits: [Option<Wait>; CopyClass::COUNT],
    pace: Option<Pace>,
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<Flaw>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Duration,
    /// The chunks of others, and when the last of them was begun.
    chunks_passed: u32,
    last_passed: Duration,
}

/// Of a link that several lanes share.
#[derive(Clone, Debug)]
struct Pace {
    /// Bytes per second.
    bytes_per_s: u64,
    /// When what was begun should have crossed it: never later than what is under way now would take.
    clear_at: Duration,
    /// Bytes of each class that were begun and have not ended.
    in_flight: [u64; CopyClass::COUNT],
}

impl Pace {
    fn duration_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
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
            waits: [None; CopyClass::COUNT],
            pace: None,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }

    /// Of several lanes, which carries so many bytes per second.
    pub(crate) fn shared(shares: Shares, chunk: Bytes, bytes_per_s: u64) -> Self {
        let in_flight = [0; CopyClass::COUNT];
        let pace = Some(Pace { bytes_per_s: bytes_per_s.max(1), clear_at: Duration::ZERO, in_flight });
        Self { pace, ..Self::of_lane(shares, chunk) }
    }

    pub(crate) fn set_shares(&mut self, shares: Shares) {
        self.shares = shares;
        self.owed = [0; CopyClass::COUNT];
    }

    /// What waits from now on. Who waits no more saves nothing up.
    pub(crate) fn set_waiting(&mut self, now: Duration, wanted: Wanted) {
        self.wanted = wanted;
        for at in CopyClass::ALL.map(CopyClass::index) {
            match wanted[at] > 0 {
                true => {
                    _ = self.waits[at].get_or_insert(Wait { since: now, chunks_passed: 0, last_passed: now })
                }
                false if planted!(self, ShareSavedUp) => self.waits[at] = None,
                false => (self.waits[at], self.owed[at]) = (None, 0),
            }
        }
    }

    /// A chunk of that class was begun, while this still waited.
    pub(crate) fn record_begin(&mut self, now: Duration, class: CopyClass, length: Bytes) {
        let saves_up = planted!(self, ShareSavedUp);
        let wanted = self.wanted;
        let has_part = |other: &CopyClass| saves_up || wanted[other.index()] > 0;
        for other in CopyClass::ALL.into_iter().filter(has_part) {
            let at = other.index();
            let share = length.get().saturating_mul(u64::from(self.share_of(class, other)));
            let served = if other == class { length.get().saturating_mul(100) } else { 0 };
            let owed = self.owed[at].saturating_add(share).saturating_sub(served);
            let at_most = if saves_up { u64::MAX } else { self.owed_per_chunk() * OWED_CHUNKS_MAX };
            self.owed[at] = owed.min(at_most);
            if let Some(wait) = &mut self.waits[at] {
                let chunks_passed = wait.chunks_passed.saturating_add(1);
                *wait = match other == class {
                    true => Wait { since: now, chunks_passed: 0, last_passed: now },
                    false => Wait { chunks_passed, last_passed: now, ..*wait },
                };
            }
        }
        if let Some(pace) = &mut self.pace {
            pace.clear_at = now.max(pace.clear_at).saturating_add(pace.duration_of(length.get()));
            let in_flight = &mut pace.in_flight[class.index()];
            *in_flight = in_flight.saturating_add(length.get());
        }
    }

    /// One that was begun as that class has ended, well or not.
    pub(crate) fn record_end(&mut self, now: Duration, class: CopyClass, length: Bytes) {
        if let Some(pace) = &mut self.pace {
            let in_flight = &mut pace.in_flight[class.index()];
            *in_flight = in_flight.saturating_sub(length.get());
            let all = pace.in_flight.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
            pace.clear_at = pace.clear_at.min(now.saturating_add(pace.duration_of(all)));
        }
    }

    /// Something of the class waits, and it has had nothing for so long that it may have one chunk.
    pub(crate) fn is_starved(&self, now: Duration, class: CopyClass) -> bool {
        let for_long = |since: Duration| now.saturating_sub(since) >= STARVED_AFTER;
        let is_starved = |it: Wait| {
            for_long(it.since) && (it.chunks_passed >= STARVED_AFTER_CHUNKS || for_long(it.last_passed))
        };
        class != CopyClass::Demand && self.waits[class.index()].is_some_and(is_starved)
    }

    /// Something of the class waits, or has had nothing, since then.
    pub(crate) fn waiting_since(&self, class: CopyClass) -> Option<Duration> {
        self.waits[class.index()].map(|wait| wait.since)
    }

    /// Something of the class waits, and it lacks a chunk of its share.
    pub(crate) fn is_owed(&self, class: CopyClass) -> bool {
        let behind_demand = class == CopyClass::Prefetch && self.is_wanted(CopyClass::Demand);
        match behind_demand {
            true => planted!(self, PrefetchBeforeDemand),
            false => self.owed[class.index()] >= self.owed_per_chunk(),
        }
    }

    /// Whether what goes in order is not begun now by one of the lanes that share it.
    pub(crate) fn holds_back(&self, now: Duration, class: CopyClass) -> bool {
        let Some(pace) = self.pace.as_ref().filter(|_| class != CopyClass::Demand) else { return false };
        let has_room = pace.clear_at <= now.saturating_add(AHEAD_MAX);
        // How fast a link is may have been measured badly: alone, a class goes as fast as it can.
        let crosses_demand = pace.in_flight[CopyClass::Demand.index()] > 0;
        let is_next = !CopyClass::ALL.into_iter().any(|other| other < class && self.is_wanted(other));
        !(has_room || is_next && !crosses_demand)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.pace.is_some()
    }

    fn is_wanted(&self, class: CopyClass) -> bool {
        self.wanted[class.index()] > 0
    }

    /// What belongs to a class of what is begun of another, in percent: no more than its lanes could take.
    fn share_of(&self, begun: CopyClass, class: CopyClass) -> u32 {
        // Of what demand has nothing belongs to a prefetch.
        let has_share = (begun, class) != (CopyClass::Demand, CopyClass::Prefetch);
        // Who is to save up what it does not want has a share of that.
        let wanted_max = if planted!(self, ShareSavedUp) { u32::MAX } else { self.wanted[class.index()] };
        let share = self.shares.percent(class).min(wanted_max);
        if has_share && !planted!(self, ShareLentForEver) { share } else { 0 }
    }

    fn owed_per_chunk(&self) -> u64 {
        self.chunk.get().saturating_mul(100)
    }
}
