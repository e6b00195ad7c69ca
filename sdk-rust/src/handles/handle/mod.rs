//! The core of every handle: claim an allocation, wait for its parts, copy, seal and release it.
//!
//! A handle owns its [`Anchor`], which its guards share. It changes mappings only through the session's table and
//! calls the daemon through the session.

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
    error::{Error, Result, Sentence},
    handles::{
        advice::Advice,
        info::{AllocationInfo, AllocationKind, AllocationState, Lifetime, Tier},
        operations,
        staging::StagingBuffer,
    },
    mapping::{Base, Label, Space, Until, Window},
    pins::{Anchor, Layout, View},
    process::fork::ProcessBound,
    rpc::request_id::RequestId,
    session::{
        ReleaseKind, Released, Session,
        call_style::{CallStyle, run_ready},
        check_process, describe, free, missing_field, release,
    },
};

/// How often a caller that waits for parts asks whether the allocation still exists.
const ASK_INTERVAL: Duration = Duration::from_secs(2);
/// How often a caller that waits for a seal asks whether it has ended.
const SEAL_POLL: Duration = Duration::from_millis(20);
/// How long an eviction waits for the daemon to hear that pins have ended.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
const SETTLE_POLL: Duration = Duration::from_millis(1);
const REOPEN_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Handle {
    session: ProcessBound<Session>,
    info: AllocationInfo,
    anchor: ProcessBound<Anchor>,
    /// Other handles of this session had mapped it before.
    is_shared: bool,
    /// Whether this handle has its handle pin. The mapping has one as long as any of its handles has.
    is_pinned: bool,
    /// How to release the allocation; `None` once that is done.
    release_kind: Option<ReleaseKind>,
    /// The request id of every seal, so that the daemon recognises a repeated one after a lost answer.
    seal_request: RequestId,
}

impl Handle {
    /// Makes a handle of an allocation, whether parts have arrived or not. Handles of one allocation share its mapping.
    pub(crate) fn claim(
        session: &ProcessBound<Session>,
        info: AllocationInfo,
        release_kind: ReleaseKind,
    ) -> Result<Self> {
        let make = || {
            session.table().claim(info.id, Label::of(&info))?;
            Ok(ProcessBound::new(Anchor::new(session, info.id)))
        };
        let (anchor, is_shared) = session.anchors().join_or_make(info.id, make)?;
        let release_kind = Some(release_kind.or(anchor.take_release_kind()));
        Ok(Self {
            session: session.clone(),
            info,
            anchor,
            is_shared,
            is_pinned: !is_shared,
            release_kind,
            seal_request: RequestId::random(),
        })
    }

    /// Waits until all parts are mapped and pinned by the handle; writable for the owner of an open or fixed
    /// allocation.
    pub(crate) async fn wait_arrived(&mut self, style: CallStyle, deadline: Instant) -> Result<()> {
        let owns_open =
            self.release_kind == Some(ReleaseKind::Free) && self.info.state != AllocationState::Sealed;
        let writes = owns_open || self.info.kind == AllocationKind::Fixed;
        if self.is_shared {
            self.take_pin();
        }
        let table = self.session.table();
        // Parts of a raw session have no pins.
        let may_be_away = self.is_shared && table.maps_itself();
        if may_be_away || table.is_away(self.info.id, self.info.parts.len()) {
            // The parts arrived before this handle existed, and may have been revoked again.
            self.repin_until(style, deadline).await?;
        }
        self.wait_for(style, if writes { Access::ReadWrite } else { Access::ReadOnly }, deadline).await?;
        self.set_anchor_layout();
        Ok(())
    }

    /// Begins without a handle pin: no part is sent before it is requested.
    pub(crate) fn begin_unpinned(&mut self) {
        if !self.is_shared {
            let writes = self.info.state != AllocationState::Sealed;
            self.is_pinned = false;
            let begin = || self.session.table().begin_unpinned(self.info.id, writes);
            self.anchor.sharers().drop_pin(begin);
        }
        self.set_anchor_layout();
    }

