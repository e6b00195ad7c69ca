//! The bare side: as many bytes copied or released, without a daemon.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::bench::plain::Plain;

pub(super) trait Bare {
    /// Copies everything out of the device, in, or both at once.
    fn copy(&mut self, out: bool, back: bool) -> Result<Duration>;

    /// Copies one part in.
    fn part_in(&mut self) -> Result<Duration>;

    /// Unmaps and releases as many bytes in as many extents.
    fn give_back(&mut self) -> Result<Duration>;
}

impl Bare for Plain<'_> {
    fn copy(&mut self, out: bool, back: bool) -> Result<Duration> {
        Plain::copy(self, out, back)
    }

    fn part_in(&mut self) -> Result<Duration> {
        self.piece_in()
    }

    fn give_back(&mut self) -> Result<Duration> {
        Plain::give_back(self)
    }
}

/// Copies in memory of this process, on machines without a GPU.
pub(super) struct InMemory {
    device: Vec<u8>,
    other: Vec<u8>,
    out: Vec<u8>,
    back: Vec<u8>,
    part: usize,
}

impl InMemory {
    pub(super) fn new(parts: usize, part: usize) -> Self {
        let place = |content: u8| vec![content; parts * part];
        Self { device: place(1), other: place(2), out: place(3), back: place(4), part }
    }
}

impl Bare for InMemory {
    fn copy(&mut self, out: bool, back: bool) -> Result<Duration> {
        let started = Instant::now();
        thread::scope(|scope| {
            if out {
                scope.spawn(|| self.out.copy_from_slice(&self.device));
            }
            if back {
                scope.spawn(|| self.other.copy_from_slice(&self.back));
            }
        });
        Ok(started.elapsed())
    }

    fn part_in(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.other[..self.part].copy_from_slice(&self.back[..self.part]);
        Ok(started.elapsed())
    }

    fn give_back(&mut self) -> Result<Duration> {
        let parts: Vec<Vec<u8>> = self.device.chunks(self.part).map(<[u8]>::to_vec).collect();
        let started = Instant::now();
        drop(parts);
        Ok(started.elapsed())
    }
}
