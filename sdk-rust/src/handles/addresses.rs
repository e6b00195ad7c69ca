//! Addresses that outlive their allocation: memory is discarded, and new memory comes to lie at the same place.
//!
//! A captured CUDA graph, or a tensor that a program keeps, knows an address and no handle. So a program that gives
//! memory up for a while keeps the addresses, which cost no memory, and allocates there again.

use std::{fmt, time::Duration};

use vramd_types::{Bytes, Reason};

use crate::{
    error::{Error, Result},
    handles::{
        allocation::{Allocation, FreeFailed},
        handle::Handle,
        info::AllocationInfo,
        operations,
        request::AllocationRequest,
    },
    mapping::Space,
    process::fork::ProcessBound,
    session::{
        Session,
        call_style::{CallStyle, run_ready},
        check_process,
    },
};

/// The addresses of a freed allocation. Nothing is mapped there, and nothing else comes to lie there, until
/// [`crate::Client::allocate_at`] takes them or they are dropped. They keep the session open.
#[derive(Debug)]
pub struct Addresses {
    session: ProcessBound<Session>,
    /// The allocation that was there, and is made there again.
    info: AllocationInfo,
    /// `None` once an allocation has taken it.
    space: Option<Space>,
    base: u64,
}

/// Nothing could be allocated there; the addresses are returned.
#[derive(Debug)]
pub struct AllocateAtFailed {
    pub addresses: Vec<Addresses>,
    pub error: Error,
}

impl Addresses {
    /// The address where they begin.
    pub fn as_device_ptr(&self) -> u64 {
        self.base
    }

    /// The size of the allocation that was there.
    pub fn size(&self) -> Bytes {
        self.info.size
    }

    /// The same allocation again, without its content.
    fn request(&self) -> AllocationRequest {
        let request = AllocationRequest::new(self.info.size).device(self.info.device.as_str());
        let part_size = self.info.parts.first().map(|part| part.size);
        part_size.into_iter().fold(request, AllocationRequest::part_size).uninitialized().unpinned()
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        if !self.session.is_own_process() {
            // They are the parent's, and the child has no mapping there.
            std::mem::forget(self.space.take());
        }
    }
}

/// See [`Allocation::free_keeping_addresses`].
pub(crate) fn free_keeping(mut handle: Box<Handle>) -> Result<Addresses, FreeFailed<Allocation>> {
    match run_ready(handle.free_keeping_space(CallStyle::Blocking)) {
        Ok((space, base)) => Ok(Addresses {
            session: handle.session_bound().clone(),
            info: handle.info().clone(),
            space: Some(space),
            base,
        }),
        Err(error) => Err(FreeFailed { handle: Allocation::from_handle(handle), error }),
    }
}

/// See [`crate::Client::allocate_at`].
pub(crate) fn allocate_at(
    session: &ProcessBound<Session>,
    addresses: Vec<Addresses>,
    wait: Duration,
) -> Result<Vec<Allocation>, Box<AllocateAtFailed>> {
    let made = check_process(session).and_then(|()| {
        if !session.table().is_asked_for_pins() {
            return Err(invalid("the daemon maps memory without being asked"));
        }
        if addresses.iter().any(|it| !it.session.is_same(session)) {
            return Err(invalid("they belong to another session"));
        }
        let requests = addresses.iter().map(|it| it.request().wait(wait)).collect();
        run_ready(operations::claim_new(CallStyle::Blocking, session, requests))
    });
    let handles = match made {
        Ok(handles) => handles,
        Err(error) => return Err(Box::new(AllocateAtFailed { addresses, error })),
    };
    // No part is sent before the first pin, so nothing lies elsewhere yet.
    for (handle, mut kept) in handles.iter().zip(addresses) {
        if let Some(space) = kept.space.take() {
            session.table().put_space(handle.info().id, space);
        }
    }
    Ok(handles.into_iter().map(Allocation::new).collect())
}

fn invalid(problem: &str) -> Error {
    Error::refused(Reason::RequestInvalid, &[("field", &"addresses"), ("problem", &problem)])
}

impl fmt::Display for AllocateAtFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allocating at {} kept addresses: {}", self.addresses.len(), self.error)
    }
}

impl std::error::Error for AllocateAtFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
