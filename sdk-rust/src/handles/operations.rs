//! The operations of a client, written once for blocking and async callers: allocate, attach, free, describe, list
//! and flush.
//!
//! Each takes a [`CallStyle`] and makes handles; an async caller may drop its future at any await, and [`OnAbandon`]
//! then undoes what the daemon has made.

use vramd_proto::v1;
use vramd_types::{AllocationId, Reason};

use std::{
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    handles::{
        advice::Advice,
        handle::Handle,
        info::{AllocationInfo, AllocationKind, AllocationState, Tier},
        quota::OwnQuota,
        request::{AllocationRequest, Target},
    },
    process::fork::ProcessBound,
    rpc::request_id::RequestId,
    session::{
        ReleaseKind, Released, Session,
        call_style::{CallStyle, run_ready},
        check_process, free, missing_field,
    },
};

/// How long the daemon is asked at first what it has made of a batch whose caller has gone.
const UNDO_PATIENCE: Duration = Duration::from_millis(200);

/// How a new handle begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InitialPin {
    /// All parts arrive, and the handle pin keeps them.
    Pinned,
    /// All parts arrive, and then the handle pin is released: the daemon does not support pins.
    PinnedThenReleased,
    /// No part arrives before it is pinned.
    Unpinned,
}

impl InitialPin {
    fn of(unpinned: bool, pins: bool) -> Self {
        match (unpinned, pins) {
            (false, _) => Self::Pinned,
            (true, false) => Self::PinnedThenReleased,
            (true, true) => Self::Unpinned,
        }
    }
}

/// Runs an undo action unless it is disarmed: an async caller's future may be dropped at any time, and a thread may be
/// interrupted.
pub(crate) struct OnAbandon<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> OnAbandon<F> {
    pub(crate) fn new(undo: Option<F>) -> Self {
        Self(undo)
    }

    /// Disarms it, unless the caller gave up.
    pub(crate) fn end<T>(mut self, outcome: &Result<T>) {
        if !matches!(outcome, Err(Error::Interrupted)) {
            self.0 = None;
        }
    }
}

impl<F: FnOnce()> Drop for OnAbandon<F> {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}

/// Allocates and waits for all parts. Earlier drops are completed first, since they may make the room.
pub(crate) async fn claim_new(
    style: CallStyle,
    session: &ProcessBound<Session>,
    requests: Vec<AllocationRequest>,
) -> Result<Vec<Handle>> {
    check_process(session)?;
    requests.iter().try_for_each(AllocationRequest::check)?;
    let wait = requests.iter().map(|request| request.wait).max().unwrap_or_default();
    let deadline = deadline_after(session, wait);
    style.flush(session, deadline).await?;
    // A daemon without pins sends every part.
    let pins = session.table().is_asked_for_pins();
    let initial_pins: Vec<_> =
        requests.iter().map(|request| InitialPin::of(request.spec.unheld, pins)).collect();
    let request_id = requests.first().and_then(|request| request.request_id);
    let request = v1::AllocateBatchRequest {
        session_id: session.id().get(),
        request_id: request_id.unwrap_or_else(RequestId::random).to_vec(),
        items: requests
            .into_iter()
            .map(|AllocationRequest { spec, .. }| v1::AllocationSpec { unheld: spec.unheld && pins, ..spec })
            .collect(),
        wait_ms: whole_millis(wait),
    };
    let _expecting = session.table().expect_arrivals()?;
    let _seat = style.take_seat(session);
    let on_abandon = OnAbandon(style.may_be_abandoned().then(|| {
        let (session, request) = (session.clone(), request.clone());
        move || undo_allocate(&session, request, wait)
    }));
    let made = allocate(style, session, request, deadline).await;
    on_abandon.end(&made);
    claim(style, session, made?, &initial_pins, ReleaseKind::Free, deadline).await
}

/// Charges managed memory: the daemon makes nothing for it. Earlier drops are completed first, since they may make the
/// room.
pub(crate) async fn charge(
    style: CallStyle,
    session: &ProcessBound<Session>,
    spec: v1::AllocationSpec,
    wait: Duration,
) -> Result<AllocationInfo> {
    let deadline = deadline_after(session, wait);
    style.flush(session, deadline).await?;
    let request = v1::AllocateBatchRequest {
        session_id: session.id().get(),
        request_id: RequestId::random().to_vec(),
        items: vec![spec],
        wait_ms: whole_millis(wait),
    };
    let on_abandon = OnAbandon(style.may_be_abandoned().then(|| {
        let (session, request) = (session.clone(), request.clone());
        move || undo_allocate(&session, request, wait)
    }));
    let charged = allocate(style, session, request, deadline).await;
    on_abandon.end(&charged);
    charged?.pop().ok_or_else(|| missing_field("allocation"))
}

/// Gives advice for an allocation, or for parts of it.
pub(crate) async fn advise(
    style: CallStyle,
    session: &Session,
    id: AllocationId,
    parts: Option<Range<u32>>,
    advice: Advice,
) -> Result<()> {
    let request = v1::AdviseRequest {
        session_id: session.id().get(),
        request_id: RequestId::random().to_vec(),
        allocation_id: id.get(),
        ..advice.request(parts)
    };
    let deadline = session.deadline();
    let answer = style
        .call(session, deadline, request, |mut client, request| async move { client.advise(request).await });
    answer.await.map(drop)
}

