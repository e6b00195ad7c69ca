//! Managed memory: this process allocates it, and the driver moves its pages between the device and the host.
//!
//! Two calls say where its pages should lie. Until CUDA 12 they take the number of a device; since CUDA 12.2 there are
//! variants of them, in CUDA 13 the only ones of `cuda.h`, that take a location. The driver library is asked at run time
//! for the newer ones first.
//!
//! A failure of these calls never fails an allocation: the memory works without them, more slowly.

#![allow(unsafe_code, reason = "calls of a C library")]

use std::ffi::{CStr, c_int, c_uint};

use super::{
    api::{Api, Device, LOCATION_DEVICE, RawStream},
    calls::Opaque,
    context::{Context, Current},
    fault::Fault,
};

/// Blocks of this size and above are not prefetched: a kernel may need few of their pages, as of a cache.
const PREFETCHED_BELOW: usize = 2 << 30;

const ATTACH_GLOBAL: c_uint = 1;
const SET_PREFERRED_LOCATION: c_uint = 3;
const SET_ACCESSED_BY: c_uint = 5;
/// The host, as a device's number and as a kind of location.
const HOST: Device = -1;
const LOCATION_HOST: c_uint = 2;
/// The host can access managed memory on the device without moving it: the platform is coherent.
const DIRECT_ACCESS_FROM_HOST: c_uint = 101;

/// `CUmemLocation`, which is passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Location {
    kind: c_uint,
    id: c_int,
}

type Allocate = unsafe extern "C" fn(*mut u64, usize, c_uint) -> u32;
type Free = unsafe extern "C" fn(u64) -> u32;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_uint, Device) -> u32;
type Synchronize = unsafe extern "C" fn(RawStream) -> u32;
type AdviseByDevice = unsafe extern "C" fn(u64, usize, c_uint, Device) -> u32;
type PrefetchToDevice = unsafe extern "C" fn(u64, usize, Device, RawStream) -> u32;
type AdviseByLocation = unsafe extern "C" fn(u64, usize, c_uint, Location) -> u32;
type PrefetchToLocation = unsafe extern "C" fn(u64, usize, Location, c_uint, RawStream) -> u32;

/// The driver's functions for managed memory.
#[derive(Debug)]
pub(super) struct ManagedCalls {
    allocate: Allocate,
    free: Free,
    get_attribute: GetAttribute,
    synchronize: Synchronize,
    placing: Placing,
}

/// The functions that place it, in one of their two forms.
#[derive(Clone, Copy, Debug)]
enum Placing {
    ByLocation(AdviseByLocation, PrefetchToLocation),
    ByDevice(AdviseByDevice, PrefetchToDevice),
}

/// A step beside the allocation itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    PreferDevice,
    LetHostAccess,
    Prefetch,
    Synchronize,
    Free,
}

impl Step {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::PreferDevice => "preferred location",
            Self::LetHostAccess => "accessed by the host",
            Self::Prefetch => "prefetch",
            Self::Synchronize => "synchronize",
            Self::Free => "free",
        }
    }
}

/// A step that failed, and the driver's name for why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) problem: String,
}

impl ManagedCalls {
    /// Finds all of them. `None` if one is missing.
    pub(super) fn find(api: &Api) -> Option<Self> {
        // SAFETY: needed to find C functions. Each type is that of the function in `cuda.h`, and the driver's table,
        // which owns the library, has this one in it.
        unsafe {
            let by_location = || {
                let advise = api.find_extra(c"cuMemAdvise_v2")?;
                Some(Placing::ByLocation(advise, api.find_extra(c"cuMemPrefetchAsync_v2")?))
            };
            let by_device = || {
                let advise = api.find_extra(c"cuMemAdvise")?;
                Some(Placing::ByDevice(advise, api.find_extra(c"cuMemPrefetchAsync")?))
            };
            Some(Self {
                allocate: api.find_extra(c"cuMemAllocManaged")?,
                free: api.find_extra(c"cuMemFree_v2")?,
                get_attribute: api.find_extra(c"cuDeviceGetAttribute")?,
                synchronize: api.find_extra(c"cuStreamSynchronize")?,
                placing: by_location().or_else(by_device)?,
            })
        }
    }

    fn advise(
        &self,
        current: &Current<'_>,
        (address, size): (u64, usize),
        advice: c_uint,
        device: Device,
    ) -> Result<(), Fault> {
        const CALL: &CStr = c"cuMemAdvise";
        // SAFETY: needed to call it. The range is a managed allocation of the caller's; the driver checks the rest.
        let code = unsafe {
            match self.placing {
                Placing::ByLocation(advise, _) => advise(address, size, advice, location(device)),
                Placing::ByDevice(advise, _) => advise(address, size, advice, device),
            }
        };
        current.api().check(CALL, code)
    }

