//! Stands in for everything around the core: driver and clients answer at once and without fault.
//!
//! Each tenant has one session, which owns its parts and pins them. Pin words are sets here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broker_core::{
    AllocationSpec, Broker, CallId, ChannelId, ClientFrame, ClientRequest, Command, Completion, DaemonFrame,
    Event, Hello, Kind, Lifetime, Notice, PartRef, PartUse, Peer, Refusal, Reply, Tier, Time, UnmappedPart,
    WordsOutcome,
};
use vramd_types::{AllocationId, Bytes, DeviceIndex, SessionId};

const UID: u32 = 1000;

#[derive(Debug)]
pub(crate) struct Shell {
    broker: Broker,
    now: Time,
    ready: VecDeque<Event>,
    sessions: Vec<SessionId>,
    /// Parts that their sessions map, keep pinned, and have written since they were mapped.
    mapped: BTreeSet<PartRef>,
    held: BTreeSet<PartRef>,
    written: BTreeSet<PartRef>,
    last_call: u64,
    replies: BTreeMap<CallId, Result<Reply, Refusal>>,
    answers: BTreeMap<u64, Option<Refusal>>,
    moves: Vec<Moved>,
}

/// A part changed its tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) part: PartRef,
    pub(crate) device: DeviceIndex,
    pub(crate) from: Tier,
    pub(crate) to: Tier,
    pub(crate) bytes: Bytes,
    pub(crate) copied: bool,
}

/// Memory to allocate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) size: Bytes,
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    /// It starts below its device if that is full; otherwise the core makes room for it.
    pub(crate) may_start_below: bool,
}

impl Shell {
    pub(crate) fn new(broker: Broker) -> Self {
        let mut shell = Self {
            broker,
            now: Time::START,
            ready: VecDeque::new(),
            sessions: Vec::new(),
            mapped: BTreeSet::new(),
            held: BTreeSet::new(),
            written: BTreeSet::new(),
            last_call: 0,
            replies: BTreeMap::new(),
            answers: BTreeMap::new(),
            moves: Vec::new(),
        };
        shell.send(Event::Tick);
        shell
    }

    /// Opens the session of a tenant. Returns its number, which counts from 0.
    pub(crate) fn open_session(&mut self, tenant: &str) -> usize {
        let session = self.sessions.len();
        let hello = Hello {
            tenant: tenant.to_owned(),
            pid: pid(session),
            uid: UID,
            client_name: "replay".to_owned(),
            devices: None,
            unmapped_sessions: Vec::new(),
            pins: true,
            managed_orders: false,
            pressure: false,
        };
        self.send(Event::Hello { channel: channel(session), hello });
        self.send(Event::Frame { channel: channel(session), frame: ClientFrame::WordsMapped });
        session
    }

