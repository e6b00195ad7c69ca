//! What lanes begin, in the worlds that have them: by the books of who looks at each chunk, and knows of no link how it
//! chooses.
//!
//! A class that waits in a lane without a break is owed its share of what is begun there, and has had what was begun of it. Who
//! has had more while nobody else waited owes nothing for that, and nobody has anything saved up. Of a link that lanes share it is
//! owed its share of what is begun in all of them, but for demand of lanes in which it does not wait: that nobody holds back.

use std::{collections::BTreeMap, time::Duration};

use broker_core::{
    Time,
    invariants::{LINK_AWAITED, LINK_ORDER, LINK_SHARES},
};
use vramd_types::{CopyClass, ExtentId, Shares};

use crate::oracle::Oracle;
use crate::{
    scenario::Lanes,
    world::{Begun, Way},
};

/// Whoever was passed by so many chunks and has stood for so long has one.
const PASSED: u64 = 16;
/// Or if nothing was begun for as long as that.
const STOOD: Duration = Duration::from_secs(1);

/// So much a class may lack of its share at any moment, and so much it may have had above it: in chunks of the largest size.
const APART_CHUNKS: u64 = 3;

/// And where prefetches wait, which are owed their share behind demand too and have it once that is through; or where lanes
/// share a link, of which and of its own each is owed a share.
const FAR_APART_CHUNKS: u64 = 7;

/// A class in a lane, since it waits there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stand {
    /// Since then it waits, or had a chunk for the last time.
    since: Time,
    /// Chunks of others since then.
    passed: u64,
    /// When the last chunk was begun, of whomever.
    last: Time,
    /// Prefetches have waited meanwhile.
    with_prefetch: bool,
    /// Of its share, in hundredths of a byte.
    lacks: u64,
    /// What it had above its share while somebody waited who goes before it; likewise.
    above: u64,
}

/// By lane and class.
pub(crate) type Stands = BTreeMap<(Way, CopyClass), Stand>;

/// What each class lacks of its share of the link that lanes share, since it waits for that; in hundredths of a byte.
pub(crate) type Lacks = BTreeMap<CopyClass, u64>;

impl Oracle {
    /// Copies of this world go by lanes.
    pub fn has_lanes(&mut self, lanes: Option<Lanes>) {
        self.lanes = lanes;
    }

    pub(crate) fn shares_changed(&mut self, shares: Shares) {
        self.facts.shares = Some(shares);
        self.facts.stands.clear();
        self.facts.lacks.clear();
    }

    /// What waits in a lane now: who waits no more has nothing saved up, and who begins to stands from now on.
    pub(crate) fn lane_waits(&mut self, now: Time, way: Way, waiting: &[ExtentId]) {
        let waiting = self.classes_of(waiting);
        for class in CopyClass::ALL {
            match waiting.contains(&class) {
                true => _ = self.facts.stands.insert((way, class), self.stand_of(way, class, now)),
                false => _ = self.facts.stands.remove(&(way, class)),
            }
        }
        let on_bus: Vec<CopyClass> = self.waits_on_bus().collect();
        self.facts.lacks.retain(|class, _| on_bus.contains(class));
    }

    /// Before it is among what was begun.
    pub(crate) fn chunk_begun(&mut self, now: Time, begun: &Begun) {
        let Some(lanes) = self.lanes else { return };
        let shares = self.facts.shares.unwrap_or(lanes.shares);
        let Begun { way, to, class, length, .. } = *begun;
        let ordered = self.facts.copies.get(&to).copied();
        self.expect(LINK_AWAITED, ordered == Some(class), || {
            format!("a chunk goes to {to} as {class:?}, and was ordered as {ordered:?}")
        });
        let waiting = self.classes_of(&begun.waiting);
        let stands = waiting.iter().map(|of| (*of, self.stand_of(way, *of, now)));
        let mut stands: BTreeMap<CopyClass, Stand> = stands.collect();
        let waits = |of: CopyClass| waiting.contains(&of);
        let has_stood = |stand: &Stand| {
            stand.since.after(STOOD) <= now && (stand.passed >= PASSED || stand.last.after(STOOD) <= now)
        };
        let by_right = stands.get(&class).is_some_and(has_stood);
        let overtakes = class == CopyClass::Prefetch && waits(CopyClass::Demand) && !by_right;
        self.expect(LINK_ORDER, !overtakes, || {
            format!("a prefetch goes to {to} before what somebody waits for: {begun:?}")
        });
        // Where lanes share a link they hold each other's classes back, but for demand, and have their shares of that too.
        let is_alone = lanes.shared_percent.is_none() || !way.is_on_bus();
        for (of, stand) in &mut stands {
            let is_higher =
                |other: CopyClass| other < *of && waits(other) && (is_alone || other == CopyClass::Demand);
            let share = length.get() * u64::from(shares.percent(*of));
            let had = if *of == class { length.get() * 100 } else { 0 };
            let due = if *of == CopyClass::Prefetch && waits(CopyClass::Demand) { 0 } else { share };
            stand.lacks = (stand.lacks + due).saturating_sub(had);
            let taken = if by_right { 0 } else { had };
            let is_lent = !CopyClass::ALL.into_iter().any(is_higher);
            let of_both = if is_alone { share } else { 2 * share };
            stand.above = if is_lent { 0 } else { (stand.above + taken).saturating_sub(of_both) };
            stand.last = now;
            stand.with_prefetch |= waits(CopyClass::Prefetch);
            match *of == class {
                true => (stand.since, stand.passed) = (now, 0),
                false => stand.passed += 1,
            }
        }
        self.shares_are_had(begun, &stands, lanes, is_alone);
        for of in CopyClass::ALL {
            match stands.get(&of) {
                Some(stand) => _ = self.facts.stands.insert((way, of), *stand),
                None => _ = self.facts.stands.remove(&(way, of)),
            }
        }
        if let Some(percent) = lanes.shared_percent.filter(|_| way.is_on_bus()) {
            self.bus_crossed(begun, shares, percent);
            self.shares_of_bus_are_had(begun, lanes);
        }
    }

