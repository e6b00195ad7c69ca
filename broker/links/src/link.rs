//! One link: the bytes that each class was owed and has had, and the chunks in flight.

use std::time::Duration;

use vramd_types::{Bytes, CopyClass, Shares};

use crate::{STARVED_AFTER, STARVED_AFTER_CHUNKS};

/// How far ahead of its measured speed a link is kept busy, so that it never idles between two chunks.
const AHEAD_MAX: Duration = Duration::from_millis(1);

/// The most that a class can be owed, in chunks.
const OWED_CHUNKS_MAX: u64 = 4;

/// For each class, how much of the link its waiting lanes could fill together, in percent; zero if the class
/// does not wait.
pub(crate) type Wanted = [u32; CopyClass::COUNT];

#[derive(Clone, Debug)]
pub(crate) struct Link {
    shares: Shares,
    /// The size of a background chunk.
    chunk: Bytes,
    wanted: Wanted,
    /// The bytes of other classes that were begun although they belonged to this waiting class, in hundredths
    /// of a byte.
    owed: [u64; CopyClass::COUNT],
    /// Since when each class waits: since its first request or its last chunk.
    waits: [Option<Wait>; CopyClass::COUNT],
    pace: Option<Pace>,
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<crate::Flaw>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Duration,
    /// How many chunks of other classes were begun meanwhile, and when the last one was.
    chunks_passed: u32,
    last_passed: Duration,
}

/// The measured speed of a shared link, and its load.
#[derive(Clone, Debug)]
struct Pace {
    /// Bytes per second.
    bytes_per_s: u64,
    /// When the link should have carried all begun chunks. Never later than the chunks in flight now would
    /// take.
    clear_at: Duration,
    /// Bytes in flight, by class.
    in_flight: [u64; CopyClass::COUNT],
}

impl Pace {
    fn duration_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Link {
    /// The link of one lane. The lane itself knows what is in flight.
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

    /// A link that several lanes share.
    pub(crate) fn shared(shares: Shares, chunk: Bytes, bytes_per_s: u64) -> Self {
        let in_flight = [0; CopyClass::COUNT];
        let pace = Some(Pace { bytes_per_s: bytes_per_s.max(1), clear_at: Duration::ZERO, in_flight });
        Self { pace, ..Self::of_lane(shares, chunk) }
    }

    pub(crate) fn set_shares(&mut self, shares: Shares) {
        self.shares = shares;
        self.owed = [0; CopyClass::COUNT];
    }

    /// Sets which classes wait from now on. A class that stops waiting loses what it was owed.
    pub(crate) fn set_waiting(&mut self, now: Duration, wanted: Wanted) {
        self.wanted = wanted;
        for at in CopyClass::ALL.map(CopyClass::index) {
            planted!(self, ShareSavedUp => if wanted[at] == 0 { self.waits[at] = None; continue });
            match wanted[at] > 0 {
                true => {
                    _ = self.waits[at].get_or_insert(Wait { since: now, chunks_passed: 0, last_passed: now })
                }
                false => (self.waits[at], self.owed[at]) = (None, 0),
            }
        }
    }

    /// Records that a chunk of that class has begun, while the classes still wait as set before.
    pub(crate) fn record_begin(&mut self, now: Duration, class: CopyClass, length: Bytes) {
        let wanted = self.wanted;
        planted!(self, ShareSavedUp => wanted = [u32::MAX; CopyClass::COUNT]);
        let has_part = |other: &CopyClass| wanted[other.index()] > 0;
        for other in CopyClass::ALL.into_iter().filter(has_part) {
            let at = other.index();
            let share = length.get().saturating_mul(u64::from(self.share_of(class, other)));
            let served = if other == class { length.get().saturating_mul(100) } else { 0 };
            let owed = self.owed[at].saturating_add(share).saturating_sub(served);
            let at_most = self.owed_per_chunk() * OWED_CHUNKS_MAX;
            planted!(self, ShareSavedUp => at_most = u64::MAX);
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

    /// Records the end of a chunk, by the class it was begun as, successful or not.
    pub(crate) fn record_end(&mut self, now: Duration, class: CopyClass, length: Bytes) {
        if let Some(pace) = &mut self.pace {
            let in_flight = &mut pace.in_flight[class.index()];
            *in_flight = in_flight.saturating_sub(length.get());
            let all = pace.in_flight.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
            pace.clear_at = pace.clear_at.min(now.saturating_add(pace.duration_of(all)));
        }
    }

    /// Whether the class has waited so long without a chunk that it may have one.
    pub(crate) fn is_starved(&self, now: Duration, class: CopyClass) -> bool {
        let for_long = |since: Duration| now.saturating_sub(since) >= STARVED_AFTER;
        let is_starved = |it: Wait| {
            for_long(it.since) && (it.chunks_passed >= STARVED_AFTER_CHUNKS || for_long(it.last_passed))
        };
        class != CopyClass::Demand && self.waits[class.index()].is_some_and(is_starved)
    }

    /// Since when the class waits without a chunk.
    pub(crate) fn waiting_since(&self, class: CopyClass) -> Option<Duration> {
        self.waits[class.index()].map(|wait| wait.since)
    }

    /// Whether the class waits and is owed a chunk of its share.
    pub(crate) fn is_owed(&self, class: CopyClass) -> bool {
        let behind_demand = class == CopyClass::Prefetch && self.is_wanted(CopyClass::Demand);
        planted!(self, PrefetchBeforeDemand => if behind_demand { return true });
        !behind_demand && self.owed[class.index()] >= self.owed_per_chunk()
    }

    /// Whether a lane must not begin a chunk of that class in order now.
    pub(crate) fn holds_back(&self, now: Duration, class: CopyClass) -> bool {
        let Some(pace) = self.pace.as_ref().filter(|_| class != CopyClass::Demand) else { return false };
        let has_room = pace.clear_at <= now.saturating_add(AHEAD_MAX);
        // The measured speed may be wrong: a class that is alone goes as fast as it can.
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

    /// The part of a begun chunk that belongs to another class, in percent. It is at most what the lanes of
    /// that class could take.
    fn share_of(&self, begun: CopyClass, class: CopyClass) -> u32 {
        // A prefetch has no share of what demand begins.
        let has_share = (begun, class) != (CopyClass::Demand, CopyClass::Prefetch);
        planted!(self, ShareLentForEver => has_share = false);
        let wanted_max = self.wanted[class.index()];
        planted!(self, ShareSavedUp => wanted_max = u32::MAX);
        let share = self.shares.percent(class).min(wanted_max);
        if has_share { share } else { 0 }
    }

    fn owed_per_chunk(&self) -> u64 {
        self.chunk.get().saturating_mul(100)
    }
}
