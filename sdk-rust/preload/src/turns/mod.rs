//! Turns of the whole process (`vramctl run --turns`): its memory on one device is a working set, pinned while it has its
//! turn, and free to leave while it has not.
//!
//! ```text
//!            first memory                 a call waits at the gate: declare, acquire, pin
//!   Free ────────────────────► Away ────────────────────────────────────────────────────────► Held
//!    ▲     (the gate closes)    ▲ │                                  (the gate opens)           │ │
//!    │                          │ └── all memory is freed ──► Free                              │ │ the session ends
//!    │                          └── asked, or idle: close the gate, drain, unpin, yield ────────┘ ▼
//!    └─ no turn, no waiting                                          Over: what is there stays, the gate stays open
//! ```
//!
//! One thread does all of this. It begins with the first call that waits. A call waits at the gate ([`crate::gate`]), and
//! for nothing else: allocating and freeing need no turn. New memory is pinned if the process has its turn.
//!
//! While it drains the process has all its memory still, pinned: if that takes too long, it opens the gate again.
//!
//! **The set is declared before a turn**, so an allocation costs no call for it. Memory that is allocated during a turn is
//! pinned, and the daemon learns of it with the next set. If the memory has grown much since, the thread yields by itself
//! and acquires again.
//!
//! **A stream that is captured** runs nothing, so calls on it pass the closed gate. The driver cannot say then what earlier
//! work is done, so the thread does not yield during a capture: it opens the gate again and tries later. It also does so if
//! work lasts while calls wait, since the work may wait for one of these calls.
//!
//! Turns are of one device, the first that serves memory: a session has one turn at a time. Memory elsewhere stays pinned.

mod members;
pub(crate) mod pieces;
mod set;

use std::{
    collections::BTreeMap,
    env,
    ffi::c_int,
    sync::{Arc, Condvar, Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use vramd_client::{Client, Error, Reason, Turn};

use members::Member;
pub(crate) use members::Owned;
use set::Declared;

use crate::{
    driver, gate,
    guard::Inside,
    heap::WAIT,
    session::{self, NOT_READY, Session, code_of, is_for_room, lock, say, without_signals},
    streams::{self, Waited},
};

/// How often the thread looks whether the memory has grown, and whether the program uses its turn.
const TICK: Duration = Duration::from_secs(1);
/// The memory has grown much if it is larger than the declared set by one part in so many.
const GROWTH_DIVISOR: u64 = 4;
/// How long calls wait at first until the work that they may be needed for is done, and at last.
const PATIENCE_MIN: Duration = Duration::from_secs(1);
const PATIENCE_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_micros(50);
/// The default of `vramctl run --idle-after`, for programs that are started without it.
const IDLE_AFTER: Duration = Duration::from_secs(5);
/// The thread tries again after this: what stood in its way lasts longer than a call.
const RETRY: Duration = Duration::from_millis(5);
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, and the last of its kind.
const CAPTURE_ERRORS: std::ops::RangeInclusive<u32> = 900..=908;

/// The further way of a call that has found the gate closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// The gate was opened: it tries again.
    Again,
    /// It goes on without the gate: its work is captured and does not run, or the driver refuses it.
    Captured,
    /// It fails with this code of the driver.
    Refused(u32),
}

#[derive(Debug)]
pub(crate) struct Turns {
    client: Client,
    /// The device of the working set, by its number in CUDA.
    device: OnceLock<c_int>,
    state: Mutex<State>,
    changed: Condvar,
    /// Why the process never yields, if so.
    kept_for: OnceLock<&'static str>,
    /// The process yields by itself after so long without a call and without work.
    idle_after: Duration,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    members: BTreeMap<u64, Arc<Member>>,
    last_member: u64,
    bytes: u64,
    /// Calls at the gate.
    waiting: usize,
    has_thread: bool,
    /// How often waiting calls were refused, and the last code.
    refusals: u64,
    refusal: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is no memory.
    Free,
    /// The process has no turn, and its memory may leave.
    Away,
    /// All memory is pinned.
    Held,
    /// All memory is still pinned, and calls wait until what was launched is done.
    Draining,
    /// The session has ended, and all memory is there. No other turn comes.
    Over,
    /// The session has ended, and some memory is not there: calls fail with this code.
    Failed(u32),
}

/// The outcome of an attempt to empty the gate and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Empty,
    Capturing,
    TooLong,
    Kept,
}

/// The thread's next step after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It waits for a call.
    Wait,
    /// It acquires again: its set is out of date.
    Acquire,
    /// It ends with the session.
    End,
}

