//! A handle and its pins: its own, which hold the whole allocation, and those of its guards.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use vramd_proto::channel::PARTS_PER_FRAME_MAX;
use vramd_types::{AllocationId, Reason};
use vramd_words::Access;

use super::Handle;
use crate::{
    error::{Error, Result},
    handles::info::AllocationState,
    pins::{Anchor, Pinned, PinnedRef, Seen, View},
    process::fork::ProcessBound,
    session::{Session, call_style::Face, check_home},
};

/// How often who waits for streams looks again.
const STREAMS_POLL: Duration = Duration::from_micros(200);

impl Handle {
    pub(crate) fn anchor(&self) -> &ProcessBound<Anchor> {
        &self.anchor
    }

    pub(crate) fn is_of(&self, session: &ProcessBound<Session>) -> bool {
        self.session.is_same(session)
    }

    /// All parts, or some.
    #[inline]
    pub(crate) fn pin(&self, parts: Option<Range<u32>>, access: Access) -> Result<Pinned> {
        self.pin_ref(parts, access).map(PinnedRef::into_pinned)
    }

    #[inline]
    pub(crate) fn pin_ref(&self, parts: Option<Range<u32>>, access: Access) -> Result<PinnedRef<'_>> {
        self.check_pin(access)?;
        let parts = self.anchor.parts(parts)?;
        PinnedRef::take(&self.anchor, parts, access, || self.session.deadline())
    }

    /// Waits for no longer than that.
    pub(crate) fn pin_timeout(&self, parts: Range<u32>, access: Access, wait: Duration) -> Result<Pinned> {
        self.check_pin(access)?;
        let parts = self.anchor.parts(Some(parts))?;
        let deadline = || self.session.deadline_after(wait);
        PinnedRef::take(&self.anchor, parts, access, deadline).map(PinnedRef::into_pinned)
    }

    /// For a task.
    pub(crate) async fn pin_async(
        &self,
        parts: Option<Range<u32>>,
        access: Access,
        wait: Option<Duration>,
    ) -> Result<Pinned> {
        self.check_pin(access)?;
        let parts = self.anchor.parts(parts)?;
        let deadline = wait.map(|wait| self.session.deadline_after(wait));
        self.take(Face::Async, parts, access, deadline.unwrap_or_else(|| self.session.deadline())).await
    }

    pub(super) async fn take(
        &self,
        face: Face,
        parts: Range<u32>,
        access: Access,
        deadline: Instant,
    ) -> Result<Pinned> {
        if let Some(pinned) = Pinned::at_hand(&self.anchor, parts.clone(), access)? {
            return Ok(pinned);
        }
        let anchor = self.anchor.clone();
        face.block(move || PinnedRef::take(&anchor, parts, access, || deadline).map(PinnedRef::into_pinned))
            .await
    }

    /// Whether it can be pinned at all. No system call.
    #[inline]
    pub(crate) fn check_pin(&self, access: Access) -> Result<()> {
        check_home(&self.session)?;
        self.anchor.views().handle_is_borrowed();
        if access == Access::Write && self.info.state == AllocationState::Sealed {
            return Err(self.is_sealed());
        }
        Ok(())
    }

    #[cold]
    fn is_sealed(&self) -> Error {
        Error::refused(Reason::AlreadySealed, &[("allocation", &self.info.id)])
    }

    pub(crate) fn has_handle_pin(&self) -> bool {
        self.session.is_home() && self.session.table().is_holding(self.info.id)
    }

    /// The caller has the handle for itself.
    pub(crate) async fn hold(&self, face: Face) -> Result<()> {
        check_home(&self.session)?;
        self.anchor.views().handle_is_alone();
        let outcome = self.hold_until(face, self.session.deadline()).await;
        self.anchor.learn(self.anchor.all_parts());
        outcome
    }

    pub(crate) fn unpin(&mut self) -> Result<()> {
        check_home(&self.session)?;
        self.anchor.views().handle_is_alone();
        self.session.table().unhold(self.info.id);
        Ok(())
    }

    /// Takes the handle's own pins, and waits for what is not here.
    pub(super) async fn hold_until(&self, face: Face, deadline: Instant) -> Result<()> {
        let (session, id, parts) = (self.session.clone(), self.info.id, self.info.parts.len());
        // As a guard does, it keeps the handle from being parted from meanwhile, whoever still waits for it.
        let anchor = self.anchor.clone();
        face.block(move || {
            let _kept = anchor;
            hold_until(&session, id, parts, deadline)
        })
        .await
    }

    /// Before it is parted from or sealed: refused while guards are alive, but those that streams will end are waited for.
    pub(super) async fn wait_unpinned(&mut self, face: Face, deadline: Instant) -> Result<()> {
        loop {
            // In this order: a guard whose stream is done goes before its count does.
            let for_streams = self.anchor.waiting_for_streams();
            let guards = self.anchor.others();
            if guards > for_streams {
                let pins = guards.saturating_sub(for_streams) as u64;
                return Err(Error::Pinned { allocation: self.info.id.to_string(), pins });
            }
            if for_streams == 0 && self.anchor.is_alone() {
                self.anchor.views().handle_is_alone();
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::Deadline);
            }
            face.pause(STREAMS_POLL).await;
        }
    }

    /// Lends the bytes as a slice, unless a guard's forbids it.
    pub(super) fn see(&self, view: View) -> Result<()> {
        let allocation = || self.info.id.to_string();
        let pins = || self.anchor.others() as u64;
        self.anchor
            .views()
            .by_handle(view)
            .map_err(|Seen| Error::Pinned { allocation: allocation(), pins: pins() })
    }
}

fn hold_until(
    session: &ProcessBound<Session>,
    id: AllocationId,
    parts: usize,
    deadline: Instant,
) -> Result<()> {
    let table = session.table();
    let held = table.is_holding(id);
    let outcome = table.hold(id, parts).and_then(|missing| {
        missing.chunks(PARTS_PER_FRAME_MAX).try_for_each(|some| {
            session.pin_waiting(some, deadline)?;
            table.adopt(id, some);
            Ok(())
        })
    });
    let whole = || table.held_parts(id, None) == parts;
    let outcome = outcome.and_then(|()| {
        // Who freed it meanwhile has it.
        whole().then_some(()).ok_or_else(|| Error::NotMapped { allocation: id.to_string() })
    });
    if outcome.is_err() && !held {
        table.unhold(id);
    }
    outcome
}
