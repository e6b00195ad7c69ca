//! What every handle of an allocation does: claim it, wait for its parts, seal it, part from it.

#![allow(unsafe_code, reason = "slices over shared mappings")]

use std::{
    ptr, slice,
    time::{Duration, Instant},
};

use vramd_proto::v1::{self, Access};
use vramd_types::Reason;

use crate::{
    error::{Error, Result},
    fork::ProcessBound,
    info::{AllocationInfo, AllocationState, Lifetime},
    release::Job,
    request_id::RequestId,
    session::{Parting, Released, Session, check_home, missing},
};

/// How often who waits for parts asks whether they will ever come.
const ASK_INTERVAL: Duration = Duration::from_secs(2);
const REOPEN_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Handle {
    session: ProcessBound<Session>,
    info: AllocationInfo,
    address: usize,
    /// What Drop does; `None` once it is done.
    parting: Option<Parting>,
}

impl Handle {
    /// The one handle of this session that answers for an allocation, mapped already or not yet.
    pub(crate) fn claim(
        session: &ProcessBound<Session>,
        info: AllocationInfo,
        parting: Parting,
    ) -> Result<Self> {
        session.table().claim(info.id)?;
        Ok(Self { session: session.clone(), info, address: 0, parting: Some(parting) })
    }

    /// Waits until all parts are here: writable for who is to write them.
    pub(crate) fn wait_held(&mut self, deadline: Instant) -> Result<()> {
        let access = if self.parting == Some(Parting::Free) { Access::ReadWrite } else { Access::ReadOnly };
        self.wait_for(access, deadline)?;
        let base = self.session.table().base(self.info.id);
        self.address = base.map_or(0, |base| base.as_ptr().expose_provenance());
        Ok(())
    }

    /// Nobody tells a session of an allocation that was freed before its first part was sent: now and then it asks.
    fn wait_for(&self, access: Access, deadline: Instant) -> Result<()> {
        let (id, table) = (self.info.id, self.session.table());
        loop {
            let pause = deadline.min(Instant::now() + ASK_INTERVAL);
            match table.wait_held(id, self.info.parts.len(), access, pause) {
                Err(Error::Deadline) if pause < deadline => {}
                outcome => return outcome,
            }
            if self.session.describe(id.into(), deadline)?.state == AllocationState::Freeing {
                return Err(Error::AllocationNotFound { allocation: id.to_string() });
            }
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn info(&self) -> &AllocationInfo {
        &self.info
    }

    pub(crate) fn seal(&mut self) -> Result<()> {
        check_home(&self.session)?;
        let request = v1::SealRequest {
            session_id: self.session.id().get(),
            request_id: RequestId::random().to_vec(),
            allocation_id: self.info.id.get(),
        };
        let deadline = self.session.deadline();
        let answer = self
            .session
            .call(deadline, request, |mut client, request| async move { client.seal(request).await })
            .inspect_err(|error| self.wait_reopened(error))?;
        let info = AllocationInfo::from(answer.allocation.ok_or_else(|| missing("allocation"))?);
        self.wait_for(Access::ReadOnly, deadline)?;
        self.parting = Some(match info.lifetime {
            Lifetime::Persistent => Parting::Detach,
            Lifetime::Session | Lifetime::Unspecified => Parting::Free,
        });
        self.info = info;
        Ok(())
    }

    /// A seal that was begun and failed gives the writer its mapping back.
    fn wait_reopened(&self, error: &Error) {
        if matches!(error.reason(), Some(Reason::DriverFailed | Reason::NameTaken)) {
            // It failed; the handle tells whether it is mapped.
            let deadline = Instant::now() + REOPEN_TIMEOUT;
            let _ = self.session.table().wait_held(
                self.info.id,
                self.info.parts.len(),
                Access::ReadWrite,
                deadline,
            );
        }
    }

    /// Unmaps it and frees it for everybody.
    pub(crate) fn free(mut self) -> Result<Released> {
        check_home(&self.session)?;
        let deadline = self.session.deadline();
        if self.parting == Some(Parting::Detach) {
            // Whether this session may is not certain: it stays attached until the daemon agrees, and then obeys the
            // revoke that follows.
            let released = self.session.free(self.info.id, deadline)?;
            self.parting = None;
            self.session.let_go(self.info.id, true);
            return Ok(released);
        }
        self.parting = None;
        self.session.part(self.info.id, Parting::Free, deadline)
    }

    /// Unmaps it and leaves it as it is.
    pub(crate) fn detach(mut self) -> Result<()> {
        check_home(&self.session)?;
        self.parting = None;
        self.session.part(self.info.id, Parting::Detach, self.session.deadline()).map(drop)
    }

    pub(crate) fn is_mapped(&self) -> bool {
        self.is_mapped_for(None)
    }

    fn is_mapped_for(&self, access: Option<Access>) -> bool {
        self.session.is_home() && self.session.table().held(self.info.id, access) == self.info.parts.len()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        let (address, len) = self.place(None);
        // SAFETY: needed to read shared memory. `place` has checked that it is mapped whole and at least `len` long.
        // Unsealed memory is this handle's alone, which is borrowed; sealed memory is never written again by anyone
        // that keeps to the protocol.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        let (address, len) = self.place(Some(Access::ReadWrite));
        // SAFETY: needed to write shared memory. `place` has checked that it is mapped whole, writably and at least
        // `len` long; the handle is borrowed mutably, and until it is sealed nobody else is given a mapping.
        unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), len) }
    }

    fn place(&self, access: Option<Access>) -> (usize, usize) {
        assert!(
            self.is_mapped_for(access),
            "{} is not mapped: it was revoked or sealed, or this is a forked child",
            self.info.id
        );
        let len = usize::try_from(self.info.size.get()).expect("the whole span is mapped, so its size fits");
        (self.address, len)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // In a forked child there is nothing to part from.
        if let Some(parting) = self.parting.take().filter(|_| self.session.is_home()) {
            let job = Job::Part { session: self.session.clone(), id: self.info.id, parting };
            self.session.queue(job);
        }
    }
}
