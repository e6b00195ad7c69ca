//! The pins of a handle: its own handle pin over the whole allocation, and those of its guards.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use vramd_proto::channel::PARTS_PER_FRAME_MAX;
use vramd_types::{AllocationId, Reason};
use vramd_words::Access;

use super::Handle;
use crate::{
    error::{Error, Result, Sentence},
    handles::info::AllocationState,
    pins::{Anchor, Pinned, PinnedRef, View, ViewConflict},
    process::fork::ProcessBound,
    session::{Session, call_style::CallStyle, check_process},
};

/// How often a caller that waits for guards of streams looks again.
const STREAMS_POLL: Duration = Duration::from_micros(200);

impl Handle {
    pub(crate) fn anchor(&self) -> &ProcessBound<Anchor> {
        &self.anchor
    }

    pub(crate) fn is_of(&self, session: &ProcessBound<Session>) -> bool {
        self.session.is_same(session)
    }

    /// Pins all parts, or some.
    #[inline]
    pub(crate) fn pin(&self, parts: Option<Range<u32>>, access: Access) -> Result<Pinned> {
        self.pin_ref(parts, access).map(PinnedRef::into_pinned)
    }

    #[inline]
    pub(crate) fn pin_ref(&self, parts: Option<Range<u32>>, access: Access) -> Result<PinnedRef<'_>> {
        self.check_pin(access)?;
        let parts = self.anchor.parts(parts)?;
        PinnedRef::pin_or_wait(&self.anchor, parts, access, || self.session.deadline())
    }

    /// Pins parts, waiting at most `wait` for them.
    pub(crate) fn pin_timeout(&self, parts: Range<u32>, access: Access, wait: Duration) -> Result<Pinned> {
        self.check_pin(access)?;
        let parts = self.anchor.parts(Some(parts))?;
        let deadline = || self.session.deadline_after(wait);
        PinnedRef::pin_or_wait(&self.anchor, parts, access, deadline).map(PinnedRef::into_pinned)
    }

    /// Pins parts for an async caller.
    pub(crate) async fn pin_async(
        &self,
        parts: Option<Range<u32>>,
        access: Access,
        wait: Option<Duration>,
    ) -> Result<Pinned> {
        self.check_pin(access)?;
        let parts = self.anchor.parts(parts)?;
        let deadline = wait.map(|wait| self.session.deadline_after(wait));
        self.take(CallStyle::Async, parts, access, deadline.unwrap_or_else(|| self.session.deadline())).await
    }

    pub(super) async fn take(
        &self,
        style: CallStyle,
        parts: Range<u32>,
        access: Access,
        deadline: Instant,
    ) -> Result<Pinned> {
        if let Some(pinned) = Pinned::try_pin(&self.anchor, parts.clone(), access)? {
            return Ok(pinned);
        }
        let anchor = self.anchor.clone();
        style
            .run_blocking(move || {
                PinnedRef::pin_or_wait(&anchor, parts, access, || deadline).map(PinnedRef::into_pinned)
            })
            .await
    }

    /// Refuses a pin in a forked child, and a pin to write sealed memory. No system call.
    #[inline]
    pub(crate) fn check_pin(&self, access: Access) -> Result<()> {
        check_process(&self.session)?;
        self.anchor.views().end_handle_write();
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
        self.is_pinned && self.session.is_own_process() && self.session.table().has_handle_pins(self.info.id)
    }

    /// Takes the handle pin again. The caller has borrowed the handle mutably.
    pub(crate) async fn hold(&mut self, style: CallStyle) -> Result<()> {
        check_process(&self.session)?;
        self.anchor.views().end_handle_views();
        let was_pinned = self.is_pinned;
        self.take_pin();
        let outcome = self.repin_until(style, self.session.deadline()).await;
        if outcome.is_err() && !was_pinned {
            self.drop_pin();
        }
        self.anchor.refresh_slots(self.anchor.all_parts());
        outcome
    }

    pub(crate) fn unpin(&mut self) -> Result<()> {
        check_process(&self.session)?;
        self.anchor.views().end_handle_views();
        self.drop_pin();
        Ok(())
    }

    pub(super) fn take_pin(&mut self) {
        if !self.is_pinned {
            self.is_pinned = true;
            self.anchor.sharers().add_pin();
        }
    }

    fn drop_pin(&mut self) {
        if std::mem::take(&mut self.is_pinned) {
            let release = || self.session.table().release_handle_pins(self.info.id);
            self.anchor.sharers().drop_pin(release);
        }
    }

    /// Takes the handle pin of every part, and waits for parts that are away.
    pub(super) async fn repin_until(&self, style: CallStyle, deadline: Instant) -> Result<()> {
        let (session, id, parts) = (self.session.clone(), self.info.id, self.info.parts.len());
        // Like a guard, this reference keeps the allocation from being released, even if the caller stops waiting.
        let anchor = self.anchor.clone();
        style
            .run_blocking(move || {
                let _kept = anchor;
                repin_until(&session, id, parts, deadline)
            })
            .await
    }

    /// Refuses to free or seal it while the session has other handles of it; then as [`Self::wait_unpinned`]. From now
    /// on no other handle can begin, unless this fails.
    pub(super) async fn wait_alone(&mut self, style: CallStyle, deadline: Instant) -> Result<()> {
        self.close_if_alone()?;
        let outcome = self.wait_unpinned(style, deadline).await;
        if outcome.is_err() {
            self.anchor.sharers().reopen();
        }
        outcome
    }

    /// Keeps other handles of it from beginning, unless the session has some.
    pub(crate) fn close_if_alone(&self) -> Result<()> {
        check_process(&self.session)?;
        if self.anchor.sharers().close_if_alone() {
            return Ok(());
        }
        let pins = self.anchor.other_count() as u64;
        Err(Error::Pinned { allocation: self.info.id.to_string(), pins, said: Sentence::default() })
    }

    /// Refuses a release or a seal while guards are alive; waits for guards that streams will end.
    pub(super) async fn wait_unpinned(&mut self, style: CallStyle, deadline: Instant) -> Result<()> {
        loop {
            // In this order: a guard of a finished stream ends before its count falls.
            let for_streams = self.anchor.stream_guard_count();
            let guards = self.anchor.other_count();
            if guards > for_streams {
                let pins = guards.saturating_sub(for_streams) as u64;
                return Err(Error::Pinned {
                    allocation: self.info.id.to_string(),
                    pins,
                    said: Sentence::default(),
                });
            }
            if for_streams == 0 && self.anchor.confirm_unshared() {
                self.anchor.views().end_handle_views();
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::deadline());
            }
            style.pause(STREAMS_POLL).await;
        }
    }

    /// Records that the handle lends a slice to the program, unless a guard's slice forbids it.
    pub(super) fn lend_view(&self, view: View) -> Result<()> {
        self.anchor.views().lend_handle_view(view).map_err(|conflict| self.view_conflict(conflict))
    }

    /// Records that a call reads or writes the bytes, unless a guard's slice forbids it.
    pub(super) fn use_view(&self, view: View) -> Result<()> {
        self.anchor.views().add_handle_view(view).map_err(|conflict| self.view_conflict(conflict))
    }

    fn view_conflict(&self, ViewConflict: ViewConflict) -> Error {
        let (allocation, pins) = (self.info.id.to_string(), self.anchor.other_count() as u64);
        Error::Pinned { allocation, pins, said: Sentence::default() }
    }
}

fn repin_until(
    session: &ProcessBound<Session>,
    id: AllocationId,
    parts: usize,
    deadline: Instant,
) -> Result<()> {
    let table = session.table();
    let held = table.has_handle_pins(id);
    let outcome = table.take_handle_pins(id, parts).and_then(|missing| {
        missing.chunks(PARTS_PER_FRAME_MAX).try_for_each(|some| {
            session.pin_waiting(some, deadline)?;
            table.adopt_pins(id, some);
            Ok(())
        })
    });
    let whole = || table.stable_count(id, None) == parts;
    let outcome = outcome.and_then(|()| {
        // It was freed meanwhile.
        whole().then_some(()).ok_or_else(|| Error::NotMapped { allocation: id.to_string() })
    });
    if outcome.is_err() && !held {
        table.release_handle_pins(id);
    }
    outcome
}