    /// The link that lanes share, which carries so many percent of one of them.
    fn bus_crossed(&mut self, begun: &Begun, shares: Shares, percent: u64) {
        let waiting: Vec<CopyClass> = self.waits_on_bus().collect();
        let is_behind_demand = waiting.contains(&CopyClass::Demand);
        let waits_here = self.classes_of(&begun.waiting);
        for of in waiting {
            // A class wants no more than its lanes carry.
            let lanes =
                self.facts.stands.keys().filter(|(way, class)| way.is_on_bus() && *class == of).count();
            let fill = lanes as u64 * (10_000 / percent).min(100);
            let share = begun.length.get() * u64::from(shares.percent(of)).min(fill);
            let cannot_go = of == CopyClass::Prefetch && is_behind_demand;
            let is_free = begun.class == CopyClass::Demand && !waits_here.contains(&of);
            let due = if cannot_go || is_free { 0 } else { share };
            let had = if of == begun.class { begun.length.get() * 100 } else { 0 };
            let lacks = self.facts.lacks.entry(of).or_default();
            *lacks = (*lacks + due).saturating_sub(had);
        }
        for ((way, of), stand) in &mut self.facts.stands {
            if way.is_on_bus() && *way != begun.way {
                let share = begun.length.get() * u64::from(shares.percent(*of));
                stand.above = stand.above.saturating_sub(share);
            }
        }
    }

    fn shares_of_bus_are_had(&mut self, begun: &Begun, lanes: Lanes) {
        let apart = lanes.chunk().get() * 100 * FAR_APART_CHUNKS;
        for (of, lacks) in self.facts.lacks.clone() {
            self.expect(LINK_SHARES, lacks <= apart, || {
                format!(
                    "{of:?} lacks {} bytes of its share of the link that lanes share: {begun:?}",
                    lacks / 100
                )
            });
        }
    }

    /// The classes of which something waits in any lane of the link that they share.
    fn waits_on_bus(&self) -> impl Iterator<Item = CopyClass> {
        let waits =
            |class: &CopyClass| self.facts.stands.keys().any(|(way, of)| way.is_on_bus() && of == class);
        CopyClass::ALL.into_iter().filter(waits)
    }

    fn shares_are_had(
        &mut self,
        begun: &Begun,
        stands: &BTreeMap<CopyClass, Stand>,
        lanes: Lanes,
        is_alone: bool,
    ) {
        for (of, stand) in stands {
            let is_near = is_alone && !stand.with_prefetch;
            let apart = if is_near { APART_CHUNKS } else { FAR_APART_CHUNKS };
            let apart = lanes.chunk().get() * 100 * apart;
            let has_its_share = stand.lacks <= apart;
            self.expect(LINK_SHARES, has_its_share || !(is_alone || *of == CopyClass::Demand), || {
                format!("{of:?} lacks {} bytes of its share: {begun:?}", stand.lacks / 100)
            });
            self.expect(LINK_SHARES, stand.above <= apart, || {
                format!("{of:?} had {} bytes above its share: {begun:?}", stand.above / 100)
            });
        }
    }

    fn stand_of(&self, way: Way, class: CopyClass, now: Time) -> Stand {
        let new = Stand { since: now, passed: 0, last: now, with_prefetch: false, lacks: 0, above: 0 };
        self.facts.stands.get(&(way, class)).copied().unwrap_or(new)
    }

    /// As they were ordered, or hastened.
    fn classes_of(&self, copies: &[ExtentId]) -> Vec<CopyClass> {
        let classes = copies.iter().filter_map(|to| self.facts.copies.get(to).copied());
        let mut classes: Vec<_> = classes.collect();
        classes.sort();
        classes.dedup();
        classes
    }
}
