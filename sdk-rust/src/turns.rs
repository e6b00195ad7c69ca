//! Working sets and turns: programs whose memory does not fit together use a device one after the other.
//!
//! A turn is a hold by the daemon: while a program has it, the daemon keeps the whole set on the device, and pins of it
//! succeed at once. The program pins as always, since a kernel may outlive the turn in which it was launched.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use vramd_proto::{channel::WORKING_SET_ALLOCATIONS_MAX, v1};
use vramd_types::Reason;

use crate::{
    error::{Error, Result},
    mapping::{TurnProgress, Until, millis_until},
    pins::{Pinnable, private},
    process::fork::ProcessBound,
    session::{
        Session,
        call_style::{CallStyle, run_ready},
        check_process,
    },
};

/// A wait without a bound still needs a time at which it ends.
const UNBOUNDED_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Memory that belongs together: a program uses all of it, or none.
///
/// ```no_run
/// # fn demo(client: &vramd_client::Client) -> vramd_client::Result<()> {
/// use vramd_client::{Access, AllocationRequest, Bytes};
///
/// let weights = client.allocate(AllocationRequest::new(Bytes::gib(40)).unpinned())?;
/// let cache = client.allocate(AllocationRequest::new(Bytes::gib(30)).unpinned())?;
/// let set = client.working_set("llama", &[&weights, &cache])?;
/// loop {
///     let turn = set.acquire()?;
///     while !turn.is_ending() {
///         let both = client.pin_set(&[(&weights, Access::Read), (&cache, Access::Write)])?;
///         // Compute a step.
/// #       drop(both);
/// #       break;
///     }
///     turn.yield_now();
/// #   break Ok(());
/// }
/// # }
/// ```
///
/// Dropping it gives the set up, once its turns are dropped too. The memory stays the program's.
#[derive(Clone, Debug)]
pub struct WorkingSet(Arc<Taken>);

/// A set that the daemon has taken, or may have.
#[derive(Debug)]
struct Taken {
    session: ProcessBound<Session>,
    number: u64,
    name: String,
}

impl WorkingSet {
    /// The name that operators see: `vramctl turn list`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Waits for the turn, however long that takes. The client has at most one turn at a time: it would wait for itself
    /// ([`Error::TurnHeld`]).
    ///
    /// The wait may end with [`Error::Raced`] if memory of the set changed just then, or with [`Error::PinStalled`] if the
    /// set waited only for sessions that wait themselves. Then the client has no turn, and may acquire again.
    pub fn acquire(&self) -> Result<Turn> {
        run_ready(self.wait_for_turn(CallStyle::Blocking, None))
    }

    /// Like [`Self::acquire`], but waits at most `wait`.
    pub fn acquire_timeout(&self, wait: Duration) -> Result<Turn> {
        run_ready(self.wait_for_turn(CallStyle::Blocking, Some(wait)))
    }

    /// See [`Self::acquire`]. A future that is dropped waits no longer.
    pub async fn acquire_async(&self) -> Result<Turn> {
        self.wait_for_turn(CallStyle::Async, None).await
    }

    /// See [`Self::acquire_timeout`].
    pub async fn acquire_timeout_async(&self, wait: Duration) -> Result<Turn> {
        self.wait_for_turn(CallStyle::Async, Some(wait)).await
    }

    async fn wait_for_turn(&self, style: CallStyle, wait: Option<Duration>) -> Result<Turn> {
        let session = &self.0.session;
        check_process(session)?;
        let deadline = session.deadline_after(wait.unwrap_or(UNBOUNDED_WAIT));
        let number = session.send_turn_acquire(self.0.number, wait.map(|_| millis_until(deadline)))?;
        // Its end, also by an error, cancels the wait.
        let turn = Turn { number, set: self.clone(), is_yielded: AtomicBool::new(false) };
        style.wait(session, Until::TurnGranted { number }, deadline).await?;
        Ok(turn)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.session.is_own_process() {
            return;
        }
        self.session.table().forget_working_set(self.number);
        self.session.send_working_set_ended(self.number);
    }
}

/// The state of a turn, as the daemon sees it.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnState {
    /// The program has the turn.
    Held,
    /// Another program waits, or an operator wants the turn: yield within this time. Later the daemon reports the turn as
    /// overdue, and where it is so configured kills the process.
    Ending { within: Duration },
    /// The session has ended, for this reason. The program keeps what it has mapped, and no other turn comes or goes.
    Lost(Error),
    /// The program has yielded.
    Yielded,
}

/// The turn of a working set: the program has mapped all of the set, and nothing of it leaves. Dropping it yields.
///
/// All of it is on its device, except parts that an access advice has read in host memory.
#[must_use = "dropped, it yields at once"]
#[derive(Debug)]
pub struct Turn {
    number: u64,
    set: WorkingSet,
    is_yielded: AtomicBool,
}

impl Turn {
    pub fn set(&self) -> &WorkingSet {
        &self.set
    }

