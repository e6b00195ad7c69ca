//! One session with the daemon: the state that all handles of a client share.
//!
//! It owns the channel's link, the table of mappings, the connection for calls, the queue of releases and the
//! pressure reports. A call that blocks holds none of its locks.

pub(crate) mod call_style;
pub(crate) mod history;
pub(crate) mod managed_orders;
pub(crate) mod pressure;
pub(crate) mod release_queue;
pub(crate) mod socket_paths;
pub(crate) mod visible_devices;

use std::{
    future::Future,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tonic::{Request, Response, Status, transport::Channel};
use vramd_proto::{
    channel::{PREFETCH, SEQUENCES, TURNS},
    v1::{self, memory_service_client::MemoryServiceClient},
};
use vramd_types::{AllocationId, Bytes, Reason, SessionId};

use crate::{
    channel::{self, Greeting, Link, ReadOutcome, ReaderSeat},
    cuda::Gpus,
    error::{Error, Result},
    handles::{info::AllocationInfo, request::Target},
    interrupt::Interrupt,
    mapping::{Ending, Mode, Table, Until},
    pins::{Anchors, Reaper},
    process::fork::ProcessBound,
    rpc::{Rpc, request_id::RequestId},
    session::{
        call_style::CallStyle,
        pressure::{OnPressure, Pressures},
        release_queue::ReleaseQueue,
    },
};

/// A reply lists every part of every allocation of a batch.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// A daemon that does not answer a hello for this long counts as gone.
const HELLO_TIMEOUT: Duration = Duration::from_secs(30);
/// After the end of a session a call waits at most this long for a daemon.
const ENDED_TIMEOUT: Duration = Duration::from_millis(600);

#[derive(Debug)]
pub(crate) struct Session {
    id: SessionId,
    tenant: String,
    devices: Vec<v1::Device>,
    daemon_version: String,
    /// The features that both sides speak, as bits.
    features: u64,
    request_timeout: Duration,
    link: Arc<Link>,
    table: Arc<Table>,
    rpc: Rpc,
    releases: ReleaseQueue,
    reaper: Reaper,
    anchors: Anchors,
}

/// The outcome of freeing or detaching memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Bytes still charged to the tenant, because a session maps them or a process has them open.
    pub still_charged: Bytes,
    /// How many sessions still map it.
    pub mapper_count: u32,
}

/// How a handle is released from its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseKind {
    Free,
    /// Ends only this session's mapping.
    Detach,
}

impl ReleaseKind {
    /// How the last of several handles releases the allocation: it frees it if another would have.
    pub(crate) fn or(self, other: Option<Self>) -> Self {
        match (self, other) {
            (Self::Detach, None | Some(Self::Detach)) => Self::Detach,
            _ => Self::Free,
        }
    }
}

impl Session {
    pub(crate) fn open(
        socket_dir: &Path,
        client_name: String,
        devices: Option<Vec<String>>,
        mode: Mode,
        request_timeout: Duration,
        on_pressure: Option<OnPressure>,
    ) -> Result<ProcessBound<Self>> {
        let unmapped_sessions = history::unmapped_sessions(socket_dir);
        let reported = unmapped_sessions.clone();
        let may_narrow = mode == Mode::Map && devices.is_none();
        // The SDK cannot see what a program does with parts that it maps itself.
        let pins = mode == Mode::Map;
        let greeting = Greeting { client_name, devices, unmapped_sessions, pins };
        let deadline = Instant::now() + request_timeout.min(HELLO_TIMEOUT);
        let path = socket_paths::channel_socket(socket_dir);
        let (mut link, mut welcome, mut words) = channel::open(&path, greeting.clone(), deadline)?;
        if may_narrow && let Some(seen) = visible_devices::narrowed(&welcome.devices) {
            // The first session maps nothing, so ending the channel is enough for the daemon to forget it.
            link.end();
            let greeting = Greeting { devices: Some(seen), unmapped_sessions: Vec::new(), ..greeting };
            (link, welcome, words) = channel::open(&path, greeting, deadline)?;
        }
        history::forget(socket_dir, &reported);

        let pressures = Pressures::start(&welcome.devices, on_pressure).map_err(no_thread)?;
        let table = Table::new(mode, Gpus::new(&welcome.devices), words, pressures);
        Self::begin(link, table, welcome, socket_dir, request_timeout)
    }