/// Asks once for the eviction of an allocation. Returns the outcome of each part.
pub(crate) async fn evict(
    style: CallStyle,
    session: &Session,
    id: AllocationId,
    tier: Tier,
) -> Result<Vec<v1::PartMove>> {
    let request = v1::EvictRequest {
        session_id: session.id().get(),
        request_id: RequestId::random().to_vec(),
        allocation_id: id.get(),
        tier: tier.into(),
    };
    let deadline = session.deadline();
    let answer = style
        .call(session, deadline, request, |mut client, request| async move { client.evict(request).await });
    Ok(answer.await?.parts)
}

async fn allocate(
    style: CallStyle,
    session: &Session,
    request: v1::AllocateBatchRequest,
    deadline: Instant,
) -> Result<Vec<AllocationInfo>> {
    let answer = style.call(session, deadline, request, |mut client, request| async move {
        client.allocate_batch(request).await
    });
    Ok(answer.await?.allocations.into_iter().map(AllocationInfo::from).collect())
}

/// Cancels a batch that waits for room.
async fn cancel_batch(
    style: CallStyle,
    session: &Session,
    batch: &v1::AllocateBatchRequest,
    deadline: Instant,
) -> Result<()> {
    let request =
        v1::CancelAllocateBatchRequest { session_id: batch.session_id, request_id: batch.request_id.clone() };
    let answer = style.call(session, deadline, request, |mut client, request| async move {
        client.cancel_allocate_batch(request).await
    });
    answer.await.map(drop)
}

/// The deadline of a call that may wait that long for room. The daemon refuses a wait beyond the clock's range.
fn deadline_after(session: &Session, wait: Duration) -> Instant {
    let deadline = session.deadline();
    deadline.checked_add(wait).unwrap_or(deadline)
}

/// Rounded up.
fn whole_millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Undoes an allocation whose caller has gone: the batch leaves the line at once. If it does not wait, the daemon, asked
/// again under the same id, says what it has made, and that is freed.
///
/// The daemon may have to make the batch first, and that may take long. So a request that waits has a thread of its own.
fn undo_allocate(session: &ProcessBound<Session>, request: v1::AllocateBatchRequest, wait: Duration) {
    let of = session.clone();
    let undo = move || {
        let end = deadline_after(&of, wait);
        let mut patience = UNDO_PATIENCE;
        while run_ready(cancel_batch(CallStyle::Blocking, &of, &request, end)).is_err() {
            // A request that had not arrived may enter the line only now. So the daemon is asked for a short time.
            let until = end.min(Instant::now() + patience);
            match run_ready(allocate(CallStyle::Blocking, &of, request.clone(), until)) {
                Err(error) if error.reason() == Some(Reason::Deadline) && until < end => patience *= 2,
                made => {
                    let made = made.into_iter().flatten();
                    return made.for_each(|info| release_unclaimed(&of, info, ReleaseKind::Free));
                }
            }
        }
    };
    match wait.is_zero() {
        true => session.releases().run(undo),
        false => undo_on_thread(session, undo),
    }
}

/// Runs an undo action that may take long, on a thread of its own.
pub(crate) fn undo_on_thread(session: &ProcessBound<Session>, undo: impl FnOnce() + Send + 'static) {
    if session.is_own_process() {
        // Where no thread can be started, the allocation stays until the session ends.
        let _ = thread::Builder::new().name("vramd-undo".to_owned()).spawn(undo);
    }
}

/// Attaches an existing allocation: sealed memory for reading, fixed memory for writing.
pub(crate) async fn claim_attached(
    style: CallStyle,
    session: &ProcessBound<Session>,
    target: Target,
    kind: AllocationKind,
    unpinned: bool,
) -> Result<Handle> {
    use v1::attach_request::Target as Wire;
    check_process(session)?;
    let deadline = session.deadline();
    style.flush(session, deadline).await?;
    // A daemon without pins sends every part.
    let initial_pin = InitialPin::of(unpinned, session.table().is_asked_for_pins());
    let target = match target {
        Target::Id(id) => Wire::AllocationId(id.get()),
        Target::Name(name) => Wire::Name(name),
    };
    let request = v1::AttachRequest {
        session_id: session.id().get(),
        request_id: RequestId::random().to_vec(),
        target: Some(target),
        unheld: initial_pin == InitialPin::Unpinned,
    };
    let _expecting = session.table().expect_arrivals()?;
    let _seat = style.take_seat(session);
    let on_abandon = OnAbandon(style.may_be_abandoned().then(|| {
        let (session, request) = (session.clone(), request.clone());
        move || undo_attach(session, request)
    }));
    let attached = attach(style, session, request, deadline).await;
    on_abandon.end(&attached);
    let info = attached?;
    let fixed = info.kind == AllocationKind::Fixed;
    let refusal = match kind {
        AllocationKind::Fixed if !fixed => {
            Some(Error::refused(Reason::KindUnsupported, &[("kind", &"movable")]))
        }
        AllocationKind::Fixed => None,
        // The owner's session may be mapping its open allocation already, or have lost its handle.
        _ if info.state != AllocationState::Sealed => {
            Some(Error::refused(Reason::NotSealed, &[("allocation", &info.id)]))
        }
        _ => None,
    };
    if let Some(refusal) = refusal {
        // The daemon has attached it. An earlier handle of this session keeps it; otherwise it is detached again.
        drop(Handle::claim(session, info, ReleaseKind::Detach));
        return Err(refusal);
    }
    let mut handles =
        claim(style, session, vec![info], &[initial_pin], ReleaseKind::Detach, deadline).await?;
    handles.pop().ok_or_else(|| missing_field("allocation"))
}

