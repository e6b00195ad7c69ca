//! Waiting copies of one class, of which no chunk has begun.

use std::collections::{BTreeMap, HashMap};

use vramd_types::CopyId;

use super::lane::Job;

/// In the order of arrival. One can be removed from among thousands.
pub(super) struct Queue<W> {
    jobs: BTreeMap<u64, Job<W>>,
    arrivals: HashMap<CopyId, u64>,
    last: u64,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Self { jobs: BTreeMap::new(), arrivals: HashMap::new(), last: 0 }
    }
}

impl<W> Queue<W> {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn push(&mut self, job: Job<W>) {
        self.last += 1;
        self.arrivals.insert(job.copy, self.last);
        self.jobs.insert(self.last, job);
    }

    pub(super) fn pop(&mut self) -> Option<Job<W>> {
        let (_, job) = self.jobs.pop_first()?;
        self.arrivals.remove(&job.copy);
        Some(job)
    }

    pub(super) fn take(&mut self, copy: CopyId) -> Option<Job<W>> {
        self.jobs.remove(&self.arrivals.remove(&copy)?)
    }
}
