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
    info::{AllocationInfo, AllocationKind, AllocationState, Lifetime},
    mapping::{Base, COPY_CHUNK_BYTES},
    release::Part,
    request_id::RequestId,
    session::{Parting, Released, Session, check_home, missing},
};

/// How often who waits for parts asks whether they will ever come.
const ASK_INTERVAL: Duration = Duration::from_secs(2);
/// How often an unfinished seal is looked at.
const SEAL_POLL: Duration = Duration::from_millis(20);
const REOPEN_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Handle {
    session: ProcessBound<Session>,
    info: AllocationInfo,
    /// As first mapped, where it stays.
    base: Option<Base>,
    /// What Drop does; `None` once it is done.
    parting: Option<Parting>,
    /// Of the first seal: a repeated one is recognised, whatever became of the answer.
    seal_request: RequestId,
}

impl Handle {
    /// The one handle of this session that answers for an allocation, mapped already or not yet.
    pub(crate) fn claim(
        session: &ProcessBound<Session>,
        info: AllocationInfo,
        parting: Parting,
    ) -> Result<Self> {
        session.table().claim(info.id)?;
        let seal_request = RequestId::random();
        Ok(Self { session: session.clone(), info, base: None, parting: Some(parting), seal_request })
    }

    /// Waits until all parts are here: writable for who is to write them.
    pub(crate) fn wait_held(&mut self, deadline: Instant) -> Result<()> {
        let writes = self.parting == Some(Parting::Free) || self.info.kind == AllocationKind::Fixed;
        self.wait_for(if writes { Access::ReadWrite } else { Access::ReadOnly }, deadline)?;
        self.base = self.session.table().base(self.info.id);
        Ok(())
    }

    /// Nobody tells a session of an allocation that was freed before its first part was sent: now and then it asks.
    fn wait_for(&self, access: Access, deadline: Instant) -> Result<()> {
        let id = self.info.id;
        loop {
            let pause = deadline.min(Instant::now() + ASK_INTERVAL);
            match self.session.wait_held(id, self.info.parts.len(), access, pause) {
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
            request_id: self.seal_request.to_vec(),
            allocation_id: self.info.id.get(),
        };
        let deadline = self.session.deadline();
        let answer = self
            .session
            .call(deadline, request, |mut client, request| async move { client.seal(request).await });
        let info = match answer {
            Ok(answer) => AllocationInfo::from(answer.allocation.ok_or_else(|| missing("allocation"))?),
            // An earlier seal of this handle was told an error, and went on.
            Err(error) if error.reason() == Some(Reason::AlreadySealed) => self.wait_sealed(deadline)?,
            Err(error) => {
                self.wait_reopened(&error);
                if matches!(error.reason(), Some(Reason::Deadline | Reason::BrokerGone | Reason::StillMapped))
                {
                    // It may be sealed, or be sealed yet: what is to stay must not be freed by a drop.
                    self.parting = Some(parting_of(self.info.lifetime));
                }
                return Err(error);
            }
        };
        self.parting = Some(parting_of(info.lifetime));
        self.info = info;
        self.wait_for(Access::ReadOnly, deadline)
    }

    fn wait_sealed(&self, deadline: Instant) -> Result<AllocationInfo> {
        loop {
            let info = self.session.describe(self.info.id.into(), deadline)?;
            if info.state != AllocationState::Sealing {
                return Ok(info);
            }
            if Instant::now() >= deadline {
                return Err(Error::Deadline);
            }
            std::thread::sleep(SEAL_POLL);
        }
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

    pub(crate) fn as_device_ptr(&self) -> u64 {
        self.base.map_or(0, |base| base.address)
    }

    pub(crate) fn is_device_memory(&self) -> bool {
        self.base.is_some_and(|base| base.is_device)
    }

    /// The caller has what it writes to for itself.
    pub(crate) fn copy_from_host(&self, offset_bytes: u64, from: &[u8]) -> Result<()> {
        let offset = self.check_range(offset_bytes, from.len())?;
        for (index, chunk) in from.chunks(COPY_CHUNK_BYTES).enumerate() {
            let at = offset + index * COPY_CHUNK_BYTES;
            let (id, parts, access) = (self.info.id, self.info.parts.len(), Some(Access::ReadWrite));
            self.session.table().copying(id, parts, access, |window| window.write(at, chunk))?;
        }
        Ok(())
    }

    pub(crate) fn copy_to_host(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        let offset = self.check_range(offset_bytes, to.len())?;
        for (index, chunk) in to.chunks_mut(COPY_CHUNK_BYTES).enumerate() {
            let at = offset + index * COPY_CHUNK_BYTES;
            let (id, parts) = (self.info.id, self.info.parts.len());
            self.session.table().copying(id, parts, None, |window| window.read(at, chunk))?;
        }
        Ok(())
    }

    /// The offset, if so many bytes there are among those that were asked for.
    fn check_range(&self, offset_bytes: u64, len: usize) -> Result<usize> {
        check_home(&self.session)?;
        let size = self.info.size.get();
        let inside = u64::try_from(len)
            .ok()
            .and_then(|len| offset_bytes.checked_add(len))
            .is_some_and(|end| end <= size);
        usize::try_from(offset_bytes).ok().filter(|_| inside).ok_or_else(|| Error::CopyFailed {
            allocation: self.info.id.to_string(),
            problem: format!("{len} bytes at {offset_bytes} do not lie in its {size} bytes"),
        })
    }

    pub(crate) fn as_slice(&self) -> Result<&[u8]> {
        let (address, len) = self.place(None)?;
        // SAFETY: needed to read shared memory. `place` has checked that it is mapped whole and at least `len` long.
        // Unsealed memory is this handle's alone, which is borrowed; sealed memory is never written again by anyone
        // that keeps to the protocol. Fixed memory, which others may write, is never the CPU's.
        Ok(unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), len) })
    }

    pub(crate) fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        let (address, len) = self.place(Some(Access::ReadWrite))?;
        // SAFETY: needed to write shared memory. `place` has checked that it is mapped whole, writably and at least
        // `len` long; the handle is borrowed mutably, and until it is sealed nobody else is given a mapping.
        Ok(unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), len) })
    }

    /// Where the CPU finds all of it.
    fn place(&self, access: Option<Access>) -> Result<(usize, usize)> {
        check_home(&self.session)?;
        let allocation = || self.info.id.to_string();
        let not_mapped = || Error::NotMapped { allocation: allocation() };
        let base = self.base.filter(|_| self.is_mapped_for(access)).ok_or_else(not_mapped)?;
        if base.is_device {
            return Err(Error::DeviceMemory { allocation: allocation() });
        }
        let number = |number: u64| usize::try_from(number).map_err(|_| not_mapped());
        Ok((number(base.address)?, number(self.info.size.get())?))
    }
}

/// What a drop does to sealed memory.
fn parting_of(lifetime: Lifetime) -> Parting {
    match lifetime {
        Lifetime::Persistent => Parting::Detach,
        Lifetime::Session | Lifetime::Unspecified => Parting::Free,
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // In a forked child there is nothing to part from.
        if let Some(parting) = self.parting.take().filter(|_| self.session.is_home()) {
            let part = Part { session: self.session.clone(), id: self.info.id, parting };
            self.session.releases().queue(part);
        }
    }
}
