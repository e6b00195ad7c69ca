//! Deadlines on a link that is wanted as a whole: how many the core meets, beside earliest deadline first with full
//! knowledge.
//!
//! ```text
//!   requests ──┬─▶ play: Broker, one link ──▶ in time, as the clients are told
//!              └─▶ reference ───────────────▶ in time, with all arrivals known
//! ```

mod play;
mod reference;
mod requests;

use requests::{PART_SIZES, Request, SLACK_MICROS_MIN};
use vramd_types::Bytes;

use crate::SEEDS;

/// The load of both tenants together, in percent of the link.
const LOADS: [u64; 3] = [90, 100, 120];

/// Deadlines are shown in bands, each up to four times the slack of the one before.
const BANDS: [u64; 3] = [SLACK_MICROS_MIN, SLACK_MICROS_MIN * 4, SLACK_MICROS_MIN * 16];

/// One load, with the requests of all seeds.
#[derive(Debug)]
pub(crate) struct Row {
    /// In percent of the link.
    pub(crate) load: u64,
    pub(crate) groups: Vec<Group>,
}

/// Requests of one tenant with about the same slack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) part_size: Bytes,
    /// The least slack: the time that a deadline leaves beyond the copies of its request.
    pub(crate) slack_micros: u64,
    pub(crate) counts: Counts,
}

/// How many requests there are, and how many are ready in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) all: u64,
    pub(crate) reference: u64,
    pub(crate) core: u64,
}

impl Counts {
    const fn plus(self, other: Self) -> Self {
        Self {
            all: self.all + other.all,
            reference: self.reference + other.reference,
            core: self.core + other.core,
        }
    }
}

impl Row {
    /// The counts of all groups, or of those that are chosen.
    pub(crate) fn sum(&self, is_chosen: impl Fn(&Group) -> bool) -> Counts {
        let chosen = self.groups.iter().filter(|group| is_chosen(group));
        chosen.map(|group| group.counts).fold(Counts::default(), Counts::plus)
    }
}

/// Plays the requests of all seeds with each load.
pub(crate) fn measure() -> Vec<Row> {
    let row = |load| {
        let groups = PART_SIZES.into_iter().flat_map(|part_size| {
            BANDS.map(|slack_micros| Group { part_size, slack_micros, counts: Counts::default() })
        });
        let mut row = Row { load, groups: groups.collect() };
        for seed in SEEDS {
            row.count(&requests::draw(seed, load));
        }
        row
    };
    LOADS.into_iter().map(row).collect()
}

impl Row {
    fn count(&mut self, requests: &[Request]) {
        let (core, reference) = (play::met(requests), reference::met(requests));
        for (request, (core, reference)) in requests.iter().zip(core.into_iter().zip(reference)) {
            let is_its = |group: &&mut Group| {
                group.part_size == request.part_size && group.slack_micros <= request.slack()
            };
            let group = self.groups.iter_mut().rfind(is_its).expect("the least slack has a band");
            let more = Counts { all: 1, reference: u64::from(reference), core: u64::from(core) };
            group.counts = group.counts.plus(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(met: &[bool]) -> usize {
        met.iter().filter(|met| **met).count()
    }

    #[test]
    fn core_meets_no_more_than_the_reference() {
        for load in LOADS {
            let mut requests = requests::draw(9, load);
            requests.truncate(1_000);
            let (core, reference) = (play::met(&requests), reference::met(&requests));
            // A link that is used without a pause and in the best order can do what the core has done.
            assert!(reference::is_feasible(&requests, &core), "load {load}: faster than the link");
            let (core, reference) = (count(&core), count(&reference));
            assert!(core <= reference, "load {load}: {core} of {reference}");
            assert!(reference > requests.len() * 9 / 10, "load {load}: {reference} is a weak reference");
        }
    }

    #[test]
    fn offered_bytes_fill_the_link_as_the_load_says() {
        for load in LOADS {
            let all: Vec<Request> = SEEDS.iter().flat_map(|seed| requests::draw(*seed, load)).collect();
            for part_size in PART_SIZES {
                let own = all.iter().filter(|request| request.part_size == part_size);
                let micros: u64 = own.map(Request::micros).sum();
                let percent = micros * 100 / (requests::DURATION_MICROS * 3);
                assert!(percent.abs_diff(load / 2) <= 4, "load {load}, {part_size}: {percent} %");
            }
        }
    }
}
