//! Prefetch requests: a program asks for memory ahead of its use, and learns how far it is.
//!
//! Request, progress and cancelling are frames of the channel. So asking for the state costs no call, and a program
//! that pins afterwards is heard in this order.

use std::{ops::Range, time::Duration};

use vramd_proto::{
    channel::PARTS_PER_FRAME_MAX,
    v1::{self, prefetch_progress::Step},
};
use vramd_types::Reason;

use crate::{
    channel::ChannelLock,
    error::{Error, Result},
    handles::handle::Handle,
    mapping::Until,
    pins::{Pinnable, private},
    process::fork::ProcessBound,
    rpc::trace_of_caller,
    session::{
        Session,
        call_style::{CallStyle, run_ready},
        check_process,
    },
};

/// Memory that a program needs on its device soon, and how urgently.
///
/// All of it must be of one device, and at most 1,024 parts. Memory that other tenants share may be named, once it is
/// attached.
#[derive(Clone, Debug, Default)]
pub struct PrefetchRequest<'a> {
    members: Vec<(private::Handle<'a>, Option<Range<u32>>)>,
    partial: bool,
    within: Option<Duration>,
    priority: u8,
}

impl<'a> PrefetchRequest<'a> {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds all parts of an allocation.
    #[must_use]
    pub fn all(mut self, of: &'a dyn Pinnable) -> Self {
        self.members.push((of.handle(), None));
        self
    }

    /// Adds some parts of an allocation.
    #[must_use]
    pub fn parts(mut self, of: &'a dyn Pinnable, parts: Range<u32>) -> Self {
        self.members.push((of.handle(), Some(parts)));
        self
    }

    /// Leaves out parts that find no room. Otherwise all parts are fetched, or none.
    #[must_use]
    pub fn partial(mut self) -> Self {
        self.partial = true;
        self
    }

    /// The parts are needed within this time, in whole milliseconds and not zero. Requests with the earliest deadline go
    /// first; one that is late is fetched all the same.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within = Some(within);
        self
    }

    /// Of the requests of one tenant, higher ones go first. The default is 0.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    fn into_frame(self, is_ours: impl Fn(&Handle) -> bool) -> Result<v1::Prefetch> {
        let mut parts = Vec::new();
        for (private::Handle(handle), range) in self.members {
            let id = handle.info().id;
            if !is_ours(handle) {
                return Err(invalid("parts", &format!("{id} belongs to another session")));
            }
            let reference = |index| v1::PartRef { allocation_id: id.get(), part_index: index };
            parts.extend(handle.anchor().parts(range)?.map(reference));
        }
        if parts.is_empty() {
            return Err(invalid("parts", "there are none"));
        }
        if parts.len() > PARTS_PER_FRAME_MAX {
            let problem = format!("there are {}; at most {PARTS_PER_FRAME_MAX} are allowed", parts.len());
            return Err(invalid("parts", &problem));
        }
        let within_ms = self.within.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
        let (partial, priority) = (self.partial, self.priority.into());
        let trace = trace_of_caller();
        Ok(v1::Prefetch { prefetch_id: 0, parts, partial, within_ms, priority, trace })
    }
}

fn invalid(field: &str, problem: &str) -> Error {
    Error::refused(Reason::RequestInvalid, &[("field", &field), ("problem", &problem)])
}

/// How far a prefetch request is.
#[derive(Clone, Debug, PartialEq)]
pub enum PrefetchState {
    /// It has begun nothing yet, and reserved nothing.
    Deferred(PrefetchDeferral),
    /// Its parts are on their way, and their room is reserved. The time is what the daemon expects; unknown until it has
    /// measured a fetch to that device.
    Accepted { expected: Option<Duration> },
    /// The parts are on their device. No other prefetch takes their room before a session uses them; a pin may.
    Ready {
        /// Parts that found no room. Only of a [`PrefetchRequest::partial`] request.
        parts_left_out: u32,
        /// The deadline was over.
        is_late: bool,
    },
    /// A part has left its device before any session used it: ask again, or pin.
    Dropped {
        /// Why it left, in the words of `vramd_move_cause` in the metrics, such as `demand`.
        cause: &'static str,
        /// Its room served this tenant, or none.
        by_own_tenant: bool,
    },
    /// It was cancelled.
    Cancelled { by_operator: bool },
    /// It can never be served, or a fetch failed.
    Refused(Error),
}

