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
    handles::{
        advice::Advice,
        info::{AllocationInfo, AllocationKind, AllocationState, Lifetime},
    },
    mapping::{Base, Until, Window},
    pins::{Anchor, Placed, View},
    process::fork::ProcessBound,
    rpc::request_id::RequestId,
    session::{
        Parting, Released, Session,
        call_style::{Face, now},
        check_home, describe, free, missing, part,
    },
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
    pub(crate) async fn wait_held(&mut self, face: Face, deadline: Instant) -> Result<()> {
        let writes = self.parting == Some(Parting::Free) || self.info.kind == AllocationKind::Fixed;
        if self.session.table().is_away(self.info.id, self.info.parts.len()) {
            // It had come before this handle, and went again.
            self.hold_until(face, deadline).await?;
        }
        self.wait_for(face, if writes { Access::ReadWrite } else { Access::ReadOnly }, deadline).await?;
        self.place_anchor();
        Ok(())
    }

    /// The handle holds nothing, and nothing is sent before it is asked for.
    pub(crate) fn begin_unheld(&self) {
        self.session.table().begin_unheld(self.info.id, self.info.state != AllocationState::Sealed);
        self.place_anchor();
    }

    /// Its session has made it, and is to do with it what owners do.
    pub(crate) fn is_the_owners(&mut self) {
        self.parting = Some(parting_of(self.info.lifetime));
    }

    fn place_anchor(&self) {
        let ends = self.info.parts.iter().map(|part| part.offset.get() + part.size.get()).collect();
        self.anchor.place(Placed::new(ends, self.info.size));
        self.anchor.learn(self.anchor.all_parts());
    }

    /// Nobody tells a session of an allocation that was freed before its first part was sent: now and then it asks.
    async fn wait_for(&self, face: Face, access: Access, deadline: Instant) -> Result<()> {
        let id = self.info.id;
        loop {
            let pause = deadline.min(Instant::now() + ASK_INTERVAL);
            let until = Until::Held { id, parts: self.info.parts.len(), access };
            match face.wait(&self.session, until, pause).await {
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
        let deadline = self.session.deadline();
        self.wait_unpinned(face, deadline).await?;
        let table = self.session.table();
        let held = table.is_holding(self.info.id);
        // What is not held comes back when it is pinned. Who can't ask for it waits for it, and lets go again.
        let waits = held || !table.is_asked_for_pins();
        if waits {
            table.set_holding(self.info.id);
        }
        let outcome = self.seal_unpinned(face, waits, deadline).await;
        // What has come back has its words elsewhere. No guard knew where they were: there is none.
        if !waits {
            self.session.table().forget_slots(self.info.id, outcome.is_ok());
        }
        self.anchor = ProcessBound::new(Anchor::new(&self.session, self.info.id));
        self.place_anchor();
        if !held {
            self.session.table().unhold(self.info.id);
        }
        outcome
    }

    async fn seal_unpinned(&mut self, face: Face, waits: bool, deadline: Instant) -> Result<()> {
        let request = v1::SealRequest {
            session_id: self.session.id().get(),
            request_id: self.seal_request.to_vec(),
            allocation_id: self.info.id.get(),
        };
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
                if waits {
                    self.wait_reopened(face, &error).await;
                }
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
        if waits { self.wait_for(face, Access::ReadOnly, deadline).await } else { Ok(()) }
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
        if matches!(error.reason(), Some(Reason::DriverFailed | Reason::ContentLost | Reason::NameTaken)) {
            // It failed; the handle tells whether it is mapped.
            let deadline = Instant::now() + REOPEN_TIMEOUT;
            let (id, parts, access) = (self.info.id, self.info.parts.len(), Access::ReadWrite);
            let _ = face.wait(&self.session, Until::Held { id, parts, access }, deadline).await;
        }
    }

    /// Nobody waits for the seal any more. What is to stay is sealed all the same; the rest goes as it would have.
    pub(crate) fn finish_seal(mut self: Box<Self>) {
        if self.session.is_home() && self.parting.is_some() && self.info.lifetime == Lifetime::Persistent {
            self.session.clone().releases().work(move || {
                match now(self.seal(Face::Blocking)) {
                    // It is used yet: the last who does parts from it.
                    Err(Error::Pinned { .. } | Error::Deadline) => drop(self),
                    // What came of it the handle knows.
                    _ => self.part_now(),
                }
            });
        }
    }

    /// Does what a drop would have done, and waits for it.
    pub(crate) fn part_now(mut self) {
        if let Some(parting) = self.parting.take() {
            drop(now(part(Face::Blocking, &self.session, self.info.id, parting, self.session.deadline())));
        }
    }

    pub(crate) async fn advise(&self, face: Face, advice: Advice) -> Result<()> {
        check_home(&self.session)?;
        let request = v1::AdviseRequest {
            session_id: self.session.id().get(),
            request_id: RequestId::random().to_vec(),
            allocation_id: self.info.id.get(),
            advice: v1::Advice::from(advice).into(),
        };
        let deadline = self.session.deadline();
        let answer = face.call(&self.session, deadline, request, |mut client, request| async move {
            client.advise(request).await
        });
        answer.await.map(drop)
    }

    /// Unmaps it and frees it for everybody.
    pub(crate) async fn free(&mut self, face: Face) -> Result<Released> {
        check_home(&self.session)?;
        let deadline = self.session.deadline();
        self.wait_unpinned(face, deadline).await?;
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
    pub(crate) async fn detach(&mut self, face: Face) -> Result<()> {
        check_home(&self.session)?;
        let deadline = self.session.deadline();
        self.wait_unpinned(face, deadline).await?;
        self.part(face, Parting::Detach, deadline).await.map(drop)
    }

    /// If it fails, or nobody waits for it to its end, the drop does it again.
    async fn part(&mut self, face: Face, parting: Parting, deadline: Instant) -> Result<Released> {
        self.parting = Some(parting);
        let released = part(face, &self.session, self.info.id, parting, deadline).await?;
        self.parting = None;
        Ok(released)
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
        self.anchor.base()
    }

    /// The caller has what it writes to for itself.
    pub(crate) async fn copy_from_host(&self, face: Face, offset_bytes: u64, from: &[u8]) -> Result<()> {
        let mut at = self.check_range(offset_bytes, from.len())?;
        self.see(View::Alone)?;
        for chunk in from.chunks(face.copy_chunk()) {
            let bytes = at as u64..(at + chunk.len()) as u64;
            self.copying(face, Some(Access::ReadWrite), bytes, |window| window.write(at, chunk)).await?;
            at += chunk.len();
            face.breathe().await;
        }
        // Nothing was lent.
        self.anchor.views().handle_is_alone();
        Ok(())
    }

    pub(crate) async fn copy_to_host(&self, face: Face, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        let mut at = self.check_range(offset_bytes, to.len())?;
        self.see(View::Shared)?;
        for chunk in to.chunks_mut(face.copy_chunk()) {
            let bytes = at as u64..(at + chunk.len()) as u64;
            self.copying(face, None, bytes, |window| window.read(at, chunk)).await?;
            at += chunk.len();
            face.breathe().await;
        }
        Ok(())
    }

    /// Copies a chunk, for which parts that the handle does not hold are brought here.
    async fn copying(
        &self,
        face: Face,
        access: Option<Access>,
        chunk: Range<u64>,
        copy: impl FnOnce(&Window) -> Result<(), String>,
    ) -> Result<()> {
        let (id, table) = (self.info.id, self.session.table());
        if table.is_holding(id) {
            return table.copying(id, self.info.parts.len(), access, copy);
        }
        let parts = self.anchor.placed().map_or(0..0, |placed| placed.parts(&chunk));
        let access = access.map_or(vramd_words::Access::Read, |_| vramd_words::Access::Write);
        // Not by `pin`: that would end what the caller has of the handle's views.
        let _pinned = self.take(face, parts, access, self.session.deadline()).await?;
        if access == vramd_words::Access::Write && !table.is_writable(id) {
            return Err(Error::NotMapped { allocation: id.to_string() });
        }
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
