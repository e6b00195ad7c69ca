//! Copies and kernels on mapped memory of any owner. The kernels are in `kernels/suite.cu`.

#![allow(unsafe_code, reason = "kernel arguments and host buffers are handed over as raw pointers")]

use std::{ffi::CStr, ffi::c_void, ptr};

use super::{
    Gpu,
    table::{Failed, Opaque, Table},
};
use crate::content;

const PTX: &str = concat!(include_str!("../kernels/suite.ptx"), "\0");
const BLOCKS: u32 = 1024;
const THREADS: u32 = 256;
const NOT_READY: u32 = 600;

#[derive(Debug)]
pub(super) struct Kernels {
    fill: Opaque,
    sum: Opaque,
    sum_lines: Opaque,
    poke: Opaque,
    spin: Opaque,
    /// The address of eight bytes of device memory for a result.
    cell: u64,
}

impl Kernels {
    pub(super) fn load(table: &Table) -> Result<Self, Failed> {
        let mut module = Opaque::default();
        // SAFETY: the driver takes no reference. The text is constant and ends with a zero, which `concat!` wrote.
        unsafe { table.module_load(&mut module, PTX.as_ptr().cast())? };
        let function = |name: &CStr| {
            let mut function = Opaque::default();
            // SAFETY: as above; the name ends with a zero.
            unsafe { table.module_function(&mut function, module, name.as_ptr())? };
            Ok(function)
        };
        let mut cell = 0;
        table.alloc(&mut cell, size_of::<u64>())?;
        Ok(Self {
            fill: function(c"fill")?,
            sum: function(c"sum")?,
            sum_lines: function(c"sum_lines")?,
            poke: function(c"poke")?,
            spin: function(c"spin")?,
            cell,
        })
    }
}

impl Gpu {
    /// Writes the content of [`crate::content`] for a seed, in whole words of 8 bytes.
    pub(crate) fn fill(&self, address: u64, bytes: u64, seed: u64) -> Result<(), Failed> {
        self.launch(self.kernels.fill, self.work, BLOCKS, [address, bytes / 8, seed])?;
        self.table.stream_synchronize(self.work)
    }

    /// Launches the same on the captured stream, without waiting.
    pub(crate) fn begin_fill(&self, address: u64, bytes: u64, seed: u64) -> Result<(), Failed> {
        self.launch(self.kernels.fill, self.captured, BLOCKS, [address, bytes / 8, seed])
    }

    /// Returns [`crate::content::sum`] over whole words of 8 bytes.
    pub(crate) fn sum(&self, address: u64, bytes: u64) -> Result<u64, Failed> {
        self.upload(self.kernels.cell, &0_u64.to_le_bytes())?;
        self.launch(self.kernels.sum, self.work, BLOCKS, [address, bytes / 8, self.kernels.cell])?;
        let mut sum = [0; 8];
        self.download(self.kernels.cell, &mut sum)?;
        Ok(u64::from_le_bytes(sum))
    }

    /// Computes [`crate::content::sum_lines`] repeatedly by kernels.
    pub(crate) fn sum_lines(&self, address: u64, bytes: u64, every: u64, times: u64) -> Result<u64, Failed> {
        self.upload(self.kernels.cell, &0_u64.to_le_bytes())?;
        let (lines, apart) = (content::lines(bytes, every), every * content::LINE_WORDS);
        for _ in 0..times {
            let arguments = [address, lines, apart, self.kernels.cell];
            self.launch(self.kernels.sum_lines, self.work, BLOCKS, arguments)?;
        }
        let mut sum = [0; 8];
        self.download(self.kernels.cell, &mut sum)?;
        Ok(u64::from_le_bytes(sum))
    }

    /// Writes and then reads the memory repeatedly by kernels. Copies nothing.
    pub(crate) fn compute(&self, address: u64, bytes: u64, times: u64) -> Result<(), Failed> {
        for seed in 0..times {
            self.launch(self.kernels.fill, self.work, BLOCKS, [address, bytes / 8, seed])?;
            self.launch(self.kernels.sum, self.work, BLOCKS, [address, bytes / 8, self.kernels.cell])?;
        }
        self.table.stream_synchronize(self.work)
    }

    /// Stores one word by a kernel. If the memory is not writable, this process's context is dead afterwards.
    pub(crate) fn poke(&self, address: u64, value: u64) -> Result<(), Failed> {
        self.launch(self.kernels.poke, self.work, 1, [address, value])?;
        self.table.stream_synchronize(self.work)
    }

    /// Starts a kernel that writes to the memory for a given time, without waiting.
    pub(crate) fn spin(&self, address: u64, bytes: u64, nanoseconds: u64) -> Result<(), Failed> {
        self.launch(self.kernels.spin, self.aside, BLOCKS / 8, [address, bytes / 8, nanoseconds])
    }

    /// Returns the stream of [`Self::spin`] as a handle for other code of the process.
    pub(crate) fn aside(&self) -> u64 {
        self.aside.number()
    }

    /// Tells whether all work on that stream has ended.
    pub(crate) fn aside_has_ended(&self) -> Result<bool, Failed> {
        match self.table.stream_query(self.aside) {
            Ok(()) => Ok(true),
            Err(failed) if failed.code == NOT_READY => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    pub(crate) fn upload(&self, to: u64, from: &[u8]) -> Result<(), Failed> {
        // SAFETY: the driver takes a plain pointer. The slice is valid for its length, and the driver stops using it when the
        // stream ends below.
        unsafe { self.table.upload(to, from.as_ptr(), from.len(), self.work)? };
        self.table.stream_synchronize(self.work)
    }

    pub(crate) fn download(&self, from: u64, to: &mut [u8]) -> Result<(), Failed> {
        // SAFETY: as in `upload`; the slice is borrowed mutably until the copy is done.
        unsafe { self.table.download(to.as_mut_ptr(), from, to.len(), self.work)? };
        self.table.stream_synchronize(self.work)
    }

    fn launch<const N: usize>(
        &self,
        function: Opaque,
        stream: Opaque,
        blocks: u32,
        mut arguments: [u64; N],
    ) -> Result<(), Failed> {
        let mut pointers = arguments.each_mut().map(|argument| ptr::from_mut(argument).cast::<c_void>());
        // SAFETY: the driver copies the arguments before it returns. Each kernel of the suite takes as many words of 8 bytes as its
        // only callers above pass. The device checks the addresses that a kernel uses.
        unsafe {
            self.table.launch(
                function,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        }
    }
}
