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
    face::{Face, now},
    fork::ProcessBound,
    info::{AllocationInfo, AllocationKind, AllocationState, Lifetime},
    mapping::Base,
    release::Part,
    request_id::RequestId,
    session::{Parting, Released, Session, check_home, describe, free, missing, part},
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
    pub(crate) async fn wait_held(&mut self, face: Face, deadline: Instant) -> Result<()> {
        let writes = self.parting == Some(Parting::Free) || self.info.kind == AllocationKind::Fixed;
        self.wait_for(face, if writes { Access::ReadWrite } else { Access::ReadOnly }, deadline).await?;
        self.base = self.session.table().base(self.info.id);
        Ok(())
    }

    /// Nobody tells a session of an allocation that was freed before its first part was sent: now and then it asks.
    async fn wait_for(&self, face: Face, access: Access, deadline: Instant) -> Result<()> {
        let id = self.info.id;
        loop {
            let pause = deadline.min(Instant::now() + ASK_INTERVAL);
            match face.wait_held(&self.session, id, self.info.parts.len(), access, pause).await {
                Err(Error::Deadline) if pause < deadline => {}
                outcome => return outcome,
            }
            if describe(face, &self.session, id.into(), deadline).await?.state == AllocationState::Freeing {
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

    pub(crate) async fn seal(&mut self, face: Face) -> Result<()> {
        check_home(&self.session)?;
        let request = v1::SealRequest {
            session_id: self.session.id().get(),
            request_id: self.seal_request.to_vec(),
            allocation_id: self.info.id.get(),
        };
        let deadline = self.session.deadline();
        let answer = face.call(&self.session, deadline, request, |mut client, request| async move {
            client.seal(request).await
        });
        let info = match answer.await {
            Ok(answer) => AllocationInfo::from(answer.allocation.ok_or_else(|| missing("allocation"))?),
            // An earlier seal of this handle was told an error, and went on.
            Err(error) if error.reason() == Some(Reason::AlreadySealed) => {
                self.wait_sealed(face, deadline).await?
            }
            Err(error) => {
                self.wait_reopened(face, &error).await;
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
        self.wait_for(face, Access::ReadOnly, deadline).await
    }

    async fn wait_sealed(&self, face: Face, deadline: Instant) -> Result<AllocationInfo> {
        loop {
            let info = describe(face, &self.session, self.info.id.into(), deadline).await?;
            if info.state != AllocationState::Sealing {
                return Ok(info);
            }
            if Instant::now() >= deadline {
                return Err(Error::Deadline);
            }
            face.pause(SEAL_POLL).await;
        }
    }

    /// A seal that was begun and failed gives the writer its mapping back.
    async fn wait_reopened(&self, face: Face, error: &Error) {
        if matches!(error.reason(), Some(Reason::DriverFailed | Reason::NameTaken)) {
            // It failed; the handle tells whether it is mapped.
            let deadline = Instant::now() + REOPEN_TIMEOUT;
            let (id, parts) = (self.info.id, self.info.parts.len());
            let _ = face.wait_held(&self.session, id, parts, Access::ReadWrite, deadline).await;
        }
    }

    /// Nobody waits for the seal any more. What is to stay is sealed all the same; the rest goes as it would have.
    pub(crate) fn finish_seal(mut self: Box<Self>) {
        if self.session.is_home() && self.parting.is_some() && self.info.lifetime == Lifetime::Persistent {
            self.session.clone().releases().work(move || {
                // What came of it the handle knows.
                let _ = now(self.seal(Face::Blocking));
                self.part_now();
            });
        }
    }

    /// Does what a drop would have done, and waits for it.
    pub(crate) fn part_now(mut self) {
        if let Some(parting) = self.parting.take() {
            drop(now(part(Face::Blocking, &self.session, self.info.id, parting, self.session.deadline())));
        }
    }

    /// Unmaps it and frees it for everybody.
    pub(crate) async fn free(mut self, face: Face) -> Result<Released> {
        check_home(&self.session)?;
        let deadline = self.session.deadline();
        if self.parting == Some(Parting::Detach) {
            // Whether this session may is not certain: it stays attached until the daemon agrees, and then obeys the
            // revoke that follows.
            let released = free(face, &self.session, self.info.id, deadline).await?;
            self.parting = None;
            face.let_go(&self.session, self.info.id, true).await;
            return Ok(released);
        }
        self.part(face, Parting::Free, deadline).await
    }

    /// Unmaps it and leaves it as it is.
    pub(crate) async fn detach(mut self, face: Face) -> Result<()> {
        check_home(&self.session)?;
        self.part(face, Parting::Detach, self.session.deadline()).await.map(drop)
    }

    /// If nobody waits for it to its end, the drop does it again.
    async fn part(&mut self, face: Face, parting: Parting, deadline: Instant) -> Result<Released> {
        self.parting = Some(parting);
        let outcome = part(face, &self.session, self.info.id, parting, deadline).await;
        self.parting = None;
        outcome
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
    pub(crate) async fn copy_from_host(&self, face: Face, offset_bytes: u64, from: &[u8]) -> Result<()> {
        let mut at = self.check_range(offset_bytes, from.len())?;
        for chunk in from.chunks(face.copy_chunk()) {
            let (id, parts, access) = (self.info.id, self.info.parts.len(), Some(Access::ReadWrite));
            self.session.table().copying(id, parts, access, |window| window.write(at, chunk))?;
            at += chunk.len();
            face.breathe().await;
        }
        Ok(())
    }

    pub(crate) async fn copy_to_host(&self, face: Face, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        let mut at = self.check_range(offset_bytes, to.len())?;
        for chunk in to.chunks_mut(face.copy_chunk()) {
            let (id, parts) = (self.info.id, self.info.parts.len());
            self.session.table().copying(id, parts, None, |window| window.read(at, chunk))?;
            at += chunk.len();
            face.breathe().await;
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
