//! What every handle of an allocation does: claim it, wait for its parts, seal it, part from it.

#![allow(unsafe_code, reason = "slices over shared mappings")]

mod pinning;

use std::{
    ops::Range,
    ptr, slice,
    time::{Duration, Instant},
};

use vramd_proto::v1::{self, Access};
use vramd_types::Reason;

use crate::{
    error::{Error, Result},
    fork::ProcessBound,
    info::{AllocationInfo, AllocationKind, AllocationState, Lifetime},
    mapping::{Base, COPY_CHUNK_BYTES, Until, Window},
    pins::{Anchor, Placed, View},
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
    /// Shared with its guards.
    anchor: ProcessBound<Anchor>,
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
        let anchor = ProcessBound::new(Anchor::new(session, info.id));
        Ok(Self { session: session.clone(), info, anchor, parting: Some(parting), seal_request })
    }

    /// Waits until all parts are here: writable for who is to write them.
    pub(crate) fn wait_held(&mut self, deadline: Instant) -> Result<()> {
        let writes = self.parting == Some(Parting::Free) || self.info.kind == AllocationKind::Fixed;
        if self.session.table().is_away(self.info.id, self.info.parts.len()) {
            // It had come before this handle, and went again.
            self.hold_until(deadline)?;
        }
        self.wait_for(if writes { Access::ReadWrite } else { Access::ReadOnly }, deadline)?;
        let table = self.session.table();
        if let Some(base) = table.base(self.info.id) {
            let ends = self.info.parts.iter().map(|part| part.offset.get() + part.size.get()).collect();
            self.anchor.place(Placed { base, slots: table.slots(self.info.id), ends, size: self.info.size });
        }
        Ok(())
    }

    /// Nobody tells a session of an allocation that was freed before its first part was sent: now and then it asks.
    fn wait_for(&self, access: Access, deadline: Instant) -> Result<()> {
        let id = self.info.id;
        loop {
            let pause = deadline.min(Instant::now() + ASK_INTERVAL);
            match self.session.wait(Until::Held { id, parts: self.info.parts.len(), access }, pause) {
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
        let deadline = self.session.deadline();
        self.wait_unpinned(deadline)?;
        // What comes back is to stay until this has seen it, and then only if it was held before.
        let held = self.session.table().is_holding(self.info.id);
        self.session.table().set_holding(self.info.id);
        let outcome = self.seal_unpinned(deadline);
        if !held {
            self.session.table().unhold(self.info.id);
        }
        outcome
    }

    fn seal_unpinned(&mut self, deadline: Instant) -> Result<()> {
        let request = v1::SealRequest {
            session_id: self.session.id().get(),
            request_id: self.seal_request.to_vec(),
            allocation_id: self.info.id.get(),
        };
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
            let (id, parts, access) = (self.info.id, self.info.parts.len(), Access::ReadWrite);
            let _ = self.session.table().wait(Until::Held { id, parts, access }, deadline);
        }
    }

    /// Unmaps it and frees it for everybody.
    pub(crate) fn free(&mut self) -> Result<Released> {
        check_home(&self.session)?;
        let deadline = self.session.deadline();
        self.wait_unpinned(deadline)?;
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
    pub(crate) fn detach(&mut self) -> Result<()> {
        check_home(&self.session)?;
        let deadline = self.session.deadline();
        self.wait_unpinned(deadline)?;
        self.parting = None;
        self.session.part(self.info.id, Parting::Detach, deadline).map(drop)
    }

    pub(crate) fn is_mapped(&self) -> bool {
        self.session.is_home() && self.session.table().held(self.info.id, None) == self.info.parts.len()
    }

    pub(crate) fn as_device_ptr(&self) -> u64 {
        self.base().map_or(0, |base| base.address)
    }

    pub(crate) fn is_device_memory(&self) -> bool {
        self.base().is_some_and(|base| base.is_device)
    }

    /// As first mapped, where it stays.
    fn base(&self) -> Option<Base> {
        self.anchor.placed().map(|placed| placed.base)
    }

    pub(crate) fn copy_from_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<()> {
        let offset = self.check_range(offset_bytes, from.len())?;
        self.see(View::Alone)?;
        for (index, chunk) in from.chunks(COPY_CHUNK_BYTES).enumerate() {
            let at = offset + index * COPY_CHUNK_BYTES;
            let bytes = at as u64..(at + chunk.len()) as u64;
            self.copying(Some(Access::ReadWrite), bytes, |window| window.write(at, chunk))?;
        }
        // Nothing was lent.
        self.anchor.views().handle_is_alone();
        Ok(())
    }

    pub(crate) fn copy_to_host(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        let offset = self.check_range(offset_bytes, to.len())?;
        self.see(View::Shared)?;
        for (index, chunk) in to.chunks_mut(COPY_CHUNK_BYTES).enumerate() {
            let at = offset + index * COPY_CHUNK_BYTES;
            let bytes = at as u64..(at + chunk.len()) as u64;
            self.copying(None, bytes, |window| window.read(at, chunk))?;
        }
        Ok(())
    }

    /// Copies a chunk, for which parts that the handle does not hold are brought here.
    fn copying(
        &self,
        access: Option<Access>,
        chunk: Range<u64>,
        copy: impl FnOnce(&Window) -> Result<(), String>,
    ) -> Result<()> {
        let (id, table) = (self.info.id, self.session.table());
        if table.is_holding(id) {
            return table.copying(id, self.info.parts.len(), access, copy);
        }
        let parts = self.anchor.placed().map_or(0..0, |placed| placed.parts(&chunk));
        let _pinned =
            self.pin(Some(parts), access.map_or(vramd_words::Access::Read, |_| vramd_words::Access::Write))?;
        let window = table.window(id).ok_or_else(|| Error::NotMapped { allocation: id.to_string() })?;
        copy(&window).map_err(|problem| Error::CopyFailed { allocation: id.to_string(), problem })
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
        self.see(View::Shared)?;
        // SAFETY: needed to read shared memory. `place` has checked that it is mapped whole and at least `len` long.
        // Unsealed memory is this handle's and its guards', none of which has a slice to write it (`see`); sealed memory
        // is never written again by anyone that keeps to the protocol. Fixed memory, which others may write, is never the
        // CPU's.
        Ok(unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), len) })
    }

    pub(crate) fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        let (address, len) = self.place(Some(Access::ReadWrite))?;
        self.see(View::Alone)?;
        // SAFETY: needed to write shared memory. `place` has checked that it is mapped whole, writably and at least
        // `len` long; the handle is borrowed mutably, no guard of it has a slice (`see`), and until it is sealed nobody
        // else is given a mapping.
        Ok(unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), len) })
    }

    /// Where the CPU finds all of it.
    fn place(&self, access: Option<Access>) -> Result<(usize, usize)> {
        check_home(&self.session)?;
        let allocation = || self.info.id.to_string();
        let not_mapped = || Error::NotMapped { allocation: allocation() };
        let table = self.session.table();
        if !table.is_holding(self.info.id) {
            return Err(Error::NotPinned { allocation: allocation() });
        }
        let stays = table.held_parts(self.info.id, access) == self.info.parts.len();
        let base = self.base().filter(|_| stays).ok_or_else(not_mapped)?;
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
            // Done by the last of this and its guards.
            self.anchor.part_at_last(parting);
        }
    }
}