    /// Returns the state of the turn. It makes no call.
    pub fn state(&self) -> TurnState {
        let session = &self.set.0.session;
        if let Err(error) = check_process(session) {
            return TurnState::Lost(error);
        }
        if self.is_yielded.load(Ordering::Acquire) {
            return TurnState::Yielded;
        }
        match session.table().turn_progress(self.number) {
            Err(error) | Ok(TurnProgress::Refused(error)) => TurnState::Lost(error),
            Ok(TurnProgress::Waiting | TurnProgress::Granted) => TurnState::Held,
            Ok(TurnProgress::Ending { overdue_at }) => {
                TurnState::Ending { within: overdue_at.saturating_duration_since(Instant::now()) }
            }
        }
    }

    /// Whether the daemon asks for the turn. It makes no call. After the end of the session it does not: the program may
    /// go on.
    pub fn is_ending(&self) -> bool {
        matches!(self.state(), TurnState::Ending { .. })
    }

    /// Waits at most so long until the daemon asks for the turn, and returns whether it does. A yield by another thread ends
    /// the wait. Once the session has ended, this is the error with which it ended.
    pub fn wait_ending(&self, wait: Duration) -> Result<bool> {
        run_ready(self.wait_until_ending(CallStyle::Blocking, wait))
    }

    /// See [`Self::wait_ending`].
    pub async fn wait_ending_async(&self, wait: Duration) -> Result<bool> {
        self.wait_until_ending(CallStyle::Async, wait).await
    }

    async fn wait_until_ending(&self, style: CallStyle, wait: Duration) -> Result<bool> {
        let session = &self.set.0.session;
        check_process(session)?;
        let until = Until::TurnEnding { number: self.number };
        match style.wait(session, until, session.deadline_after(wait)).await {
            Ok(()) => Ok(!self.is_yielded.load(Ordering::Acquire)),
            Err(Error::Deadline { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Yields, as dropping it does. Guards that still pin memory of the set keep it on the device until they end, and the
    /// next program waits for them. Yielding again does nothing.
    pub fn yield_now(&self) {
        let session = &self.set.0.session;
        if session.is_own_process() && !self.is_yielded.swap(true, Ordering::AcqRel) {
            session.table().forget_turn(self.number);
            session.send_turn_yielded(self.number);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.yield_now();
    }
}

/// Names a working set, and waits for the daemon's answer to it.
pub(crate) async fn working_set(
    style: CallStyle,
    session: &ProcessBound<Session>,
    name: &str,
    members: &[&dyn Pinnable],
) -> Result<WorkingSet> {
    check_process(session)?;
    if !session.takes_turns() {
        return Err(Error::refused(Reason::KindUnsupported, &[("kind", &"working sets of")]));
    }
    let frame = frame(session, name, members)?;
    let number = session.send_working_set(frame)?;
    // Its end, also by an error, gives the set up.
    let taken = Taken { session: session.clone(), number, name: name.to_owned() };
    style.wait(session, Until::SetTaken { number }, session.deadline()).await?;
    Ok(WorkingSet(Arc::new(taken)))
}

fn frame(session: &ProcessBound<Session>, name: &str, members: &[&dyn Pinnable]) -> Result<v1::WorkingSet> {
    let invalid = |problem: &str| {
        Error::refused(Reason::RequestInvalid, &[("field", &"allocations"), ("problem", &problem)])
    };
    if !(1..=WORKING_SET_ALLOCATIONS_MAX).contains(&members.len()) {
        let (count, most) = (members.len(), WORKING_SET_ALLOCATIONS_MAX);
        return Err(invalid(&format!("there are {count}; 1 to {most} are allowed")));
    }
    let mut allocation_ids = Vec::with_capacity(members.len());
    for member in members {
        let private::Handle(handle) = member.handle();
        let id = handle.info().id;
        if !handle.is_of(session) {
            return Err(invalid(&format!("{id} belongs to another session")));
        }
        // It would never leave for the next program. Handle pins of other clients are not known here.
        if session.table().has_handle_pins(id) {
            let pins = session.table().stable_count(id, None);
            return Err(Error::refused(Reason::Pinned, &[("allocation", &id), ("pins", &pins)]));
        }
        allocation_ids.push(id.get());
    }
    Ok(v1::WorkingSet { set_id: 0, name: name.to_owned(), allocation_ids })
}

impl Session {
    /// Sends a working set. Sets reach the daemon in the order of their numbers.
    fn send_working_set(&self, mut frame: v1::WorkingSet) -> Result<u64> {
        let channel = self.link().lock_channel();
        let number = self.table().open_working_set()?;
        frame.set_id = number;
        let sent = channel.send_working_set(frame);
        drop(channel);
        sent.map(|()| number).map_err(|error| self.lost(&error))
    }

    /// Asks for a turn. Turns reach the daemon in the order of their numbers.
    fn send_turn_acquire(&self, set_id: u64, wait_ms: Option<u64>) -> Result<u64> {
        let channel = self.link().lock_channel();
        let turn_id = self.table().open_turn()?;
        let sent = channel.send_turn_acquire(v1::TurnAcquire { turn_id, set_id, wait_ms });
        drop(channel);
        sent.map(|()| turn_id).map_err(|error| self.lost(&error))
    }

    fn send_working_set_ended(&self, set_id: u64) {
        self.send_end(|channel| channel.send_working_set_ended(v1::WorkingSetEnded { set_id }));
    }

    fn send_turn_yielded(&self, turn_id: u64) {
        self.send_end(|channel| channel.send_turn_yielded(v1::TurnYielded { turn_id }));
    }
}
