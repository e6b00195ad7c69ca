//! A whole session away and back: a process without memory of the daemon can be frozen, and continued later.
//!
//! CUDA refuses to checkpoint a process that has imported memory (`cuCheckpointProcessCheckpoint`), and a descriptor of
//! such memory means nothing after a restore. So the session unmaps everything first. The protocol has all that this
//! needs: a client may unmap parts of its own will, `Attach` without pins makes them the session's again, an owner may
//! evict what it does not pin, and a pin brings all of it back. The addresses stay reserved throughout.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use vramd_proto::v1;
use vramd_types::{AllocationId, Reason};

use crate::{
    error::{Error, Result},
    handles::info::Tier,
    mapping::{Caller, Obstacles},
    process::fork::ProcessBound,
    rpc::request_id::RequestId,
    session::{
        Session,
        call_style::{CallStyle, run_ready},
        check_process,
    },
};

/// How long `detach_all` waits for calls of other threads that bring memory, and for pins that such a call gives back.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
const SETTLE_POLL: Duration = Duration::from_millis(1);
/// How many allocations leave the device at once, so that a copy begins while the next request is on its way.
const EVICTING_THREADS: usize = 4;
/// The most parts that one pin call names.
const PARTS_MAX: usize = vramd_proto::channel::PARTS_PER_FRAME_MAX;

/// See [`crate::Client::detach_all`].
pub(crate) fn detach_all(session: &ProcessBound<Session>) -> Result<()> {
    check_process(session)?;
    run_ready(CallStyle::Blocking.flush(session, session.deadline()))?;
    session.table().begin_leaving()?;
    if let Err(error) = wait_unused(session).and_then(|()| synchronize(session)) {
        session.table().stay();
        return Err(error);
    }
    cancel_prefetches(session);
    if let Err(error) = leave(session) {
        if session.table().ending().is_none() {
            session.table().turn_back();
            // The first error is the one to report. The next `attach_all` brings the parts that cannot come back now.
            let _ = bring(session, session.deadline());
        }
        session.table().stay();
        return Err(error);
    }
    // Nothing is mapped any more. The rest makes room for others, and an interrupt of the caller does not end it.
    thread::scope(|scope| scope.spawn(|| settle_away(session)).join()).unwrap_or_default();
    match session.table().ending() {
        Some(ending) => Err(ending.error()),
        None => Ok(()),
    }
}

/// See [`crate::Client::attach_all`].
pub(crate) fn attach_all(session: &ProcessBound<Session>, deadline: Instant) -> Result<()> {
    check_process(session)?;
    if !session.table().begin_returning()? {
        return Ok(());
    }
    match bring(session, deadline) {
        Ok(()) => {
            session.table().stay();
            Ok(())
        }
        Err(error) => {
            if let Err(other) = leave(session) {
                session.table().stay();
                return Err(other);
            }
            thread::scope(|scope| scope.spawn(|| settle_away(session)).join()).unwrap_or_default();
            Err(error)
        }
    }
}

/// Waits until no guard pins anything and no call brings anything: as long as streams need that are to end guards, and a
/// short while for calls of other threads.
fn wait_unused(session: &Session) -> Result<()> {
    let (for_streams, for_calls) = (session.deadline(), Instant::now() + SETTLE_TIMEOUT);
    loop {
        let mut found = session.table().obstacles();
        let anchors = session.anchors().all();
        let ends_with_streams = |(id, _): &(AllocationId, u64)| {
            anchors.iter().any(|anchor| anchor.id() == *id && anchor.stream_guard_count() > 0)
        };
        let waits_for_streams = !found.pinned.is_empty() && found.pinned.iter().all(ends_with_streams);
        for anchor in anchors.iter().filter(|anchor| anchor.views().has_lent()) {
            let id = session.table().say(anchor.id());
            found.others.push(format!("a slice of {id} may be in use: use its handle mutably, or drop it"));
        }
        let is_brief = found.is_brief && found.pinned.is_empty();
        if found.pinned.is_empty() && found.others.is_empty() {
            return Ok(());
        }
        let may_end =
            (waits_for_streams && Instant::now() < for_streams) || (is_brief && Instant::now() < for_calls);
        if !may_end {
            return Err(in_use(session, found));
        }
        drop(anchors);
        CallStyle::Blocking.check_interrupt()?;
        thread::sleep(SETTLE_POLL);
    }
}

/// The refusal, with the names of all that is in the way.
fn in_use(session: &Session, found: Obstacles) -> Error {
    let Obstacles { pinned, others, .. } = found;
    let first = pinned.first().map(|(id, _)| id.to_string()).unwrap_or_default();
    let pins: u64 = pinned.iter().map(|(_, pins)| *pins).sum();
    let told = pinned.into_iter().map(|(id, pins)| format!("{} has {pins} pins", session.table().say(id)));
    let all: Vec<_> = told.chain(others).collect();
    let message = format!("the session's memory is in use and stays: {}", all.join("; "));
    Error::explained(Reason::Pinned, message, &[("allocation", &first), ("pins", &pins)])
}