impl PrefetchState {
    /// Whether its parts may still come.
    pub fn is_pending(&self) -> bool {
        matches!(self, Self::Deferred(_) | Self::Accepted { .. })
    }
}

/// Why a request has not begun. Only the first reason is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchDeferral {
    /// Clients wait for room on the device, and go first.
    Demand,
    /// An earlier request of the tenant goes first.
    Behind,
    /// Enough prefetched bytes are on their way to the device.
    Link,
    /// The device is full, and nothing that is worth less may leave.
    Room,
    /// Memory that is worth less is leaving for it.
    RoomOnItsWay,
    /// A part of it is on its way elsewhere.
    Moving,
    /// The device is so full that prefetches of the tenant's class are paused.
    Pressure,
    /// A reason that this build does not know.
    Other,
}

impl From<Step> for PrefetchState {
    fn from(step: Step) -> Self {
        match step {
            Step::Deferred(why) => Self::Deferred(match v1::PrefetchDeferral::try_from(why) {
                Ok(v1::PrefetchDeferral::Demand) => PrefetchDeferral::Demand,
                Ok(v1::PrefetchDeferral::Behind) => PrefetchDeferral::Behind,
                Ok(v1::PrefetchDeferral::Link) => PrefetchDeferral::Link,
                Ok(v1::PrefetchDeferral::Room) => PrefetchDeferral::Room,
                Ok(v1::PrefetchDeferral::RoomOnItsWay) => PrefetchDeferral::RoomOnItsWay,
                Ok(v1::PrefetchDeferral::Moving) => PrefetchDeferral::Moving,
                Ok(v1::PrefetchDeferral::Pressure) => PrefetchDeferral::Pressure,
                Ok(v1::PrefetchDeferral::Unspecified) | Err(_) => PrefetchDeferral::Other,
            }),
            Step::Accepted(it) => Self::Accepted { expected: it.expected_ms.map(Duration::from_millis) },
            Step::Ready(it) => Self::Ready { parts_left_out: it.parts_left_out, is_late: it.late },
            Step::Dropped(it) => Self::Dropped {
                cause: match it.cause() {
                    v1::MoveCause::Demand => "demand",
                    v1::MoveCause::Rebalance => "rebalance",
                    v1::MoveCause::Operator => "operator",
                    v1::MoveCause::Owner => "owner",
                    v1::MoveCause::WriteBack => "write_back",
                    v1::MoveCause::Pressure => "pressure",
                    v1::MoveCause::Prefetch => "prefetch",
                    v1::MoveCause::Speculation => "speculation",
                    v1::MoveCause::Unspecified => "unknown",
                },
                by_own_tenant: it.by_own_tenant,
            },
            Step::Cancelled(it) => Self::Cancelled { by_operator: it.by_operator },
            Step::Refused(refused) => Self::Refused(refused.into()),
        }
    }
}

/// A prefetch request that the daemon has answered. Dropping it does not cancel the request.
#[derive(Debug)]
pub struct Prefetch {
    session: ProcessBound<Session>,
    number: u64,
}

impl Prefetch {
    /// The number that operators see: `vramctl prefetch list`.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns how far it is. It makes no call and does not wait. If the session ended while the request was pending,
    /// this returns the error with which the session ended.
    pub fn state(&self) -> Result<PrefetchState> {
        check_process(&self.session)?;
        // The daemon has answered it before it came to its owner.
        self.session.table().prefetch_state(self.number)?.ok_or_else(Error::deadline)
    }