    fn prefetch(
        &self,
        current: &Current<'_>,
        (address, size): (u64, usize),
        stream: Opaque,
    ) -> Result<(), Fault> {
        const CALL: &CStr = c"cuMemPrefetchAsync";
        let device = current.device();
        // SAFETY: needed to call it. The range is a managed allocation of the caller's, which lives until it is freed;
        // the program promises that its stream lives.
        let code = unsafe {
            match self.placing {
                Placing::ByLocation(_, prefetch) => {
                    prefetch(address, size, location(device), 0, stream.as_raw())
                }
                Placing::ByDevice(_, prefetch) => prefetch(address, size, device, stream.as_raw()),
            }
        };
        current.api().check(CALL, code)
    }

    /// Whether the host and the device access each other's memory coherently. Without an answer they do not.
    fn is_coherent(&self, current: &Current<'_>) -> bool {
        let mut value = 0;
        // SAFETY: needed to call it. It writes one number.
        let code = unsafe { (self.get_attribute)(&raw mut value, DIRECT_ACCESS_FROM_HOST, current.device()) };
        code == 0 && value == 1
    }
}

const fn location(device: Device) -> Location {
    match device {
        HOST => Location { kind: LOCATION_HOST, id: 0 },
        id => Location { kind: LOCATION_DEVICE, id },
    }
}

impl Context {
    /// Allocates managed memory and has it lie on the device: by preference, and at once if it is not too large, by the
    /// work of a stream of the program. Steps after the allocation may fail.
    pub(crate) fn allocate_managed(&self, size: usize, stream: u64) -> Result<(u64, Vec<Failure>), Fault> {
        let current = self.enter()?;
        let calls = managed_calls(&current)?;
        let mut address = 0;
        // SAFETY: needed to call it. It writes one address, of memory that nothing else uses.
        let code = unsafe { (calls.allocate)(&raw mut address, size, ATTACH_GLOBAL) };
        current.api().check(c"cuMemAllocManaged", code)?;
        let (range, mut failures) = ((address, size), Vec::new());
        let mut note = |step, outcome: Result<(), Fault>| {
            failures.extend(outcome.err().map(|fault| Failure { step, problem: fault.name }));
        };
        let prefer = calls.advise(&current, range, SET_PREFERRED_LOCATION, current.device());
        note(Step::PreferDevice, prefer);
        if calls.is_coherent(&current) {
            note(Step::LetHostAccess, calls.advise(&current, range, SET_ACCESSED_BY, HOST));
        }
        if size < PREFETCHED_BELOW {
            let stream = Opaque::from_number(stream);
            // Captured, it would run at each launch of the graph, also when the memory is another block's.
            match current.api().is_capturing(stream) {
                Ok(false) => note(Step::Prefetch, calls.prefetch(&current, range, stream)),
                Ok(true) => failures.push(captured(Step::Prefetch)),
                Err(fault) => note(Step::Prefetch, Err(fault)),
            }
        }
        Ok((address, failures))
    }

    /// Frees managed memory once the work of a stream is done. It stays allocated if [`Step::Free`] has failed.
    pub(crate) fn free_managed(&self, address: u64, stream: u64) -> Result<Vec<Failure>, Fault> {
        let current = self.enter()?;
        let calls = managed_calls(&current)?;
        let mut failures = Vec::new();
        let stream = Opaque::from_number(stream);
        let done = match current.api().is_capturing(stream) {
            // To wait for it would end the capture.
            Ok(true) => {
                failures.push(captured(Step::Synchronize));
                Ok(())
            }
            Ok(false) => {
                // SAFETY: needed to call it. The program promises that its stream lives.
                current.api().check(c"cuStreamSynchronize", unsafe { (calls.synchronize)(stream.as_raw()) })
            }
            Err(fault) => Err(fault),
        };
        let failed = |step| move |fault: Fault| Failure { step, problem: fault.name };
        failures.extend(done.err().map(failed(Step::Synchronize)));
        // SAFETY: needed to call it. The address came of one allocation, and its owner frees it once.
        let freed = current.api().check(c"cuMemFree_v2", unsafe { (calls.free)(address) });
        failures.extend(freed.err().map(failed(Step::Free)));
        Ok(failures)
    }
}

fn captured(step: Step) -> Failure {
    Failure { step, problem: "the stream is being captured".to_owned() }
}

fn managed_calls<'a>(current: &'a Current<'_>) -> Result<&'a ManagedCalls, Fault> {
    current.driver().managed().ok_or_else(|| Fault {
        call: "cuMemAllocManaged",
        code: 0,
        name: "the driver lacks a function for managed memory".to_owned(),
    })
}