async fn attach(
    style: CallStyle,
    session: &Session,
    request: v1::AttachRequest,
    deadline: Instant,
) -> Result<AllocationInfo> {
    let answer = style
        .call(session, deadline, request, |mut client, request| async move { client.attach(request).await });
    answer.await?.allocation.map(AllocationInfo::from).ok_or_else(|| missing_field("allocation"))
}

fn undo_attach(session: ProcessBound<Session>, request: v1::AttachRequest) {
    session.clone().releases().run(move || {
        if let Ok(info) = run_ready(attach(CallStyle::Blocking, &session, request, session.deadline())) {
            release_unclaimed(&session, info, ReleaseKind::Detach);
        }
    });
}

/// Releases an allocation that has no handle.
fn release_unclaimed(session: &ProcessBound<Session>, info: AllocationInfo, release_kind: ReleaseKind) {
    if let Ok(handle) = Handle::claim(session, info, release_kind) {
        handle.release_now();
    }
}

/// Makes handles for all allocations, each with all its parts, or for none: on an error nothing is left when this
/// returns.
async fn claim(
    style: CallStyle,
    session: &ProcessBound<Session>,
    allocations: Vec<AllocationInfo>,
    initial_pins: &[InitialPin],
    release_kind: ReleaseKind,
    deadline: Instant,
) -> Result<Vec<Handle>> {
    let handles = allocations.into_iter().map(|info| Handle::claim(session, info, release_kind));
    let claimed = async {
        let mut handles = handles.collect::<Result<Vec<_>>>()?;
        // Before waiting for anything.
        let begin = |(handle, initial_pin): (&mut Handle, &InitialPin)| {
            if *initial_pin == InitialPin::Unpinned {
                handle.begin_unpinned();
            }
        };
        handles.iter_mut().zip(initial_pins).for_each(begin);
        for (handle, initial_pin) in handles.iter_mut().zip(initial_pins) {
            if *initial_pin != InitialPin::Unpinned {
                handle.wait_arrived(style, deadline).await?;
            }
            if *initial_pin == InitialPin::PinnedThenReleased {
                handle.unpin()?;
            }
        }
        Ok(handles)
    };
    let claimed = claimed.await;
    if claimed.is_err() {
        // The caller should see the first error, not one of the clean-up.
        let _ = style.flush(session, session.deadline()).await;
    }
    claimed
}

/// Frees an allocation of this session or its tenant that has no handle.
pub(crate) async fn free_by_id(
    style: CallStyle,
    session: &ProcessBound<Session>,
    id: AllocationId,
) -> Result<Released> {
    check_process(session)?;
    free(style, session, id, session.deadline()).await
}

pub(crate) async fn describe(
    style: CallStyle,
    session: &ProcessBound<Session>,
    target: Target,
) -> Result<AllocationInfo> {
    check_process(session)?;
    crate::session::describe(style, session, target, session.deadline()).await
}

pub(crate) async fn list(
    style: CallStyle,
    session: &ProcessBound<Session>,
    name_prefix: &str,
) -> Result<Vec<AllocationInfo>> {
    check_process(session)?;
    let deadline = session.deadline();
    let mut request = v1::ListAllocationsRequest {
        session_id: session.id().get(),
        name_prefix: name_prefix.to_owned(),
        ..Default::default()
    };
    let mut all = Vec::new();
    loop {
        let page = style.call(session, deadline, request.clone(), |mut client, request| async move {
            client.list_allocations(request).await
        });
        let page = page.await?;
        all.extend(page.allocations.into_iter().map(AllocationInfo::from));
        if page.next_page_token.is_empty() {
            return Ok(all);
        }
        request.page_token = page.next_page_token;
    }
}

pub(crate) async fn quota(style: CallStyle, session: &ProcessBound<Session>) -> Result<Vec<OwnQuota>> {
    check_process(session)?;
    let request = v1::GetOwnQuotaRequest { session_id: session.id().get() };
    let answer = style.call(session, session.deadline(), request, |mut client, request| async move {
        client.get_own_quota(request).await
    });
    Ok(answer.await?.places.into_iter().map(OwnQuota::from).collect())
}

pub(crate) async fn flush(style: CallStyle, session: &ProcessBound<Session>) -> Result<()> {
    check_process(session)?;
    style.flush(session, session.deadline()).await
}