/// Waits for the kernels of this process: unmapping does not.
fn synchronize(session: &Session) -> Result<()> {
    session.table().gpus().synchronize().map_err(|(device, fault)| {
        let problem = format!("the memory stays, since the device could not be waited for: {fault}");
        Error::refused(Reason::DriverFailed, &[("device", &device), ("problem", &problem)])
    })
}

/// Cancels the requests of the session: they would take the room that it gives up.
fn cancel_prefetches(session: &Session) {
    for prefetch_id in session.table().pending_prefetches() {
        session.send_end(|channel| channel.send_prefetch_cancelled(v1::PrefetchCancelled { prefetch_id }));
    }
}

/// Unmaps everything, and reports that. No guard is left, but a thread may have a pin for a moment that it gives back.
fn leave(session: &Session) -> Result<()> {
    let until = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let channel = session.link().lock_channel();
        let left = session.table().leave();
        let left = match left {
            Ok(left) => left,
            Err(problem) => {
                drop(channel);
                session.link().end();
                return Err(Error::broker_gone(problem));
            }
        };
        // Before the daemon hears of it and gives the slots to other parts.
        for anchor in session.anchors().all() {
            if let Some((_, gone)) = left.allocations.iter().find(|(id, _)| *id == anchor.id()) {
                anchor.forget_slots(gone);
            }
        }
        let reported = channel.report(left.report).is_ok();
        drop(channel);
        if let Some(ending) = session.table().ending() {
            // Mapped memory stays mapped.
            return Err(ending.error());
        }
        if !reported {
            // The daemon's view of the mappings is wrong now: only ending the channel makes it true.
            session.link().end();
        }
        if left.is_whole {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(in_use(session, session.table().obstacles()));
        }
        thread::sleep(SETTLE_POLL);
    }
}

/// Makes all that was unmapped the session's again, without mapping it, and has what it owns leave its device. The daemon
/// may refuse that, and the memory stays: sealed memory that others use, or memory that fits in no other tier. An
/// allocation that could not be attached is attached when the memory comes back.
fn settle_away(session: &Session) {
    let unmapped = session.table().to_attach();
    wait_heard(session);
    for id in unmapped.iter().copied() {
        if attach(session, id).is_ok() {
            session.table().record_attached(id);
        }
    }
    let next = AtomicUsize::new(0);
    let evict_each = || {
        while let Some(id) = unmapped.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            if evict(session, id, Tier::Host) == Evicted::Nothing {
                // Most nodes have no disk tier.
                evict(session, id, Tier::Disk);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..unmapped.len().min(EVICTING_THREADS) {
            scope.spawn(evict_each);
        }
    });
}

/// Waits until the daemon has heard what was unmapped: a call may overtake the channel, and an `Attach` that does so finds
/// the parts still mapped. The channel keeps its order, so the answer to a pin of such a part comes later. It is a refusal.
fn wait_heard(session: &Session) {
    if let Some(part) = session.table().take_unheard() {
        let _ = session.pin_for(Caller::AttachAll, &[part], session.deadline());
    }
}

fn attach(session: &Session, id: AllocationId) -> Result<()> {
    let request = v1::AttachRequest {
        session_id: session.id().get(),
        request_id: RequestId::random().to_vec(),
        target: Some(v1::attach_request::Target::AllocationId(id.get())),
        unheld: true,
    };
    let attached = session
        .call(session.deadline(), request, |mut client, request| async move { client.attach(request).await });
    attached.map(drop)
}

/// How much of an allocation is in the tier now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evicted {
    /// Some parts, or all.
    Some,
    /// The tier has room for none, or the daemon refuses the call.
    Nothing,
}

fn evict(session: &Session, id: AllocationId, tier: Tier) -> Evicted {
    let request = v1::EvictRequest {
        session_id: session.id().get(),
        request_id: RequestId::random().to_vec(),
        allocation_id: id.get(),
        tier: tier.into(),
    };
    let answer = session
        .call(session.deadline(), request, |mut client, request| async move { client.evict(request).await });
    let is_refused = |part: &v1::PartMove| part.outcome() == v1::MoveOutcome::Refused;
    match answer {
        Ok(answer) if !answer.parts.iter().all(is_refused) => Evicted::Some,
        _ => Evicted::Nothing,
    }
}

/// Maps everything again that handles pin, at its address.
fn bring(session: &ProcessBound<Session>, deadline: Instant) -> Result<()> {
    let table = session.table();
    wait_heard(session);
    for id in table.to_attach() {
        attach(session, id)?;
        table.record_attached(id);
    }
    for anchor in session.anchors().all() {
        let (id, parts) = (anchor.id(), anchor.all_parts());
        if table.has_handle_pins(id) {
            for some in table.take_handle_pins(id, parts.len())?.chunks(PARTS_MAX) {
                session.pin_for(Caller::AttachAll, some, deadline)?;
                table.adopt_pins(id, some);
            }
        }
    }
    // Only now can pins without a call succeed: if something did not come, all of it has to leave again.
    for anchor in session.anchors().all() {
        anchor.refresh_slots(anchor.all_parts());
    }
    Ok(())
}