/// Whether this program runs with turns: `vramctl run --turns` sets the variable.
pub(crate) fn are_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| env::var_os("VRAMD_TURNS").is_some_and(|wanted| wanted == "1"))
}

fn idle_after() -> Duration {
    let seconds = env::var("VRAMD_TURNS_IDLE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    seconds.map_or(IDLE_AFTER, Duration::from_secs)
}

/// Waits at the closed gate until the process has its turn.
pub(crate) fn wait_at_gate(stream: u64) -> Passage {
    // An error, such as that of an unknown stream, is the driver's to tell.
    if driver::is_capturing(stream) != Ok(false) {
        return Passage::Captured;
    }
    wait_for_turn()
}

/// Waits at the closed gate, wherever the work of the call goes.
pub(crate) fn wait_for_turn() -> Passage {
    match session::existing().and_then(|session| session.turns.as_ref()) {
        Some(turns) => turns.wait(),
        None => Passage::Captured,
    }
}

/// Has the process keep its turn from now on: its memory may not move any more.
pub(crate) fn keep(reason: &'static str) {
    if let Some(turns) = session::existing().and_then(|session| session.turns.as_ref()) {
        // The first reason suffices.
        let _ = turns.kept_for.set(reason);
    }
}

impl Turns {
    /// Fails with the reason why the daemon cannot give turns.
    pub(crate) fn new(client: &Client) -> Result<Self, &'static str> {
        if !client.takes_turns() {
            return Err("the daemon gives no turns: it is older than this library");
        }
        let state = State {
            phase: Phase::Free,
            members: BTreeMap::new(),
            last_member: 0,
            bytes: 0,
            waiting: 0,
            has_thread: false,
            refusals: 0,
            refusal: 0,
        };
        Ok(Self {
            client: client.clone(),
            device: OnceLock::new(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            kept_for: OnceLock::new(),
            idle_after: idle_after(),
        })
    }

    /// Whether memory of that device comes and goes with the turn. The first device is asked for decides.
    pub(crate) fn are_of(&self, ordinal: c_int) -> bool {
        *self.device.get_or_init(|| ordinal) == ordinal
    }

    /// Adds a new member. Returns its number, and whether it stays pinned.
    fn add(&self, member: &Arc<Member>) -> (u64, bool) {
        let mut state = lock(&self.state);
        state.last_member += 1;
        let number = state.last_member;
        state.members.insert(number, Arc::clone(member));
        state.bytes += member.bytes;
        if state.phase == Phase::Free {
            // Calls that are inside do not know this memory.
            state.close(Phase::Away);
        }
        let is_pinned = state.phase != Phase::Away;
        member.set_pinned(is_pinned);
        (number, is_pinned)
    }

    fn remove(&self, number: u64) {
        let mut state = lock(&self.state);
        let removed = state.members.remove(&number);
        state.bytes -= removed.as_ref().map_or(0, |member| member.bytes);
        drop(state);
        // After the lock: the end of an allocation may have the daemon called.
        drop(removed);
    }

    /// Waits until the gate is open.
    fn wait(&'static self) -> Passage {
        let mut state = lock(&self.state);
        let refusals = state.refusals;
        state.waiting += 1;
        self.ensure_thread(&mut state);
        self.changed.notify_all();
        while state.phase.is_closed() && state.refusals == refusals {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        match state.phase {
            Phase::Failed(code) => Passage::Refused(code),
            Phase::Away | Phase::Draining => Passage::Refused(state.refusal),
            Phase::Free | Phase::Held | Phase::Over => Passage::Again,
        }
    }

    fn ensure_thread(&'static self, state: &mut State) {
        if state.has_thread {
            return;
        }
        let run = || {
            // The calls of this thread are the library's own.
            let _inside = Inside::enter();
            self.run();
        };
        match without_signals(|| thread::Builder::new().name("vramd-turns".to_owned()).spawn(run)) {
            Ok(_) => state.has_thread = true,
            Err(error) => {
                say(&format!("this program cannot take turns: no thread begins: {error}"));
                state.refuse(driver::OUT_OF_MEMORY);
            }
        }
    }

    fn run(&'static self) {
        let mut declared = None;
        loop {
            self.wait_for_call();
            while let Some(turn) = self.take(&mut declared) {
                match self.hold(&turn) {
                    Next::Wait => break,
                    Next::Acquire => {}
                    Next::End => return self.end(),
                }
            }
            if !self.client.is_connected() {
                return self.end();
            }
        }
    }

    fn wait_for_call(&self) {
        let mut state = lock(&self.state);
        while state.phase != Phase::Away || state.waiting == 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the turn, pins all memory, and opens the gate. `None` if there is no memory, if waiting calls are refused, or
    /// after the end of the session.
    fn take(&self, declared: &mut Option<Declared>) -> Option<Turn> {
        let (mut was_missing, mut full_for) = (false, Duration::ZERO);
        loop {
            let members = self.members();
            if members.is_empty() {
                if self.open_without_memory() {
                    *declared = None;
                    return None;
                }
                continue;
            }
            let mut begun = Instant::now();
            let (error, waited) = match set::acquire(&self.client, members, declared) {
                Ok(turn) => {
                    begun = Instant::now();
                    match self.pin_all(|_| Phase::Held, |_, error| Err(error)) {
                        Ok(()) => return Some(turn),
                        Err(error) => {
                            self.unpin_all();
                            (error, begun.elapsed())
                        }
                    }
                }
                // The wait for the turn is none for room.
                Err(error) => (error, begun.elapsed().min(TICK)),
            };
            if !self.client.is_connected() {
                return None;
            }
            match error {
                Error::Raced { .. } | Error::PinStalled { .. } | Error::Deadline { .. } => {}
                // The program has freed it meanwhile, or else an operator has.
                Error::AllocationNotFound { .. } | Error::NotMapped { .. } => {
                    if was_missing {
                        self.find_lost();
                    }
                    was_missing = true;
                }
                // Others may have taken the room for a moment.
                error if is_for_room(&error) && full_for < WAIT => full_for += waited + RETRY,
                error => {
                    self.refuse(&error);
                    return None;
                }
            }
            thread::sleep(RETRY);
        }
    }

    fn members(&self) -> Vec<(u64, Arc<Member>)> {
        let state = lock(&self.state);
        let known = state.members.iter().filter(|(_, member)| !member.is_lost());
        known.map(|(number, member)| (*number, Arc::clone(member))).collect()
    }

    /// Opens the gate if there is still no memory.
    fn open_without_memory(&self) -> bool {
        let mut state = lock(&self.state);
        let is_empty = state.members.values().all(|member| member.is_lost());
        if is_empty {
            state.enter(Phase::Free);
            self.changed.notify_all();
        }
        is_empty
    }

    /// Pins what is not pinned, then enters a phase, for which the gate opens. No memory comes in between.
    fn pin_all(
        &self,
        phase_of: impl Fn(&State) -> Phase,
        on_error: impl Fn(&Member, Error) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            let mut state = lock(&self.state);
            let is_missing = |member: &&Arc<Member>| !member.is_pinned() && !member.is_lost();
            let missing: Vec<_> = state.members.values().filter(is_missing).map(Arc::clone).collect();
            if missing.is_empty() {
                let phase = phase_of(&state);
                state.enter(phase);
                self.changed.notify_all();
                return Ok(());
            }
            drop(state);
            for member in missing {
                member.pin().or_else(|error| on_error(&member, error))?;
            }
        }
    }

    fn unpin_all(&self) {
        for (_, member) in self.members() {
            member.unpin();
        }
    }

    /// Marks what the daemon does not have any more.
    fn find_lost(&self) {
        for (_, member) in self.members() {
            let found = self.client.describe(member.id);
            if found.is_err_and(|error| error.reason() == Some(Reason::AllocationNotFound)) {
                member.set_lost();
            }
        }
    }

    /// Refuses the calls that wait. Later ones try again.
    fn refuse(&self, error: &Error) {
        if is_for_room(error) {
            say(&format!("this program cannot have its turn: {error}"));
        }
        lock(&self.state).refuse(code_of(error));
        self.changed.notify_all();
    }

    /// Keeps the turn until the daemon asks for it, or until the set is out of date.
    fn hold(&self, turn: &Turn) -> Next {
        let declared_bytes = lock(&self.state).bytes;
        let (mut patience, mut is_said) = (PATIENCE_MIN, false);
        let (mut calls, mut used) = (gate::entered(), Instant::now());
        loop {
            let Ok(is_asked) = turn.wait_ending(TICK) else { return Next::End };
            let entered = gate::entered();
            if entered != calls || !self.has_no_work() {
                (calls, used) = (entered, Instant::now());
            }
            let is_idle = !is_asked && used.elapsed() >= self.idle_after && self.is_done();
            if !is_asked && !is_idle && !self.has_grown(declared_bytes) {
                continue;
            }
            match self.leave(patience) {
                Left::Empty => {
                    lock(&self.state).phase = Phase::Away;
                    self.unpin_all();
                    turn.yield_now();
                    return if is_asked || is_idle { Next::Wait } else { Next::Acquire };
                }
                Left::Capturing => thread::sleep(RETRY),
                Left::TooLong => {
                    patience = (patience * 2).min(PATIENCE_MAX);
                    thread::sleep(RETRY);
                }
                Left::Kept => {
                    if let (true, false, Some(reason)) = (is_asked, is_said, self.kept_for.get()) {
                        say(&format!("this program keeps its turn: {reason}"));
                        is_said = true;
                    }
                    thread::sleep(TICK);
                }
            }
        }
    }

    fn has_grown(&self, declared_bytes: u64) -> bool {
        lock(&self.state).bytes > declared_bytes + declared_bytes / GROWTH_DIVISOR
    }

    /// Whether no call is inside, and no stream has work, as far as streams say so when they are asked.
    fn has_no_work(&self) -> bool {
        gate::is_empty() && self.kept_for.get().is_none() && streams::are_ready(&self.contexts()) == Ok(true)
    }

    /// Whether all that was launched is done. This records events, for which later work of other streams may wait: so
    /// streams are asked before.
    fn is_done(&self) -> bool {
        let begun = Instant::now();
        // An idle device needs a moment to say so.
        let goes_on = || begun.elapsed() < RETRY;
        streams::wait_while(&self.contexts(), goes_on) == Ok(Waited::Done)
    }

    /// Closes the gate, and waits for the calls inside and for the device. Opens it again if that must not be waited for.
    fn leave(&self, patience: Duration) -> Left {
        if self.kept_for.get().is_some() {
            return Left::Kept;
        }
        lock(&self.state).close(Phase::Draining);
        let left = self.drain(patience);
        if left != Left::Empty {
            lock(&self.state).enter(Phase::Held);
            self.changed.notify_all();
        }
        left
    }

    fn drain(&self, patience: Duration) -> Left {
        let begun = Instant::now();
        // Work can need a call only if one waits.
        let goes_on = || begun.elapsed() < patience || lock(&self.state).waiting == 0;
        while !gate::is_empty() {
            if !goes_on() {
                return Left::TooLong;
            }
            thread::sleep(PAUSE);
        }
        // A call that was inside may have said so.
        if self.kept_for.get().is_some() {
            return Left::Kept;
        }
        match streams::wait_while(&self.contexts(), goes_on) {
            Ok(Waited::Done) => Left::Empty,
            Ok(Waited::Capturing) => Left::Capturing,
            Ok(Waited::TooLong) => Left::TooLong,
            Err(code) if CAPTURE_ERRORS.contains(&code) => Left::Capturing,
            // A full device has no room for events, and its work goes on.
            Err(driver::OUT_OF_MEMORY) => Left::TooLong,
            // In a lost context no work goes on.
            Err(_) => Left::Empty,
        }
    }

    /// The contexts whose work may use the memory.
    fn contexts(&self) -> Vec<u64> {
        let Some(session) = session::existing() else { return Vec::new() };
        let device = self.device.get().and_then(|ordinal| session.device(*ordinal));
        device.map_or_else(Vec::new, |device| session.contexts_of(device))
    }

    /// Ends turns with the session: the program goes on with what it has.
    fn end(&self) {
        // Memory of the ended session stays where it is. That of a later session is not pinned yet.
        let keep = |member: &Member, _| {
            if member.is_mapped() {
                member.set_pinned(true)
            } else {
                member.set_lost()
            }
            Ok(())
        };
        lock(&self.state).close(Phase::Away);
        let is_lost = |state: &State| state.members.values().any(|member| member.is_lost());
        // Before the gate opens: no call may meet memory that is not there.
        let phase_of = |state: &State| if is_lost(state) { Phase::Failed(NOT_READY) } else { Phase::Over };
        // It makes no error of its own.
        let _ = self.pin_all(phase_of, keep);
        say(match lock(&self.state).phase {
            Phase::Failed(_) => {
                "the daemon is gone while this program's memory was not on its device: it cannot go on"
            }
            _ => {
                "the daemon is gone: this program goes on with the memory that it has, and takes no more turns"
            }
        });
    }
}

impl Phase {
    /// Whether calls wait at the gate.
    fn is_closed(self) -> bool {
        matches!(self, Self::Away | Self::Draining)
    }
}

impl State {
    /// Enters a phase that ends the wait of calls.
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        if !matches!(phase, Phase::Failed(_)) {
            gate::open();
        }
    }

    fn close(&mut self, phase: Phase) {
        self.phase = phase;
        gate::close();
    }

    fn refuse(&mut self, code: u32) {
        self.refusals += 1;
        self.refusal = code;
    }
}

/// The turns of the process, if memory of that device comes and goes with them.
pub(crate) fn of(session: &'static Session, ordinal: c_int) -> Option<&'static Turns> {
    session.turns.as_ref().filter(|turns| turns.are_of(ordinal))
}
