//! Managed memory: this process allocates it, and the driver moves its pages between the device and the host.
//!
//! Two calls say where its pages should lie. Until CUDA 12 they take the number of a device; since CUDA 12.2 there are
//! variants of them, in CUDA 13 the only ones of `cuda.h`, that take a location. The driver library is asked at run time
//! for the newer ones first.
//!
//! A prefetch of many allocations is one call since CUDA 13; before, it is one call for each.
//!
//! A failure of these calls never fails an allocation: the memory works without them, more slowly.

#![allow(unsafe_code, reason = "calls of a C library")]

use std::ffi::{CStr, c_int, c_uint, c_ulonglong};

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
/// The addresses and sizes, and their number; the locations, the index of the first range of each, and their number.
type PrefetchBatch = unsafe extern "C" fn(
    *mut u64,
    *mut usize,
    usize,
    *mut Location,
    *mut usize,
    usize,
    c_ulonglong,
    RawStream,
) -> u32;

/// One managed allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ManagedRange {
    pub(crate) address: u64,
    pub(crate) size: usize,
}

/// Where managed memory moves, as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveTo {
    Device,
    Host,
}

/// The driver's functions for managed memory.
#[derive(Debug)]
pub(super) struct ManagedCalls {
    allocate: Allocate,
    free: Free,
    get_attribute: GetAttribute,
    synchronize: Synchronize,
    placing: Placing,
    /// Since CUDA 13.
    prefetch_batch: Option<PrefetchBatch>,
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
                prefetch_batch: api.find_extra(c"cuMemPrefetchBatchAsync"),
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
        device: Device,
        stream: Opaque,
    ) -> Result<(), Fault> {
        const CALL: &CStr = c"cuMemPrefetchAsync";
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

    /// Prefetches ranges to their devices, by one call where the driver has it. If that fails it says not why, so each range
    /// gets a call of its own. Returns the fault of each that failed.
    fn prefetch_all(
        &self,
        current: &Current<'_>,
        moves: &[(ManagedRange, Device)],
        stream: Opaque,
    ) -> Vec<Option<Fault>> {
        let by_one_call = self.prefetch_batch.is_some_and(|call| Self::prefetch_batch(call, moves, stream));
        let prefetch = |(range, device): &(ManagedRange, Device)| match by_one_call {
            true => None,
            false => self.prefetch(current, (range.address, range.size), *device, stream).err(),
        };
        moves.iter().map(prefetch).collect()
    }

    /// Prefetches ranges by one call. Returns whether it did.
    fn prefetch_batch(prefetch: PrefetchBatch, moves: &[(ManagedRange, Device)], stream: Opaque) -> bool {
        let mut addresses: Vec<u64> = moves.iter().map(|(range, _)| range.address).collect();
        let mut sizes: Vec<usize> = moves.iter().map(|(range, _)| range.size).collect();
        // A location holds until the next one begins.
        let (mut firsts, mut locations, mut last) = (Vec::new(), Vec::new(), None);
        for (at, (_, device)) in moves.iter().enumerate() {
            if last.replace(*device) != Some(*device) {
                firsts.push(at);
                locations.push(location(*device));
            }
        }
        // SAFETY: needed to call it. It reads as many of each as it is told there are. The ranges are managed allocations of
        // the caller's, which live until the stream has been waited for, as the stream itself does.
        let code = unsafe {
            prefetch(
                addresses.as_mut_ptr(),
                sizes.as_mut_ptr(),
                moves.len(),
                locations.as_mut_ptr(),
                firsts.as_mut_ptr(),
                locations.len(),
                0,
                stream.as_raw(),
            )
        };
        code == 0
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
                Ok(false) => note(Step::Prefetch, calls.prefetch(&current, range, current.device(), stream)),
                Ok(true) => failures.push(captured(Step::Prefetch)),
                Err(fault) => note(Step::Prefetch, Err(fault)),
            }
        }
        Ok((address, failures))
    }

    /// Moves managed memory to the device or to the host: by preference, so that it stays there while it can be accessed there,
    /// and at once. Returns when it has moved, with the problem of each that failed. The ranges must live until then.
    pub(crate) fn move_managed(&self, moves: &[(ManagedRange, MoveTo)]) -> Vec<Option<String>> {
        let outcome = self.with_stream(|current, stream| {
            let calls = managed_calls(current)?;
            let device = |to| if to == MoveTo::Host { HOST } else { current.device() };
            let moves: Vec<_> = moves.iter().map(|(range, to)| (*range, device(*to))).collect();
            let advised = moves.iter().map(|(range, device)| {
                calls.advise(current, (range.address, range.size), SET_PREFERRED_LOCATION, *device).err()
            });
            let advised: Vec<_> = advised.collect();
            let prefetched = stream.run(current, |stream| calls.prefetch_all(current, &moves, stream))?;
            let named = |step: Step, fault: Fault| format!("{}: {}", step.name(), fault.name);
            let problem = |(advised, prefetched): (Option<Fault>, Option<Fault>)| {
                let of_prefetch = prefetched.map(|fault| named(Step::Prefetch, fault));
                of_prefetch.or_else(|| advised.map(|fault| named(Step::PreferDevice, fault)))
            };
            Ok(advised.into_iter().zip(prefetched).map(problem).collect::<Vec<_>>())
        });
        outcome.unwrap_or_else(|fault| moves.iter().map(|_| Some(fault.name.clone())).collect())
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