    /// Moves time on. It never goes back.
    pub(crate) fn advance_to(&mut self, now: Time) {
        self.now = self.now.max(now);
        if self.broker.next_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.send(Event::Tick);
        }
    }

    pub(crate) const fn now(&self) -> Time {
        self.now
    }

    /// Allocates all or nothing. Returns for each its part and whether that is on its device.
    pub(crate) fn allocate(
        &mut self,
        session: usize,
        wanted: &[Wanted],
    ) -> Result<Vec<(PartRef, bool)>, Refusal> {
        let items = wanted.iter().map(|wanted| AllocationSpec {
            size: wanted.size,
            device: Some(wanted.device.to_string()),
            kind: wanted.kind,
            lifetime: Lifetime::Session,
            name: None,
            readers: Vec::new(),
            part_size: (wanted.kind == Kind::Movable).then_some(wanted.size),
            replace: false,
            uninitialized: false,
            unpinned: wanted.may_start_below,
            discardable: false,
        });
        match self.request(session, ClientRequest::allocate(items.collect()))? {
            Some(Reply::Allocated(views)) => {
                let on_device = |id: AllocationId| {
                    let view = self.broker.show(&broker_core::Target::Id(id));
                    view.is_ok_and(|view| view.parts.first().is_some_and(|part| part.tier == Tier::Device))
                };
                Ok(views.iter().map(|view| (first_part(view.id), on_device(view.id))).collect())
            }
            _ => Ok(Vec::new()),
        }
    }

    pub(crate) fn free(&mut self, session: usize, part: PartRef) {
        self.held.remove(&part);
        // An allocation that is gone already needs no answer.
        let _ = self.request(session, ClientRequest::FreeBatch(vec![part.allocation]));
    }

    pub(crate) fn foretell(&mut self, part: PartRef, uses: &[Time]) {
        self.broker.foretell(part, uses.to_vec());
    }

    /// Uses a mapped part, as a pin by its word and the next harvest do. Returns whether it is mapped.
    pub(crate) fn touch(&mut self, session: usize, part: PartRef) -> bool {
        if !self.mapped.contains(&part) {
            return false;
        }
        let Some(session) = self.sessions.get(session).copied() else { return false };
        let (pinned, written) = (self.held.contains(&part), self.written.contains(&part));
        self.send(Event::PartsUsed(vec![PartUse { session, part, pinned, written }]));
        true
    }

    /// Calls for a part that is not mapped. [`Self::take_answer`] has the answer once there is one.
    pub(crate) fn call_pin(&mut self, session: usize, part: PartRef) -> u64 {
        self.last_call += 1;
        let call = self.last_call;
        let frame = ClientFrame::Pin { call, parts: vec![part], write: false, wait: None };
        self.send(Event::Frame { channel: channel(session), frame });
        call
    }

    /// Takes the answer to a pin call.
    pub(crate) fn take_answer(&mut self, call: u64) -> Option<Option<Refusal>> {
        self.answers.remove(&call)
    }

    /// Ends a granted pin call.
    pub(crate) fn end_call(&mut self, session: usize, call: u64) {
        self.send(Event::Frame { channel: channel(session), frame: ClientFrame::PinEnded { call } });
    }

    /// Sets whether the session keeps the part pinned. The next touch tells the core.
    pub(crate) fn set_held(&mut self, part: PartRef, held: bool) {
        if held {
            self.held.insert(part);
        } else {
            self.held.remove(&part);
        }
    }

    pub(crate) fn mark_written(&mut self, part: PartRef) {
        self.written.insert(part);
    }

    /// Takes the moves since the last call.
    pub(crate) fn take_moves(&mut self) -> Vec<Moved> {
        std::mem::take(&mut self.moves)
    }

    /// Returns the answer to a request, or `None` if it waits.
    fn request(&mut self, session: usize, request: ClientRequest) -> Result<Option<Reply>, Refusal> {
        self.last_call += 1;
        let call = CallId(self.last_call);
        let Some(id) = self.sessions.get(session).copied() else {
            return Err(Refusal::SessionMissing);
        };
        let peer = Peer { pid: pid(session), uid: UID };
        self.send(Event::Client { call, session: id, peer, key: None, request });
        self.replies.remove(&call).transpose()
    }

    /// Hands an event to the core, and answers its commands until nothing is left to do.
    fn send(&mut self, event: Event) {
        self.ready.push_back(event);
        while let Some(event) = self.ready.pop_front() {
            self.broker.handle(self.now, event);
            while let Some(command) = self.broker.poll_command() {
                self.execute(command);
            }
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Reply { call, outcome } => _ = self.replies.insert(call, outcome),
            Command::Send { channel, frame } => self.deliver(channel, frame),
            Command::CreateExtent { extent, .. } | Command::OpenExtent { extent, .. } => {
                self.complete(Completion::Created { extent, result: Ok(()) });
            }
            Command::ReleaseExtent { extent } => {
                self.complete(Completion::Released { extent, returned: true });
            }
            Command::Copy { to, .. } => self.complete(Completion::Copied { to, result: Ok(()) }),
            Command::Digest { allocation, .. } => {
                self.complete(Completion::Digested { allocation, result: Ok([0; 32]) });
            }
            Command::RevokeWords { part, words } => {
                let by = words.into_iter().map(|(_, session, _)| session).collect();
                let is_held = self.held.contains(&part);
                let outcome = if is_held { WordsOutcome::Pinned { by } } else { WordsOutcome::Revoked };
                self.complete(Completion::WordsRevoked { part, outcome });
            }
            Command::ClearWritten { part, .. } => {
                self.written.remove(&part);
                self.complete(Completion::WrittenCleared { part, cleared: true });
            }
            Command::Survey { device, .. } => self.complete(Completion::Surveyed {
                device,
                unbrokered: Bytes::ZERO,
                contexts: 0,
                host_missing: Bytes::ZERO,
            }),
            Command::StoreQuotas(_) => self.ready.push_back(Event::QuotasStored { result: Ok(()) }),
            Command::Notice(Notice::Moved { part, device, from, tier: to, bytes, copied, .. }) => {
                self.moves.push(Moved { part, device, from, to, bytes, copied });
            }
            Command::CloseChannel { .. }
            | Command::ForgetProcess { .. }
            | Command::KillProcess { .. }
            | Command::ShareLinks(_)
            | Command::HastenCopy { .. }
            | Command::CancelCopy { .. }
            | Command::ReleaseNow { .. }
            | Command::ForgetWord { .. }
            | Command::Notice(_) => {}
        }
    }

    fn deliver(&mut self, channel: ChannelId, frame: DaemonFrame) {
        let frame = match frame {
            DaemonFrame::Welcome { session, .. } => return self.sessions.push(session),
            DaemonFrame::PinAnswer { call, refusal } => {
                self.answers.insert(call, refusal);
                return;
            }
            DaemonFrame::Map(parts) => {
                let parts: Vec<_> = parts.into_iter().map(|part| part.part).collect();
                self.mapped.extend(parts.iter().copied());
                ClientFrame::Mapped(parts)
            }
            DaemonFrame::Revoke { parts, .. } => {
                let unmap = |part: PartRef| {
                    self.mapped.remove(&part);
                    UnmappedPart { part, failure: None, written: self.written.remove(&part) }
                };
                ClientFrame::Unmapped(parts.into_iter().map(|told| told.part).map(unmap).collect())
            }
            // A replay has no managed memory, and no orders for it.
            DaemonFrame::ManagedOrders { .. }
            | DaemonFrame::Refused(_)
            | DaemonFrame::Lost(_)
            | DaemonFrame::Drain { .. }
            | DaemonFrame::Pressure(_)
            | DaemonFrame::Prefetch { .. }
            | DaemonFrame::Sequence { .. }
            | DaemonFrame::WorkingSet { .. }
            | DaemonFrame::Turn { .. } => return,
        };
        self.ready.push_back(Event::Frame { channel, frame });
    }

    fn complete(&mut self, completion: Completion) {
        self.ready.push_back(Event::Completion(completion));
    }
}

fn channel(session: usize) -> ChannelId {
    ChannelId(u64::try_from(session).unwrap_or(u64::MAX))
}

fn pid(session: usize) -> u32 {
    u32::try_from(session).unwrap_or(u32::MAX).saturating_add(1)
}

/// Every allocation of a replay has one part.
fn first_part(allocation: AllocationId) -> PartRef {
    PartRef { allocation, part: vramd_types::PartIndex(0) }
}
