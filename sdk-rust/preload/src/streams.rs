//! The program's streams, and the wait for their work before served memory is freed.
//!
//! The driver's own `cuMemFree` waits for the device. Waiting for a whole context would end another thread's capture of a
//! graph. So this library records an event on the default stream, which waits for all streams but those created as
//! non-blocking, and one on each of those. While a stream is captured the driver cannot say what its earlier work is, so
//! then nothing is freed: the memory is put aside.
//!
//! No lock is held while the driver is called: it may block where a stream's queue is full.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use crate::{
    driver::{self, Entered, Event, LEGACY_STREAM},
    session::{self, lock},
    table::Real,
    turns,
};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// The time within which most work ends.
const SPIN: Duration = Duration::from_micros(100);
const PAUSE: Duration = Duration::from_micros(50);
/// Why a process with a green context never yields.
const GREEN: &str = "it uses a green context, whose work the library does not see";

#[derive(Debug)]
struct State {
    known: BTreeMap<u64, Known>,
    /// On streams that are gone, with the context of each.
    departed: Vec<(u64, Arc<Event>)>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    context: u64,
    is_blocking: bool,
    /// How many threads record on it now. It does not end before they have.
    users: u32,
}

/// Streams of a context. They do not end until this is dropped.
#[derive(Debug)]
struct InUse(Vec<u64>);

/// Streams may be created before the session begins.
static STATE: Mutex<State> = Mutex::new(State { known: BTreeMap::new(), departed: Vec::new() });

/// Takes note of a new stream.
pub(crate) fn note_created(stream: u64, context: u64, flags: u32) {
    let known = Known { context, is_blocking: flags & NON_BLOCKING == 0, users: 0 };
    state().known.insert(stream, known);
}

/// Takes out a stream that is about to end, once no thread records on it. Its work may go on.
fn take(stream: u64) -> Option<Known> {
    let context = state().known.get(&stream)?.context;
    let event = record(context, stream).ok().flatten();
    let event = event.filter(|event| event.has_passed() == Ok(false)).map(Arc::new);
    loop {
        let mut state = state();
        let known = *state.known.get(&stream)?;
        if known.users == 0 {
            // Both at once, so that a free sees the one or the other.
            state.known.remove(&stream);
            state.departed.extend(event.map(|event| (context, event)));
            return Some(known);
        }
        drop(state);
        thread::sleep(PAUSE);
    }
}

/// The known streams of a context.
#[derive(Debug)]
pub(crate) struct OfContext(State);

/// Takes out the streams of a context that is about to end.
pub(crate) fn take_of_context(context: u64) -> OfContext {
    let mut state = state();
    let (known, others) =
        std::mem::take(&mut state.known).into_iter().partition(|(_, of)| of.context == context);
    state.known = others;
    let (departed, others) =
        std::mem::take(&mut state.departed).into_iter().partition(|(of, _)| *of == context);
    state.departed = others;
    OfContext(State { known, departed })
}

/// Puts them back: the context has not ended.
pub(crate) fn put_back(streams: OfContext) {
    let mut state = state();
    state.known.extend(streams.0.known);
    state.departed.extend(streams.0.departed);
}

/// Forgets them with their context, which has taken their events along.
pub(crate) fn end(streams: OfContext) {
    for (_, event) in streams.0.departed {
        if let Some(event) = Arc::into_inner(event) {
            event.forget();
        }
    }
}

/// The outcome of a wait for all work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    Done,
    /// A stream is being captured, so it is not known what work is done.
    Capturing,
    /// The caller would not wait longer.
    TooLong,
}

/// Waits until all work that was launched so far in these contexts is done. Returns false at once if a stream is being
/// captured. An error is that of a lost context.
pub(crate) fn wait(contexts: &[u64]) -> Result<bool, u32> {
    wait_while(contexts, || true).map(|waited| waited == Waited::Done)
}

/// As [`wait`], as long as the caller goes on.
pub(crate) fn wait_while(contexts: &[u64], goes_on: impl Fn() -> bool) -> Result<Waited, u32> {
    let mut events = Vec::new();
    for context in contexts {
        if !record_all(*context, &mut events)? {
            return Ok(Waited::Capturing);
        }
    }
    if !wait_for_while(&events, goes_on)? {
        return Ok(Waited::TooLong);
    }
    // Events of departed streams are not waited for again. The last owner ends them, after the lock.
    let is_new = |departed: &Arc<Event>| !events.iter().any(|passed| Arc::ptr_eq(passed, departed));
    state().departed.retain(|(_, event)| is_new(event));
    Ok(Waited::Done)
}

