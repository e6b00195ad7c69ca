//! What a client asks of its session, for both faces.

use vramd_proto::v1;
use vramd_types::{AllocationId, Reason};

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    handles::{
        handle::Handle,
        info::{AllocationInfo, AllocationKind, AllocationState},
        request::{AllocationRequest, Target},
    },
    process::fork::ProcessBound,
    rpc::request_id::RequestId,
    session::{
        Parting, Released, Session,
        call_style::{Face, now},
        check_home, free, missing,
    },
};

/// What a new handle has of its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// It holds all of it.
    Held,
    /// All of it comes, and may go again.
    LetGo,
    /// Nothing of it comes before it is pinned.
    Unheld,
}

impl Beginning {
    fn of(unheld: bool, pins: bool) -> Self {
        match (unheld, pins) {
            (false, _) => Self::Held,
            (true, false) => Self::LetGo,
            (true, true) => Self::Unheld,
        }
    }
}

/// Something to be done unless what follows comes to its end: its future may be dropped at any time.
pub(crate) struct Unless<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Unless<F> {
    pub(crate) fn new(undo: Option<F>) -> Self {
        Self(undo)
    }

    pub(crate) fn done(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for Unless<F> {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}

/// Allocates and waits for all parts. What was dropped before makes room first.
pub(crate) async fn claim_new(
    face: Face,
    session: &ProcessBound<Session>,
    requests: Vec<AllocationRequest>,
) -> Result<Vec<Handle>> {
    check_home(session)?;
    let wait = requests.iter().map(|request| request.wait).max().unwrap_or_default();
    let deadline = deadline_after(session, wait);
    face.flush(session, deadline).await?;
    // Who can't pin is sent everything.
    let pins = session.table().is_asked_for_pins();
    let beginnings: Vec<_> =
        requests.iter().map(|request| Beginning::of(request.spec.unheld, pins)).collect();
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
    let _expecting = session.table().expect();
    let _seat = face.sit(session);
    let abandoned = Unless((face == Face::Async).then(|| {
        let (session, request) = (session.clone(), request.clone());
        move || undo_allocate(&session, request, wait)
    }));
    let made = allocate(face, session, request, deadline).await;
    abandoned.done();
    claim(face, session, made?, &beginnings, Parting::Free, deadline).await
}

async fn allocate(
    face: Face,
    session: &Session,
    request: v1::AllocateBatchRequest,
    deadline: Instant,
) -> Result<Vec<AllocationInfo>> {
    let answer = face.call(session, deadline, request, |mut client, request| async move {
        client.allocate_batch(request).await
    });
    Ok(answer.await?.allocations.into_iter().map(AllocationInfo::from).collect())
}

/// When a call has taken too long that may wait so long for room. What no clock can count the daemon refuses at once.
fn deadline_after(session: &Session, wait: Duration) -> Instant {
    let deadline = session.deadline();
    deadline.checked_add(wait).unwrap_or(deadline)
}

/// No shorter than it is.
fn whole_millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Nobody waits for it any more. The daemon, asked again under the same id, says what it has made; that goes back.
///
/// That it has made anything may be long in coming where it waits for room, perhaps for what this process drops next. So that
/// has a thread of its own.
fn undo_allocate(session: &ProcessBound<Session>, request: v1::AllocateBatchRequest, wait: Duration) {
    let of = session.clone();
    let undo = move || {
        let made = now(allocate(Face::Blocking, &of, request, deadline_after(&of, wait)));
        made.into_iter().flatten().for_each(|info| forgo(&of, info, Parting::Free));
    };
    match wait.is_zero() {
        true => session.releases().work(undo),
        false => undo_aside(session, undo),
    }
}

/// Undoes what may be long in coming, on a thread of its own.
pub(crate) fn undo_aside(session: &ProcessBound<Session>, undo: impl FnOnce() + Send + 'static) {
    if session.is_home() {
        // Where there is no thread to be had, what is made stays until the session ends.
        let _ = thread::Builder::new().name("vramd-undo".to_owned()).spawn(undo);
    }
}

/// Maps what is there already. Sealed memory for reading, fixed memory for writing.
pub(crate) async fn claim_attached(
    face: Face,
    session: &ProcessBound<Session>,
    target: Target,
    kind: AllocationKind,
    unheld: bool,
) -> Result<Handle> {
    use v1::attach_request::Target as Wire;
    check_home(session)?;
    let deadline = session.deadline();
    face.flush(session, deadline).await?;
    // Who can't pin is sent everything.
    let beginning = Beginning::of(unheld, session.table().is_asked_for_pins());
    let target = match target {
        Target::Id(id) => Wire::AllocationId(id.get()),
        Target::Name(name) => Wire::Name(name),
    };
    let request = v1::AttachRequest {
        session_id: session.id().get(),
        request_id: RequestId::random().to_vec(),
        target: Some(target),
        unheld: beginning == Beginning::Unheld,
    };
    let _expecting = session.table().expect();
    let _seat = face.sit(session);
    let abandoned = Unless((face == Face::Async).then(|| {
        let (session, request) = (session.clone(), request.clone());
        move || undo_attach(session, request)
    }));
    let attached = attach(face, session, request, deadline).await;
    abandoned.done();
    let info = attached?;
    let fixed = info.kind == AllocationKind::Fixed;
    let refusal = match kind {
        AllocationKind::Fixed if !fixed => {
            Some(Error::refused(Reason::KindUnsupported, &[("kind", &"movable")]))
        }
        AllocationKind::Fixed => None,
        // Its own session may map an open one again, which has a handle of its own already, or lost it.
        _ if info.state != AllocationState::Sealed => {
            Some(Error::refused(Reason::NotSealed, &[("allocation", &info.id)]))
        }
        _ => None,
    };
    if let Some(refusal) = refusal {
        // The daemon has attached it. Who had a handle before keeps it; otherwise it goes again.
        drop(Handle::claim(session, info, Parting::Detach));
        return Err(refusal);
    }
    let mut handles = claim(face, session, vec![info], &[beginning], Parting::Detach, deadline).await?;
    handles.pop().ok_or_else(|| missing("allocation"))
}

async fn attach(
    face: Face,
    session: &Session,
    request: v1::AttachRequest,
    deadline: Instant,
) -> Result<AllocationInfo> {
    let answer = face
        .call(session, deadline, request, |mut client, request| async move { client.attach(request).await });
    answer.await?.allocation.map(AllocationInfo::from).ok_or_else(|| missing("allocation"))
}

fn undo_attach(session: ProcessBound<Session>, request: v1::AttachRequest) {
    session.clone().releases().work(move || {
        if let Ok(info) = now(attach(Face::Blocking, &session, request, session.deadline())) {
            forgo(&session, info, Parting::Detach);
        }
    });
}

/// Parts from what nobody has a handle of.
fn forgo(session: &ProcessBound<Session>, info: AllocationInfo, parting: Parting) {
    if let Ok(handle) = Handle::claim(session, info, parting) {
        handle.part_now();
    }
}

/// Handles for all of them, each with all its parts, or for none: then nothing of them is left when this returns.
async fn claim(
    face: Face,
    session: &ProcessBound<Session>,
    allocations: Vec<AllocationInfo>,
    beginnings: &[Beginning],
    parting: Parting,
    deadline: Instant,
) -> Result<Vec<Handle>> {
    let handles = allocations.into_iter().map(|info| Handle::claim(session, info, parting));
    let claimed = async {
        let mut handles = handles.collect::<Result<Vec<_>>>()?;
        // Before anything is waited for.
        let unheld = |(handle, beginning): (&Handle, &Beginning)| {
            if *beginning == Beginning::Unheld {
                handle.begin_unheld();
            }
        };
        handles.iter().zip(beginnings).for_each(unheld);
        for (handle, beginning) in handles.iter_mut().zip(beginnings) {
            if *beginning != Beginning::Unheld {
                handle.wait_held(face, deadline).await?;
            }
            if *beginning == Beginning::LetGo {
                handle.unpin()?;
            }
        }
        Ok(handles)
    };
    let claimed = claimed.await;
    if claimed.is_err() {
        // The cause is what the caller should read, not what becomes of the clearing up.
        let _ = face.flush(session, session.deadline()).await;
    }
    claimed
}

/// Frees what this session, or its tenant, owns and has no handle of.
pub(crate) async fn free_by_id(
    face: Face,
    session: &ProcessBound<Session>,
    id: AllocationId,
) -> Result<Released> {
    check_home(session)?;
    free(face, session, id, session.deadline()).await
}

pub(crate) async fn describe(
    face: Face,
    session: &ProcessBound<Session>,
    target: Target,
) -> Result<AllocationInfo> {
    check_home(session)?;
    crate::session::describe(face, session, target, session.deadline()).await
}

pub(crate) async fn list(
    face: Face,
    session: &ProcessBound<Session>,
    name_prefix: &str,
) -> Result<Vec<AllocationInfo>> {
    check_home(session)?;
    let deadline = session.deadline();
    let mut request = v1::ListAllocationsRequest {
        session_id: session.id().get(),
        name_prefix: name_prefix.to_owned(),
        ..Default::default()
    };
    let mut all = Vec::new();
    loop {
        let page = face.call(session, deadline, request.clone(), |mut client, request| async move {
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

pub(crate) async fn flush(face: Face, session: &ProcessBound<Session>) -> Result<()> {
    check_home(session)?;
    face.flush(session, session.deadline()).await
}