    /// Waits until the parts are there, or will not come, as long as [`crate::ClientBuilder::request_timeout`].
    pub fn wait(&self) -> Result<PrefetchState> {
        run_ready(self.settle(CallStyle::Blocking, None))
    }

    /// Like [`Self::wait`], but waits at most `wait`. After [`Error::Deadline`] the request goes on.
    pub fn wait_timeout(&self, wait: Duration) -> Result<PrefetchState> {
        run_ready(self.settle(CallStyle::Blocking, Some(wait)))
    }

    /// See [`Self::wait`].
    pub async fn wait_async(&self) -> Result<PrefetchState> {
        self.settle(CallStyle::Async, None).await
    }

    /// See [`Self::wait_timeout`].
    pub async fn wait_timeout_async(&self, wait: Duration) -> Result<PrefetchState> {
        self.settle(CallStyle::Async, Some(wait)).await
    }

    async fn settle(&self, style: CallStyle, wait: Option<Duration>) -> Result<PrefetchState> {
        check_process(&self.session)?;
        let deadline = wait.map_or_else(|| self.session.deadline(), |wait| self.session.deadline_after(wait));
        let until = Until::Prefetched { number: self.number, settled: true };
        style.wait(&self.session, until, deadline).await?;
        self.state()
    }

    /// Cancels it. It has no effect once all parts have been used.
    pub fn cancel(&self) -> Result<()> {
        check_process(&self.session)?;
        self.session.send_prefetch_cancelled(self.number)
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        if self.session.is_own_process() {
            self.session.table().forget_prefetch(self.number);
        }
    }
}

/// Makes a request, and waits for the daemon's answer to it.
pub(crate) async fn prefetch(
    style: CallStyle,
    session: &ProcessBound<Session>,
    request: PrefetchRequest<'_>,
) -> Result<Prefetch> {
    check_process(session)?;
    if !session.takes_prefetches() {
        return Err(Error::refused(Reason::KindUnsupported, &[("kind", &"prefetched")]));
    }
    let frame = request.into_frame(|handle| handle.is_of(session))?;
    let number = session.send_prefetch(frame)?;
    let asked = Prefetch { session: session.clone(), number };
    let until = Until::Prefetched { number, settled: false };
    style.wait(session, until, session.deadline()).await?;
    match asked.state()? {
        PrefetchState::Refused(error) => Err(error),
        _ => Ok(asked),
    }
}

impl Session {
    /// Sends a request. Requests reach the daemon in the order of their numbers.
    fn send_prefetch(&self, mut frame: v1::Prefetch) -> Result<u64> {
        let channel = self.link().lock_channel();
        let number = self.table().open_prefetch()?;
        frame.prefetch_id = number;
        let sent = channel.send_prefetch(frame);
        drop(channel);
        sent.map(|()| number).map_err(|error| self.lost(&error))
    }

    fn send_prefetch_cancelled(&self, prefetch_id: u64) -> Result<()> {
        if self.table().ending().is_some() {
            return Ok(());
        }
        let channel = self.link().lock_channel();
        let sent = channel.send_prefetch_cancelled(v1::PrefetchCancelled { prefetch_id });
        drop(channel);
        sent.map_err(|error| self.lost(&error))
    }

    /// Tells the daemon that something has ended, unless the session has.
    pub(crate) fn send_end(
        &self,
        send: impl FnOnce(&ChannelLock<'_>) -> std::result::Result<(), rustix::io::Errno>,
    ) {
        if self.table().ending().is_some() {
            return;
        }
        let channel = self.link().lock_channel();
        let sent = send(&channel);
        drop(channel);
        if let Err(error) = sent {
            self.lost(&error);
        }
    }

    /// Ends the session, to whose channel a frame could not be sent.
    pub(crate) fn lost(&self, error: &rustix::io::Errno) -> Error {
        self.link().end();
        Error::broker_gone(format!("sending a frame failed: {error}"))
    }
}