/// Whether no stream of these contexts has work now. It asks the streams that the library knows and the default one,
/// and records nothing.
pub(crate) fn are_ready(contexts: &[u64]) -> Result<bool, u32> {
    for context in contexts {
        let _entered = Entered::enter(*context)?;
        let streams = InUse::of_context(*context, |_| true);
        // The default one last: it counts as captured while a blocking stream is.
        for stream in streams.0.iter().chain([&LEGACY_STREAM]) {
            if driver::is_capturing(*stream)? || !driver::is_ready(*stream)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Waits until these events have passed.
pub(crate) fn wait_for(events: &[Arc<Event>]) -> Result<(), u32> {
    wait_for_while(events, || true).map(|_| ())
}

/// Returns whether they have passed before the caller would not go on.
fn wait_for_while(events: &[Arc<Event>], goes_on: impl Fn() -> bool) -> Result<bool, u32> {
    let begun = Instant::now();
    for event in events {
        while !event.has_passed()? {
            if !goes_on() {
                return Ok(false);
            }
            if begun.elapsed() < SPIN { thread::yield_now() } else { thread::sleep(PAUSE) }
        }
    }
    Ok(true)
}

/// Records an event on each stream that may have work. Returns false if one is being captured.
fn record_all(context: u64, events: &mut Vec<Arc<Event>>) -> Result<bool, u32> {
    let _entered = Entered::enter(context)?;
    // It covers the blocking streams.
    let Some(default) = record(context, LEGACY_STREAM)? else { return Ok(false) };
    events.push(Arc::new(default));
    let (streams, departed) = InUse::of(context);
    events.extend(departed);
    for stream in &streams.0 {
        let Some(event) = record(context, *stream)? else { return Ok(false) };
        events.push(Arc::new(event));
    }
    Ok(true)
}

impl InUse {
    /// The streams of a context for which `is_meant` holds.
    fn of_context(context: u64, is_meant: impl Fn(&Known) -> bool) -> Self {
        let mut state = state();
        let known = state.known.iter_mut().filter(|(_, known)| known.context == context && is_meant(known));
        let streams = known.map(|(stream, known)| {
            known.users += 1;
            *stream
        });
        Self(streams.collect())
    }

    /// The streams that the default one does not wait for, with the events of streams that have ended.
    fn of(context: u64) -> (Self, Vec<Arc<Event>>) {
        let streams = Self::of_context(context, |known| !known.is_blocking);
        let state = state();
        let departed = state.departed.iter().filter(|(of, _)| *of == context);
        let departed = departed.map(|(_, event)| Arc::clone(event)).collect();
        (streams, departed)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = state();
        for stream in &self.0 {
            if let Some(known) = state.known.get_mut(stream) {
                known.users = known.users.saturating_sub(1);
            }
        }
    }
}

/// Records an event, unless the stream is being captured.
pub(crate) fn record(context: u64, stream: u64) -> Result<Option<Event>, u32> {
    let _entered = Entered::enter(context)?;
    if driver::is_capturing(stream)? {
        return Ok(None);
    }
    Event::record(context, stream).map(Some)
}

/// `cuStreamCreate` and `cuStreamCreateWithPriority`.
pub(crate) fn created(real: Real<'_>, stream: *mut u64, flags: u32) -> u32 {
    let code = real.call();
    if code == 0
        && let Some(stream) = crate::entries::written(stream)
        && let Ok(Some((context, _))) = driver::current()
    {
        note_created(stream, context, flags);
    }
    code
}

/// `cuGreenCtxStreamCreate`.
pub(crate) fn green_created(real: Real<'_>) -> u32 {
    turns::keep(GREEN);
    real.pass_on("no free waits for a stream of a green context")
}

/// `cuCtxFromGreenCtx`: streams that are created in that context are of the green one.
pub(crate) fn green_used(real: Real<'_>) -> u32 {
    turns::keep(GREEN);
    real.pass_on("no free waits for the work of a green context")
}

/// `cuStreamDestroy`.
pub(crate) fn destroyed(real: Real<'_>, stream: u64) -> u32 {
    // All before the call: afterwards another stream may get its number.
    let known = take(stream);
    if let Some(session) = session::existing() {
        session.pools.forget_stream(stream);
    }
    let code = real.call();
    if let (Some(known), true) = (known, code != 0) {
        state().known.insert(stream, known);
    }
    code
}

fn state() -> MutexGuard<'static, State> {
    lock(&STATE)
}
