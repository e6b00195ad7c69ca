//! Copies of which nothing was begun, and which of them is next.

use std::collections::{BTreeMap, HashMap};

use vramd_types::CopyId;

use super::lane::Job;

/// By rank, the lowest first. One can be taken from among thousands.
pub(super) struct Waiting<W> {
    jobs: BTreeMap<Rank, Job<W>>,
    ranks: HashMap<CopyId, Rank>,
    arrived: u64,
}

/// Whose turn it is, and nothing else says so: in the order of their arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    arrival: u64,
}

impl<W> Default for Waiting<W> {
    fn default() -> Self {
        Self { jobs: BTreeMap::new(), ranks: HashMap::new(), arrived: 0 }
    }
}

impl<W> Waiting<W> {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn push(&mut self, job: Job<W>) {
        self.arrived += 1;
        let rank = Rank { arrival: self.arrived };
        self.ranks.insert(job.copy, rank);
        self.jobs.insert(rank, job);
    }

    pub(super) fn pop(&mut self) -> Option<Job<W>> {
        let (_, job) = self.jobs.pop_first()?;
        self.ranks.remove(&job.copy);
        Some(job)
    }

    pub(super) fn take(&mut self, copy: CopyId) -> Option<Job<W>> {
        self.jobs.remove(&self.ranks.remove(&copy)?)
    }
}