    /// Opens the session on a channel that is open.
    pub(crate) fn begin(
        link: Link,
        table: Table,
        welcome: v1::Welcome,
        socket_dir: &Path,
        request_timeout: Duration,
    ) -> Result<ProcessBound<Self>> {
        let id = SessionId::from_raw(welcome.session_id);
        let (link, table) = (Arc::new(link), Arc::new(table));
        let rpc = Rpc::open(&socket_paths::memory_socket(socket_dir))?;
        let releases = ReleaseQueue::start().map_err(no_thread)?;
        table.managed.answer_by(&link);
        channel::spawn_worker(Arc::clone(&link), Arc::clone(&table)).map_err(no_thread)?;
        history::remember(socket_dir, id, &table);
        Ok(ProcessBound::new(Self {
            id,
            tenant: welcome.tenant,
            devices: welcome.devices,
            daemon_version: welcome.daemon_version,
            features: welcome.features,
            request_timeout,
            link,
            table,
            rpc,
            releases,
            reaper: Reaper::default(),
            anchors: Anchors::default(),
        }))
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn tenant(&self) -> &str {
        &self.tenant
    }

    pub(crate) fn devices(&self) -> &[v1::Device] {
        &self.devices
    }

    pub(crate) fn daemon_version(&self) -> &str {
        &self.daemon_version
    }

    /// Whether the daemon takes prefetch requests of this session.
    pub(crate) fn takes_prefetches(&self) -> bool {
        self.features & PREFETCH != 0
    }

    /// Whether the daemon takes declared sequences of this session.
    pub(crate) fn takes_sequences(&self) -> bool {
        self.features & SEQUENCES != 0
    }

    /// Whether the daemon gives turns to working sets of this session.
    pub(crate) fn takes_turns(&self) -> bool {
        self.features & TURNS != 0
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.request_timeout
    }

    /// A wait beyond the clock's range is as long as any request.
    pub(crate) fn deadline_after(&self, wait: Duration) -> Instant {
        Instant::now().checked_add(wait).unwrap_or_else(|| self.deadline())
    }

    pub(crate) fn releases(&self) -> &ReleaseQueue {
        &self.releases
    }

    /// Calls the daemon. After the end of the session a call only finds out whether a daemon is there, within a
    /// second.
    pub(crate) fn call<Q, A, Method, Answer>(
        &self,
        deadline: Instant,
        request: Q,
        method: Method,
    ) -> Result<A>
    where
        Q: Clone + Send + Sync + 'static,
        A: Send + 'static,
        Method: Fn(MemoryServiceClient<Channel>, Request<Q>) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Response<A>, Status>> + Send + 'static,
    {
        let (deadline, ended) = self.prepare_call(deadline)?;
        fault_point!(CallBegins);
        let answer = self.rpc.call(deadline, ended, request, on_connection(method));
        fault_point!(Answered);
        answer.map_err(|error| self.map_error(error))
    }

    /// Like [`Self::call`], for a task.
    pub(crate) async fn call_async<Q, A, Method, Answer>(
        &self,
        deadline: Instant,
        request: Q,
        method: Method,
    ) -> Result<A>
    where
        Q: Clone + Send + Sync + 'static,
        A: Send + 'static,
        Method: Fn(MemoryServiceClient<Channel>, Request<Q>) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Response<A>, Status>> + Send + 'static,
    {
        let (deadline, ended) = self.prepare_call(deadline)?;
        let answer = self.rpc.call_async(deadline, ended, request, on_connection(method)).await;
        answer.map_err(|error| self.map_error(error))
    }

    /// The deadline of a call and the signal that ends it early; or why no call can be made.
    fn prepare_call(&self, deadline: Instant) -> Result<(Instant, Option<watch::Receiver<bool>>)> {
        match self.table.ending() {
            Some(Ending::Refused(error)) => Err(error),
            Some(Ending::Closed) => Ok((deadline.min(Instant::now() + ENDED_TIMEOUT), None)),
            None => Ok((deadline, Some(self.table.ended()))),
        }
    }

    /// Translates an error of a call for the caller.
    fn map_error(&self, error: Error) -> Error {
        match (error.reason(), self.table.ending()) {
            // A restarted daemon never knew the session; for the caller that is the same.
            (Some(Reason::SessionNotFound), _) => {
                Error::refused(Reason::SessionLost, &[("session", &self.id)])
            }
            (Some(Reason::BrokerGone), Some(Ending::Refused(error))) => error,
            (Some(Reason::Deadline), Some(ending)) => ending.error(),
            _ => error,
        }
    }

    pub(crate) fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    pub(crate) fn anchors(&self) -> &Anchors {
        &self.anchors
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Makes the calling thread the reader of the channel until the seat is dropped; it then waits by [`Self::wait`].
    pub(crate) fn take_seat(&self) -> Option<ReaderSeat<'_>> {
        self.link.take_seat()
    }

    /// Waits until the condition holds, or never can.
    pub(crate) fn wait(&self, until: Until, deadline: Instant) -> Result<()> {
        let interrupt = Interrupt::of_thread();
        while !self.table.check(until)? {
            interrupt.check()?;
            let pause = interrupt.next_check(deadline);
            match channel::read_one(&self.link, &self.table, pause) {
                ReadOutcome::Packet => {}
                ReadOutcome::TimedOut if pause < deadline => {}
                ReadOutcome::TimedOut => {
                    return if self.table.check(until)? { Ok(()) } else { Err(Error::deadline()) };
                }
                ReadOutcome::NotReader => match self.table.wait(until, pause) {
                    Err(Error::Deadline { .. }) if pause < deadline => {}
                    outcome => return outcome,
                },
            }
        }
        Ok(())
    }

    /// Unmaps an allocation and reports that to the daemon. With `forget` its address is given up as well.
    pub(crate) fn unmap(&self, id: AllocationId, forget: bool) {
        let channel = self.link.lock_channel();
        let answer = self.table.unmap(id, forget);
        fault_point!(LetGo);
        let told = answer.is_ok_and(|answer| self.table.ending().is_some() || channel.report(answer).is_ok());
        fault_point!(UnmapAnswered);
        if !told {
            // The daemon's view of the mappings is wrong now: only ending the channel makes it true.
            self.link.end();
        }
    }
}

/// Unmaps an allocation, then frees or detaches it.
pub(crate) async fn release(
    style: CallStyle,
    session: &ProcessBound<Session>,
    id: AllocationId,
    release_kind: ReleaseKind,
    deadline: Instant,
) -> Result<Released> {
    style.unmap(session, id, false).await;
    let outcome = match release_kind {
        ReleaseKind::Free => free(style, session, id, deadline).await,
        ReleaseKind::Detach => detach(style, session, id, deadline).await,
    };
    // For parts that arrived meanwhile.
    style.unmap(session, id, true).await;
    outcome
}

pub(crate) async fn free(
    style: CallStyle,
    session: &Session,
    id: AllocationId,
    deadline: Instant,
) -> Result<Released> {
    let request = v1::FreeBatchRequest {
        session_id: session.id.get(),
        request_id: RequestId::random().to_vec(),
        allocation_ids: vec![id.get()],
    };
    let answer = style.call(session, deadline, request, |mut client, request| async move {
        client.free_batch(request).await
    });
    released(answer.await?.results)
}

async fn detach(
    style: CallStyle,
    session: &Session,
    id: AllocationId,
    deadline: Instant,
) -> Result<Released> {
    let request = v1::DetachRequest {
        session_id: session.id.get(),
        request_id: RequestId::random().to_vec(),
        allocation_ids: vec![id.get()],
    };
    let answer = style
        .call(session, deadline, request, |mut client, request| async move { client.detach(request).await });
    released(answer.await?.results)
}

pub(crate) async fn describe(
    style: CallStyle,
    session: &Session,
    target: Target,
    deadline: Instant,
) -> Result<AllocationInfo> {
    use v1::describe_allocation_request::Target as Wire;
    let target = match target {
        Target::Id(id) => Wire::AllocationId(id.get()),
        Target::Name(name) => Wire::Name(name),
    };
    let request = v1::DescribeAllocationRequest { session_id: session.id.get(), target: Some(target) };
    let answer = style.call(session, deadline, request, |mut client, request| async move {
        client.describe_allocation(request).await
    });
    answer.await?.allocation.map(AllocationInfo::from).ok_or_else(|| missing_field("allocation"))
}

/// Turns a call of the service into a call over a connection.
fn on_connection<Q, Answer>(
    method: impl Fn(MemoryServiceClient<Channel>, Request<Q>) -> Answer,
) -> impl Fn(Channel, Request<Q>) -> Answer {
    move |connection, request| {
        method(MemoryServiceClient::new(connection).max_decoding_message_size(REPLY_BYTES_MAX), request)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let was_open = self.table.ending().is_none();
        self.table.end(Ending::Closed);
        // Unmaps allocations without a handle, whose callers gave up before they arrived.
        let left = self.table.unmap_all();
        if was_open {
            self.link.try_report(left);
        }
        self.link.end();
    }
}

/// Refuses a handle in a forked child.
#[inline]
pub(crate) fn check_process(session: &ProcessBound<Session>) -> Result<()> {
    if session.is_own_process() { Ok(()) } else { Err(forked_error(session)) }
}

/// The error for a forked child.
#[cold]
pub(crate) fn forked_error(session: &Session) -> Error {
    Error::Forked { session: session.id.to_string() }
}

fn released(results: Vec<v1::ReleaseResult>) -> Result<Released> {
    let result = results.into_iter().next().ok_or_else(|| missing_field("item"))?;
    match result.error {
        Some(error) => Err(error.into()),
        None => Ok(Released {
            still_charged: Bytes::new(result.still_charged_bytes),
            mapper_count: result.mapper_count,
        }),
    }
}

fn no_thread(error: std::io::Error) -> Error {
    Error::broker_gone(format!("a thread of the session could not be started: {error}"))
}

/// The error for an answer that lacks a required field.
pub(crate) fn missing_field(field: &str) -> Error {
    Error::refused(
        Reason::ProtocolBroken,
        &[("problem", &format!("the daemon's answer lacks the field `{field}`"))],
    )
}
