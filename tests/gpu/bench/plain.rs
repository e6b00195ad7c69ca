//! A plain program: copies between `cuMemAlloc` blocks and memory of `cuMemHostAlloc`, waited for once at their end, and the release of
//! extents with descriptors.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cuda::{Extent, Gpu, Pinned};

/// Buffers for as many bytes in each direction.
#[derive(Debug)]
pub(crate) struct Plain<'a> {
    gpu: &'a Gpu,
    device: u64,
    other: u64,
    out: Pinned,
    back: Pinned,
    /// A single piece.
    single: Pinned,
    pieces: usize,
    piece: usize,
}

impl<'a> Plain<'a> {
    /// Creates buffers of `pieces` pieces for each direction, with random content. Each piece is a copy of its own.
    pub(crate) fn new(gpu: &'a Gpu, pieces: usize, piece: usize) -> Result<Self> {
        let size = pieces * piece;
        let (device, other) = (gpu.alloc(size)?, gpu.alloc(size)?);
        let [out, back, single] = [gpu.pin(size)?, gpu.pin(size)?, gpu.pin(piece)?];
        let mut plain = Self { gpu, device, other, out, back, single, pieces, piece };
        gpu.fill(device, size as u64, 1)?;
        gpu.fill(other, size as u64, 2)?;
        gpu.begin_out(device, &mut plain.out, piece)?;
        gpu.begin_out(other, &mut plain.back, piece)?;
        gpu.begin_out(device, &mut plain.single, piece)?;
        gpu.end_copies()?;
        Ok(plain)
    }

    /// Copies everything out of the device, to it, or in both directions at once on two streams.
    pub(crate) fn copy(&mut self, out: bool, back: bool) -> Result<Duration> {
        let started = Instant::now();
        if out {
            self.gpu.begin_out(self.device, &mut self.out, self.piece)?;
        }
        if back {
            self.gpu.begin_in(&self.back, self.other, self.piece)?;
        }
        self.gpu.end_copies()?;
        Ok(started.elapsed())
    }

    /// Copies one piece to the device.
    pub(crate) fn piece_in(&self) -> Result<Duration> {
        let started = Instant::now();
        self.gpu.begin_in(&self.single, self.other, self.piece)?;
        self.gpu.end_copies()?;
        Ok(started.elapsed())
    }

    /// Releases as many pieces, each an extent with a descriptor, until the driver has all of them back.
    pub(crate) fn give_back(&self) -> Result<Duration> {
        let extents: Vec<Extent> =
            (0..self.pieces).map(|_| self.gpu.create(self.piece)).collect::<Result<_>>()?;
        let descriptors = extents.iter().map(Extent::export).collect::<Result<Vec<_>>>()?;
        let span = self.gpu.map(&extents, true)?;
        self.gpu.fill(span.address(), (self.pieces * self.piece) as u64, 3)?;
        let started = Instant::now();
        drop(span);
        drop(extents);
        drop(descriptors);
        Ok(started.elapsed())
    }
}

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        // This fails only in a dead context.
        let _ = self.gpu.free(self.device);
        let _ = self.gpu.free(self.other);
    }
}
