//! Releases that are deferred while bytes arrive on the device.
//!
//! The CUDA driver clears released memory with the engine that receives bytes from the host, at some 300 GB/s:
//! a release of 256 MiB delays arriving bytes by 0.9 ms. So releases are deferred while bytes arrive, until a
//! client waits for the room or the time limit is over.

use std::time::{Duration, Instant};

use crate::RELEASE_WITHIN;
use crate::cuda::device::Device;

/// How often to check whether bytes still arrive.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// The deferred releases of one device, in the order of their submission.
#[derive(Debug)]
pub(crate) struct DeferredReleases<R> {
    releases: Vec<R>,
    /// The time limit of the first release.
    until: Option<Instant>,
}

impl<R> DeferredReleases<R> {
    pub(crate) const fn new() -> Self {
        Self { releases: Vec::new(), until: None }
    }

    pub(crate) fn add(&mut self, release: R) {
        self.releases.push(release);
        self.until.get_or_insert_with(|| Instant::now() + RELEASE_WITHIN);
    }

    /// Ends the deferral of all releases so far.
    pub(crate) fn expire(&mut self) {
        self.until = self.until.map(|_| Instant::now());
    }

    /// When to check again.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.until.map(|until| until.min(Instant::now() + POLL_EVERY))
    }

    /// Takes the releases, if they need not wait any longer.
    pub(crate) fn take_due(&mut self, device: &Device) -> Vec<R> {
        let over = self.until.is_some_and(|until| until <= Instant::now());
        if over || !device.is_receiving() { self.take_all() } else { Vec::new() }
    }

    pub(crate) fn take_all(&mut self) -> Vec<R> {
        self.until = None;
        std::mem::take(&mut self.releases)
    }
}