    /// Makes a drop release it as its owner does: this session has allocated it.
    pub(crate) fn adopt_as_owner(&mut self) {
        self.release_kind = Some(release_kind_of(self.info.lifetime));
    }

    /// Notes why the bytes of a file were copied, although they were to be its backing.
    pub(crate) fn set_copied_because(&mut self, why: String) {
        self.info.copied_because = Some(why);
    }

    fn set_anchor_layout(&self) {
        let ends = self.info.parts.iter().map(|part| part.offset.get() + part.size.get()).collect();
        self.anchor.set_layout(Layout::new(ends, self.info.size));
        self.anchor.refresh_slots(self.anchor.all_parts());
    }

    /// Waits for parts. The daemon does not report an allocation that was freed before its first part was sent, so
    /// this asks now and then.
    async fn wait_for(&self, style: CallStyle, access: Access, deadline: Instant) -> Result<()> {
        let id = self.info.id;
        loop {
            let pause = deadline.min(Instant::now() + ASK_INTERVAL);
            let until = Until::Arrived { id, parts: self.info.parts.len(), access };
            match style.wait(&self.session, until, pause).await {
                Err(Error::Deadline { .. }) if pause < deadline => {}
                outcome => return outcome,
            }
            if describe(style, &self.session, id.into(), deadline).await?.state == AllocationState::Freeing {
                return Err(Error::refused(Reason::AllocationNotFound, &[("allocation", &id)]));
            }
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn info(&self) -> &AllocationInfo {
        &self.info
    }

    pub(crate) async fn seal(&mut self, style: CallStyle) -> Result<()> {
        check_process(&self.session)?;
        let deadline = self.session.deadline();
        let session = self.session.clone();
        let _bringing = session.table().begin_bringing()?;
        self.wait_alone(style, deadline).await?;
        let table = session.table();
        let held = table.has_handle_pins(self.info.id);
        // Without a handle pin the parts come back with the next pin. A daemon without pins sends them anyway: then
        // wait for them, and give them up again.
        let waits = held || !table.is_asked_for_pins();
        if waits {
            table.request_handle_pins(self.info.id);
        }
        let outcome = self.seal_unpinned(style, waits, deadline).await;
        // Parts that came back have new slots. No guard knows the old ones: none is left.
        if !waits {
            self.session.table().forget_slots(self.info.id, outcome.is_ok());
        }
        // A refused attach of the open allocation has left its detach to this handle, which goes on.
        self.anchor.take_release_kind();
        self.anchor = ProcessBound::new(Anchor::new(&self.session, self.info.id));
        self.is_pinned = held;
        self.session.anchors().replace(&self.anchor, held);
        self.set_anchor_layout();
        if !held {
            self.session.table().release_handle_pins(self.info.id);
        }
        outcome
    }

    async fn seal_unpinned(&mut self, style: CallStyle, waits: bool, deadline: Instant) -> Result<()> {
        let request = v1::SealRequest {
            session_id: self.session.id().get(),
            request_id: self.seal_request.to_vec(),
            allocation_id: self.info.id.get(),
        };
        let answer = style.call(&self.session, deadline, request, |mut client, request| async move {
            client.seal(request).await
        });
        let info = match answer.await {
            Ok(answer) => AllocationInfo::from(answer.allocation.ok_or_else(|| missing_field("allocation"))?),
            // An earlier seal of this handle failed for its caller, and went on in the daemon.
            Err(error) if error.reason() == Some(Reason::AlreadySealed) => {
                self.wait_sealed(style, deadline).await?
            }
            Err(error) => {
                if waits {
                    self.wait_reopened(style, &error).await;
                }
                let unanswered = matches!(
                    error.reason(),
                    Some(Reason::Deadline | Reason::BrokerGone | Reason::StillMapped)
                );
                if unanswered || error == Error::Interrupted {
                    // The daemon may have sealed it, or may do so yet. A persistent allocation must then not be freed
                    // by a drop.
                    self.release_kind = Some(release_kind_of(self.info.lifetime));
                }
                return Err(error);
            }
        };
        self.release_kind = Some(release_kind_of(info.lifetime));
        self.info = info;
        if waits { self.wait_for(style, Access::ReadOnly, deadline).await } else { Ok(()) }
    }

    async fn wait_sealed(&self, style: CallStyle, deadline: Instant) -> Result<AllocationInfo> {
        loop {
            let info = describe(style, &self.session, self.info.id.into(), deadline).await?;
            if info.state != AllocationState::Sealing {
                return Ok(info);
            }
            if Instant::now() >= deadline {
                return Err(Error::deadline());
            }
            style.pause(SEAL_POLL).await;
        }
    }

    /// Waits for the writable mapping that a failed seal gives back.
    async fn wait_reopened(&self, style: CallStyle, error: &Error) {
        if matches!(error.reason(), Some(Reason::DriverFailed | Reason::ContentLost | Reason::NameTaken)) {
            // Ignored: `is_mapped` says whether it came back.
            let deadline = Instant::now() + REOPEN_TIMEOUT;
            let (id, parts, access) = (self.info.id, self.info.parts.len(), Access::ReadWrite);
            let _ = style.wait(&self.session, Until::Arrived { id, parts, access }, deadline).await;
        }
    }

    /// Finishes a seal whose caller has gone: a persistent allocation is sealed all the same; any other is released
    /// as by a drop.
    pub(crate) fn finish_seal(mut self: Box<Self>) {
        if self.session.is_own_process()
            && self.release_kind.is_some()
            && self.info.lifetime == Lifetime::Persistent
        {
            self.session.clone().releases().run(move || {
                match run_ready(self.seal(CallStyle::Blocking)) {
                    // It is still in use: its last user releases it.
                    Err(Error::Pinned { .. } | Error::Deadline { .. }) => drop(self),
                    // The handle has the outcome.
                    _ => self.release_now(),
                }
            });
        }
    }

    /// Releases it as a drop does, and waits for that.
    pub(crate) fn release_now(mut self) {
        if self.leave_or_close() {
            return;
        }
        if let Some(release_kind) = self.release_kind.take() {
            let release_kind = release_kind.or(self.anchor.take_release_kind());
            drop(run_ready(release(
                CallStyle::Blocking,
                &self.session,
                self.info.id,
                release_kind,
                self.session.deadline(),
            )));
        }
    }

    pub(crate) async fn advise(
        &self,
        style: CallStyle,
        parts: Option<Range<u32>>,
        advice: Advice,
    ) -> Result<()> {
        check_process(&self.session)?;
        operations::advise(style, &self.session, self.info.id, parts, advice).await
    }

    /// Unmaps and frees it.
    pub(crate) async fn free(&mut self, style: CallStyle) -> Result<Released> {
        check_process(&self.session)?;
        let deadline = self.session.deadline();
        self.wait_alone(style, deadline).await?;
        let outcome = self.free_alone(style, deadline).await;
        if outcome.is_err() {
            self.anchor.sharers().reopen();
        }
        outcome
    }

    async fn free_alone(&mut self, style: CallStyle, deadline: Instant) -> Result<Released> {
        // Nothing is left to do for handles that were dropped before.
        self.anchor.take_release_kind();
        if self.release_kind == Some(ReleaseKind::Detach) {
            // This session may not be allowed to: it stays attached until the daemon agrees, and then obeys the
            // revoke that follows.
            let released = free(style, &self.session, self.info.id, deadline).await?;
            self.release_kind = None;
            style.unmap(&self.session, self.info.id, true).await;
            return Ok(released);
        }
        self.release(style, ReleaseKind::Free, deadline).await
    }

    /// Frees it, and keeps its addresses. If that fails, the handle has them, and its parts come back with a pin.
    pub(crate) async fn free_keeping_space(&mut self, style: CallStyle) -> Result<(Space, u64)> {
        check_process(&self.session)?;
        let deadline = self.session.deadline();
        self.wait_alone(style, deadline).await?;
        style.unmap(&self.session, self.info.id, false).await;
        let table = self.session.table();
        let taken = self.base().zip(table.take_space(self.info.id));
        let Some((base, space)) = taken else {
            self.anchor.sharers().reopen();
            return Err(Error::NotMapped { allocation: self.info.id.to_string() });
        };
        match self.free_alone(style, deadline).await {
            Ok(_) => Ok((space, base.address)),
            Err(error) => {
                self.session.table().put_space(self.info.id, space);
                self.anchor.sharers().reopen();
                Err(error)
            }
        }
    }

    /// Has the daemon move it to a tier below its device now. An error means that some parts may be on their device.
    pub(crate) async fn evict(&self, style: CallStyle, tier: Tier) -> Result<()> {
        check_process(&self.session)?;
        let until = self.session.deadline().min(Instant::now() + SETTLE_TIMEOUT);
        loop {
            let parts = operations::evict(style, &self.session, self.info.id, tier).await?;
            let settles = self.is_unpinned_here() && parts.iter().all(|part| self.may_move_soon(part));
            match parts.into_iter().find_map(|part| self.not_moved(part)) {
                Some(_) if settles && Instant::now() < until => style.pause(SETTLE_POLL).await,
                stayed => return stayed.map_or(Ok(()), Err),
            }
        }
    }

    fn is_unpinned_here(&self) -> bool {
        !self.session.table().has_handle_pins(self.info.id) && self.anchor.other_count() == 0
    }

    /// Whether a part has moved, or stays for pins of this session that may have ended: the daemon hears of their end on
    /// the channel, which may be later than the call.
    fn may_move_soon(&self, part: &v1::PartMove) -> bool {
        use v1::MoveOutcome as Outcome;
        match part.outcome() {
            Outcome::Moved | Outcome::Wanted => true,
            Outcome::Pinned => part.session_ids == [self.session.id().get()],
            _ => false,
        }
    }

    /// Why a part has not moved, if it has not.
    fn not_moved(&self, part: v1::PartMove) -> Option<Error> {
        use v1::MoveOutcome as Outcome;
        let id = self.info.id;
        Some(match part.outcome() {
            Outcome::Moved => return None,
            Outcome::Refused => part.error.map_or_else(|| missing_field("error"), Error::from),
            Outcome::Failed => {
                let facts: [(&str, &dyn ToString); 2] =
                    [("device", &self.info.device), ("problem", &part.problem)];
                Error::refused(Reason::DriverFailed, &facts)
            }
            Outcome::Pinned | Outcome::Silent | Outcome::Standing | Outcome::Held => Error::Pinned {
                allocation: id.to_string(),
                pins: part.session_ids.len().max(1) as u64,
                said: Sentence::default(),
            },
            Outcome::Freed => Error::refused(Reason::AllocationNotFound, &[("allocation", &id)]),
            Outcome::Wanted | Outcome::Unspecified => Error::refused(Reason::Raced, &[("allocation", &id)]),
        })
    }

    pub(crate) fn session_bound(&self) -> &ProcessBound<Session> {
        &self.session
    }

    /// Unmaps it and leaves it as it is. While the session has other handles of it, only this one ends.
    pub(crate) async fn detach(&mut self, style: CallStyle) -> Result<()> {
        if self.leave()? {
            return Ok(());
        }
        let deadline = self.session.deadline();
        let outcome = self.detach_alone(style, deadline).await;
        if outcome.is_err() {
            self.anchor.sharers().reopen();
        }
        outcome
    }

    async fn detach_alone(&mut self, style: CallStyle, deadline: Instant) -> Result<()> {
        self.wait_unpinned(style, deadline).await?;
        // A handle that was dropped before may have been to free it.
        let release_kind = ReleaseKind::Detach.or(self.anchor.take_release_kind());
        self.release(style, release_kind, deadline).await.map(drop)
    }

    /// Ends this handle if the session has others of the allocation. Otherwise no other can begin any more.
    pub(crate) fn leave(&mut self) -> Result<bool> {
        check_process(&self.session)?;
        Ok(self.leave_or_close())
    }

    fn leave_or_close(&mut self) -> bool {
        let release = || self.session.table().release_handle_pins(self.info.id);
        let left = self.anchor.sharers().leave_or_close(self.is_pinned, release);
        if left {
            self.release_kind = None;
        }
        left
    }

    /// Does what a drop does first: ends this handle if the session has others of the allocation, and keeps others from
    /// beginning if it has not. The drop then releases the allocation.
    pub(crate) fn begin_drop(&mut self) {
        // A forked child has nothing to release.
        if let Some(release_kind) = self.release_kind.filter(|_| self.session.is_own_process()) {
            self.anchor.release_when_unused(release_kind);
            self.leave_or_close();
        }
    }

    /// If this fails, or its future is dropped, the handle's drop tries again.
    async fn release(
        &mut self,
        style: CallStyle,
        release_kind: ReleaseKind,
        deadline: Instant,
    ) -> Result<Released> {
        self.release_kind = Some(release_kind);
        let released = release(style, &self.session, self.info.id, release_kind, deadline).await?;
        self.release_kind = None;
        Ok(released)
    }

    pub(crate) fn is_mapped(&self) -> bool {
        self.session.is_own_process()
            && self.session.table().mapped_count(self.info.id, None) == self.info.parts.len()
    }

    pub(crate) fn as_device_ptr(&self) -> u64 {
        self.base().map_or(0, |base| base.address)
    }

    pub(crate) fn is_device_memory(&self) -> bool {
        self.base().is_some_and(|base| base.is_device)
    }

    /// The address where it was first mapped and stays.
    fn base(&self) -> Option<Base> {
        self.anchor.base()
    }

    pub(crate) fn staging_buffer(&self, bytes: usize) -> Result<StagingBuffer> {
        check_process(&self.session)?;
        let context = self.session.table().context(self.info.id);
        StagingBuffer::new(bytes, context)
            .ok_or_else(|| Error::size_invalid("bytes", u64::try_from(bytes).unwrap_or(u64::MAX)))
    }

    /// Copies into the allocation; the caller has borrowed the handle mutably.
    pub(crate) async fn copy_from_host(
        &self,
        style: CallStyle,
        offset_bytes: u64,
        from: &[u8],
    ) -> Result<()> {
        let mut at = self.check_range(offset_bytes, from.len())?;
        self.use_view(View::Exclusive)?;
        for chunk in from.chunks(style.copy_chunk()) {
            style.check_interrupt()?;
            let bytes = at as u64..(at + chunk.len()) as u64;
            self.copy_chunk(style, Some(Access::ReadWrite), bytes, |window| window.write(at, chunk)).await?;
            at += chunk.len();
            style.yield_now().await;
        }
        // The handle lent no slice.
        self.anchor.views().end_handle_views();
        Ok(())
    }

    pub(crate) async fn copy_to_host(
        &self,
        style: CallStyle,
        offset_bytes: u64,
        to: &mut [u8],
    ) -> Result<()> {
        let mut at = self.check_range(offset_bytes, to.len())?;
        self.use_view(View::Shared)?;
        for chunk in to.chunks_mut(style.copy_chunk()) {
            style.check_interrupt()?;
            let bytes = at as u64..(at + chunk.len()) as u64;
            self.copy_chunk(style, None, bytes, |window| window.read(at, chunk)).await?;
            at += chunk.len();
            style.yield_now().await;
        }
        Ok(())
    }

    /// Copies one chunk, and pins its parts first if the handle has no handle pin.
    async fn copy_chunk(
        &self,
        style: CallStyle,
        access: Option<Access>,
        chunk: Range<u64>,
        copy: impl FnOnce(&Window) -> Result<(), String>,
    ) -> Result<()> {
        let (id, table) = (self.info.id, self.session.table());
        table.check_here()?;
        if table.has_handle_pins(id) {
            return table.copy_pinned(id, self.info.parts.len(), access, copy);
        }
        let parts = self.anchor.layout().map_or(0..0, |layout| layout.parts(&chunk));
        let access = access.map_or(vramd_words::Access::Read, |_| vramd_words::Access::Write);
        // Not by `pin`, which would end the slices that the caller has of the handle.
        let _pinned = self.take(style, parts, access, self.session.deadline()).await?;
        if access == vramd_words::Access::Write && !table.is_writable(id) {
            return Err(Error::NotMapped { allocation: id.to_string() });
        }
        let window = table.window(id).ok_or_else(|| Error::NotMapped { allocation: id.to_string() })?;
        copy(&window).map_err(|problem| Error::CopyFailed { allocation: id.to_string(), problem })
    }

    /// Returns the offset if `len` bytes from there are among the requested ones.
    fn check_range(&self, offset_bytes: u64, len: usize) -> Result<usize> {
        check_process(&self.session)?;
        let size = self.info.size.get();
        let inside = u64::try_from(len)
            .ok()
            .and_then(|len| offset_bytes.checked_add(len))
            .is_some_and(|end| end <= size);
        usize::try_from(offset_bytes).ok().filter(|_| inside).ok_or_else(|| Error::CopyFailed {
            allocation: self.info.id.to_string(),
            problem: format!("{len} bytes at offset {offset_bytes} exceed its {size} bytes"),
        })
    }

    pub(crate) fn as_slice(&self) -> Result<&[u8]> {
        let (address, len) = self.place(None)?;
        self.lend_view(View::Shared)?;
        // `detach_all` sees the slice, or this call sees that it has begun.
        self.session.table().check_here()?;
        // SAFETY: needed to read shared memory. `place` has checked that it is mapped whole and at least `len` long.
        // Unsealed memory belongs to this handle and its guards, none of which has a slice to write it (`lend_view`).
        // A client that keeps to the protocol never writes sealed memory again. Fixed memory, which other sessions
        // may write, is never the CPU's.
        Ok(unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), len) })
    }

    pub(crate) fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        let (address, len) = self.place(Some(Access::ReadWrite))?;
        self.lend_view(View::Exclusive)?;
        // `detach_all` sees the slice, or this call sees that it has begun.
        self.session.table().check_here()?;
        // SAFETY: needed to write shared memory. `place` has checked that it is mapped whole, writably and at least
        // `len` long; the handle is borrowed mutably, no guard of it has a slice (`lend_view`), and no other session
        // is given a mapping until it is sealed.
        Ok(unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), len) })
    }

    /// The address and length of all requested bytes for the CPU.
    fn place(&self, access: Option<Access>) -> Result<(usize, usize)> {
        check_process(&self.session)?;
        let allocation = || self.info.id.to_string();
        let not_mapped = || Error::NotMapped { allocation: allocation() };
        let table = self.session.table();
        table.check_here()?;
        if !self.is_pinned || !table.has_handle_pins(self.info.id) {
            return Err(Error::NotPinned { allocation: allocation() });
        }
        let stays = table.stable_count(self.info.id, access) == self.info.parts.len();
        let base = self.base().filter(|_| stays).ok_or_else(not_mapped)?;
        if base.is_device {
            return Err(Error::DeviceMemory { allocation: allocation() });
        }
        let number = |number: u64| usize::try_from(number).map_err(|_| not_mapped());
        Ok((number(base.address)?, number(self.info.size.get())?))
    }
}

/// How a drop releases sealed memory.
fn release_kind_of(lifetime: Lifetime) -> ReleaseKind {
    match lifetime {
        Lifetime::Persistent => ReleaseKind::Detach,
        Lifetime::Session | Lifetime::Unspecified => ReleaseKind::Free,
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child has nothing to release.
        if let Some(release_kind) = self.release_kind.take().filter(|_| self.session.is_own_process()) {
            // The last of the handles and their guards releases it.
            self.anchor.release_when_unused(release_kind);
            let release = || self.session.table().release_handle_pins(self.info.id);
            self.anchor.sharers().leave(self.is_pinned, release);
        }
    }
}
