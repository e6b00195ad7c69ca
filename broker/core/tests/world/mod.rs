//! A small world around the broker: clients that answer, a driver that obeys, all checked after every event.
#![allow(
    unreachable_pub,
    missing_debug_implementations,
    dead_code,
    reason = "a module of several test binaries"
)]

pub mod moving;
pub mod pressing;
pub mod revoking;
pub mod writing_back;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use broker_core::{
    AllocationSpec, Broker, CallId, ChannelId, ClientFrame, ClientRequest, Command, Completion, Config,
    CreateError, DaemonFrame, DeviceConfig, DigestError, Event, Hello, Kind, Lifetime, Limits, Notice,
    OperatorRequest, PartRef, PartUse, Peer, PrefetchState, PressureNote, Refusal, Reply, RequestKey,
    SequenceState, Slot, StoredQuotas, Tier, Time, TurnState, UnmappedPart, WordsOutcome,
};
use vramd_types::{AllocationId, Bytes, ExtentId, Quantity, SessionId};

pub const UUIDS: [&str; 3] = ["GPU-0", "GPU-1", "GPU-2"];

#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub channel: ChannelId,
    pub session: SessionId,
    pub pid: u32,
}

impl Client {
    pub fn peer(self) -> Peer {
        Peer { pid: self.pid, uid: UID }
    }
}

/// Of every client.
pub const UID: u32 = 1000;

pub struct World {
    pub broker: Broker,
    pub now: Time,
    pub replies: BTreeMap<CallId, Result<Reply, Refusal>>,
    /// Frames for clients, not yet answered.
    pub inboxes: BTreeMap<ChannelId, VecDeque<DaemonFrame>>,
    /// Everything for the driver and the disk that has not been done.
    pub work: VecDeque<Command>,
    /// Parts that each client maps by its own belief.
    pub mapped: BTreeMap<ChannelId, BTreeSet<PartRef>>,
    /// Pins by the words of each client.
    pub pinned: BTreeMap<(ChannelId, PartRef), u32>,
    /// Parts that a client unmaps once its pins have ended.
    pub to_unmap: BTreeSet<(ChannelId, PartRef)>,
    /// Answers to pin calls.
    pub pin_answers: BTreeMap<(ChannelId, u64), Option<Refusal>>,
    /// Which part each slot serves.
    pub slots: BTreeMap<(ChannelId, Slot), PartRef>,
    /// Clients that answer nothing.
    pub stopped: BTreeSet<ChannelId>,
    /// Extents that some process goes on holding after their release.
    pub still_open: BTreeSet<ExtentId>,
    /// Extents whose release was answered so.
    pub unreturned: BTreeSet<ExtentId>,
    /// The driver defers releases as long as none is urgent.
    pub defers_releases: bool,
    pub deferred: Vec<Command>,
    /// Destinations of copies that were to be done sooner.
    pub hastened: Vec<ExtentId>,
    pub killed: Vec<ChannelId>,
    pub closed: BTreeSet<ChannelId>,
    pub stored: StoredQuotas,
    /// Memory of each device that other programs have.
    pub other_programs: Bytes,
    /// For this many further extents devices have no memory.
    pub out_of_memory: usize,
    pub fail_creates: VecDeque<Option<CreateError>>,
    pub fail_copies: VecDeque<Option<String>>,
    /// How long each copy takes, in microseconds.
    pub copy_time: u64,
    /// Extents on disk that are not as they were written.
    pub damaged: BTreeSet<ExtentId>,
    /// Clients that were told that a part they wait for is lost.
    pub lost: Vec<(ChannelId, PartRef)>,
    /// The content of each extent that was written or copied to; others hold zeros.
    pub contents: BTreeMap<ExtentId, u64>,
    /// Extents that are pieces of files.
    pub in_files: BTreeSet<ExtentId>,
    /// Extents on disk to which nothing was written.
    pub unwritten: BTreeSet<ExtentId>,
    /// Parts that each client has written since its WRITTEN bits were collected.
    pub written: BTreeSet<(ChannelId, PartRef)>,
    /// The extent that each part was in when it was sent last.
    pub extents: BTreeMap<PartRef, ExtentId>,
    /// The drop count that was sent with the part last.
    pub drop_counts: BTreeMap<PartRef, u64>,
    /// Notices for operators.
    pub notices: Vec<Notice>,
    /// Whether new sessions subscribe to pressure.
    pub subscribes_to_pressure: bool,
    pub pressure_notes: Vec<(ChannelId, PressureNote)>,
    /// Everything that clients were told of their prefetch requests.
    pub prefetch_states: BTreeMap<(ChannelId, u64), Vec<PrefetchState>>,
    /// Everything that clients were told of their sequences.
    pub sequence_states: BTreeMap<(ChannelId, u64), Vec<SequenceState>>,
    /// Answers to working sets.
    pub set_answers: BTreeMap<(ChannelId, u64), Option<Refusal>>,
    /// Everything that clients were told of their turns.
    pub turn_states: BTreeMap<(ChannelId, u64), Vec<TurnState>>,
    /// The batches of orders for managed memory that clients have not answered.
    pub managed_orders: BTreeMap<ChannelId, Vec<(u64, Vec<broker_core::ManagedOrder>)>>,
    /// Whether the next clients speak of orders for managed memory.
    pub takes_orders: bool,
    pub shares_sent: Vec<vramd_types::Shares>,
    calls: u64,
    channels: u64,
}

pub fn config(devices: &[Bytes]) -> Config {
    Config {
        boot_epoch: 1,
        devices: devices
            .iter()
            .zip(UUIDS)
            .map(|(size, uuid)| DeviceConfig {
                uuid: uuid.to_owned(),
                name: "sim".to_owned(),
                total: *size,
                share: *size,
                context_bytes: Bytes::ZERO,
                maps_host: true,
                makes_fixed: false,
                host: Bytes::ZERO,
                disk: Bytes::ZERO,
            })
            .collect(),
        part_size: Bytes::mib(4),
        default_limit: Quantity::Percent(100),
        default_host_limit: Quantity::Percent(100),
        default_disk_limit: Quantity::Percent(100),
        sessions_reserved: 8,
        // Tests name who leaves first: the least recently used part.
        eviction: broker_core::EvictionPolicy::Lru,
        victim_script: Vec::new(),
        check_clean_backings: false,
        files: false,
        pressure: broker_core::PressureBounds::default(),
        shares: vramd_types::Shares::default(),
        tenants: BTreeMap::new(),
        // A waiter that nothing helps holds its device.
        limits: Limits { hold_after: Duration::ZERO, ..Limits::default() },
    }
}

impl World {
    pub fn new(mib: u32) -> Self {
        Self::with(config(&[Bytes::mib(mib)]), StoredQuotas::default())
    }

    pub fn with(config: Config, stored: StoredQuotas) -> Self {
        let mut world = Self::unsurveyed(config, stored);
        world.run_until_idle();
        world
    }

    /// A node whose devices were never surveyed.
    pub fn unsurveyed(config: Config, stored: StoredQuotas) -> Self {
        let mut world = Self {
            broker: Broker::new(config, stored, Time::START),
            now: Time::START,
            replies: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            work: VecDeque::new(),
            mapped: BTreeMap::new(),
            pinned: BTreeMap::new(),
            to_unmap: BTreeSet::new(),
            pin_answers: BTreeMap::new(),
            slots: BTreeMap::new(),
            stopped: BTreeSet::new(),
            still_open: BTreeSet::new(),
            unreturned: BTreeSet::new(),
            defers_releases: false,
            deferred: Vec::new(),
            hastened: Vec::new(),
            killed: Vec::new(),
            closed: BTreeSet::new(),
            stored: StoredQuotas::default(),
            other_programs: Bytes::ZERO,
            out_of_memory: 0,
            fail_creates: VecDeque::new(),
            fail_copies: VecDeque::new(),
            copy_time: 0,
            damaged: BTreeSet::new(),
            lost: Vec::new(),
            contents: BTreeMap::new(),
            in_files: BTreeSet::new(),
            unwritten: BTreeSet::new(),
            written: BTreeSet::new(),
            extents: BTreeMap::new(),
            drop_counts: BTreeMap::new(),
            notices: Vec::new(),
            subscribes_to_pressure: false,
            pressure_notes: Vec::new(),
            prefetch_states: BTreeMap::new(),
            sequence_states: BTreeMap::new(),
            set_answers: BTreeMap::new(),
            turn_states: BTreeMap::new(),
            managed_orders: BTreeMap::new(),
            takes_orders: true,
            shares_sent: Vec::new(),
            calls: 0,
            channels: 0,
        };
        world.collect();
        world
    }

    /// One event and its commands. For floods of events: every check takes as long as there are things to check.
    pub fn unchecked_event(&mut self, event: Event) {
        self.now = Time::from_micros(self.now.as_micros() + 1);
        self.broker.handle(self.now, event);
        self.collect();
    }

    /// One event, its commands, and every invariant.
    pub fn event(&mut self, event: Event) {
        let shown = format!("{event:?}");
        self.unchecked_event(event);
        let violations = self.broker.check();
        assert!(violations.is_empty(), "after {shown}: {violations:#?}");
        assert_eq!(self.broker.node().invariant_violations, 0, "after {shown}");
    }

    fn collect(&mut self) {
        while let Some(command) = self.broker.poll_command() {
            match command {
                Command::Reply { call, outcome } => {
                    assert!(self.replies.insert(call, outcome).is_none(), "{call:?} was answered twice");
                }
                Command::Send { channel, frame: DaemonFrame::PinAnswer { call, refusal } } => {
                    let again = self.pin_answers.insert((channel, call), refusal);
                    assert_eq!(again, None, "{call} was answered twice");
                }
                Command::ForgetWord { channel, slot } => {
                    if let Some(part) = self.slots.remove(&(channel, slot)) {
                        self.written.remove(&(channel, part));
                    }
                }
                Command::Send { channel, frame: DaemonFrame::Pressure(note) } => {
                    self.pressure_notes.push((channel, note));
                }
                Command::Send { channel, frame: DaemonFrame::Prefetch { number, state } } => {
                    self.prefetch_states.entry((channel, number)).or_default().push(state);
                }
                Command::Send { channel, frame: DaemonFrame::Sequence { number, state } } => {
                    self.sequence_states.entry((channel, number)).or_default().push(state);
                }
                Command::Send { channel, frame: DaemonFrame::WorkingSet { number, refusal } } => {
                    let again = self.set_answers.insert((channel, number), refusal);
                    assert_eq!(again, None, "working set {number} was answered twice");
                }
                Command::Send { channel, frame: DaemonFrame::Turn { turn, state } } => {
                    self.turn_states.entry((channel, turn)).or_default().push(state);
                }
                Command::Send { channel, frame: DaemonFrame::ManagedOrders { number, orders } } => {
                    self.managed_orders.entry(channel).or_default().push((number, orders));
                }
                Command::Send { channel, frame } => self.inboxes.entry(channel).or_default().push_back(frame),
                Command::CloseChannel { channel } => _ = self.closed.insert(channel),
                Command::KillProcess { channel } => self.killed.push(channel),
                Command::Notice(notice) => self.notices.push(notice),
                Command::ForgetProcess { .. } => {}
                // A copy that has not begun is dropped.
                Command::CancelCopy { to } => self.cancelled(to),
                Command::ShareLinks(shares) => self.shares_sent.push(shares),
                Command::HastenCopy { to } => {
                    assert!(self.is_copied_to(to), "{to} is not being copied to");
                    self.hastened.push(to);
                }
                release @ Command::ReleaseExtent { .. } if self.defers_releases => {
                    self.deferred.push(release)
                }
                Command::ReleaseNow { .. } => self.work.extend(self.deferred.drain(..)),
                work => self.work.push_back(work),
            }
        }
    }

    fn cancelled(&mut self, to: ExtentId) {
        assert!(self.is_copied_to(to), "{to} is not being copied to");
        self.fail_copies.push_front(Some("cancelled".to_owned()));
    }

    fn is_copied_to(&self, to: ExtentId) -> bool {
        self.work.iter().any(|work| matches!(work, Command::Copy { to: of, .. } if *of == to))
    }

    pub fn content(&self, extent: ExtentId) -> u64 {
        self.contents.get(&extent).copied().unwrap_or_default()
    }

    /// The client, which maps the part, writes it.
    pub fn write(&mut self, client: Client, part: PartRef, content: u64) {
        assert!(self.maps(client, part), "{part:?} is not mapped");
        self.contents.insert(self.extents[&part], content);
        self.written.insert((client.channel, part));
    }

    pub fn read(&self, client: Client, part: PartRef) -> u64 {
        assert!(self.maps(client, part), "{part:?} is not mapped");
        self.content(self.extents[&part])
    }

    /// Does the oldest piece of the driver's and the disk's work.
    pub fn work_once(&mut self) -> bool {
        let Some(command) = self.work.pop_front() else { return false };
        if matches!(command, Command::Copy { .. }) && self.copy_time > 0 {
            self.advance(self.copy_time);
        }
        let event = match command {
            Command::CreateExtent { extent, tier: Tier::Device, .. } if self.out_of_memory > 0 => {
                self.out_of_memory -= 1;
                Event::Completion(Completion::Created { extent, result: Err(CreateError::OutOfMemory) })
            }
            Command::CreateExtent { extent, tier, .. } => {
                if tier == Tier::Disk {
                    self.unwritten.insert(extent);
                }
                let failure = self.fail_creates.pop_front().flatten();
                Event::Completion(Completion::Created { extent, result: failure.map_or(Ok(()), Err) })
            }
            Command::OpenExtent { extent, file, offset, .. } => {
                let failure = self.fail_creates.pop_front().flatten();
                if failure.is_none() {
                    self.in_files.insert(extent);
                    self.contents.insert(extent, file_content(file, offset));
                }
                Event::Completion(Completion::Created { extent, result: failure.map_or(Ok(()), Err) })
            }
            Command::Copy { from, to, .. } if self.damaged.contains(&from) => {
                let problem = format!("{from} is damaged");
                Event::Completion(Completion::Damaged { to, problem })
            }
            Command::Copy { from, to, compare_first, .. } => {
                assert!(!self.in_files.contains(&to), "{to} is a piece of a file, and copied to");
                let differs = self.content(from) != self.content(to);
                if compare_first && differs {
                    self.event(Event::Completion(Completion::CleanBackingDiffers { to }));
                }
                assert!(!self.unwritten.contains(&from), "{from} is read and was never written");
                if differs || !compare_first {
                    self.unwritten.remove(&to);
                }
                let result = self.fail_copies.pop_front().flatten().map_or(Ok(()), Err);
                if result.is_ok() {
                    let content = self.content(from);
                    self.contents.insert(to, content);
                }
                Event::Completion(Completion::Copied { to, result })
            }
            Command::ReleaseExtent { extent } => {
                self.contents.remove(&extent);
                self.unwritten.remove(&extent);
                self.in_files.remove(&extent);
                let returned = !self.still_open.contains(&extent);
                if !returned {
                    self.unreturned.insert(extent);
                }
                Event::Completion(Completion::Released { extent, returned })
            }
            Command::Digest { allocation, spans } => {
                let damaged = spans.iter().map(|span| span.extent).find(|it| self.damaged.contains(it));
                let result = damaged.map_or(Ok([7; 32]), |extent| {
                    Err(DigestError::Damaged { extent, problem: format!("{extent} is damaged") })
                });
                Event::Completion(Completion::Digested { allocation, result })
            }
            Command::Survey { device, .. } => Event::Completion(Completion::Surveyed {
                device,
                unbrokered: self.other_programs,
                contexts: 0,
                host_missing: Bytes::ZERO,
            }),
            Command::RevokeWords { part, words } => {
                let pinned = |channel| self.pinned.contains_key(&(channel, part));
                let by: Vec<_> =
                    words.iter().filter(|(channel, ..)| pinned(*channel)).map(|(_, id, _)| *id).collect();
                let outcome = match by.is_empty() {
                    true => WordsOutcome::Revoked,
                    false => WordsOutcome::Pinned { by },
                };
                Event::Completion(Completion::WordsRevoked { part, outcome })
            }
            Command::ClearWritten { part, channel, .. } => {
                let cleared = !self.pinned.contains_key(&(channel, part));
                if cleared {
                    self.written.remove(&(channel, part));
                }
                Event::Completion(Completion::WrittenCleared { part, cleared })
            }
            Command::StoreQuotas(stored) => {
                self.stored = stored;
                Event::QuotasStored { result: Ok(()) }
            }
            other => panic!("no work: {other:?}"),
        };
        self.event(event);
        true
    }

    /// The client takes its oldest frame and answers it, as it should.
    pub fn answer_once(&mut self, channel: ChannelId) -> bool {
        if self.stopped.contains(&channel) || self.closed.contains(&channel) {
            return false;
        }
        let Some(frame) = self.inboxes.get_mut(&channel).and_then(VecDeque::pop_front) else { return false };
        let mapped = self.mapped.entry(channel).or_default();
        let answer = match frame {
            DaemonFrame::Map(parts) => {
                self.extents.extend(parts.iter().map(|part| (part.part, part.extent)));
                self.drop_counts.extend(parts.iter().map(|part| (part.part, part.drop_count)));
                for part in &parts {
                    let Some(slot) = part.slot else { continue };
                    let serves = *self.slots.entry((channel, slot)).or_insert(part.part);
                    assert_eq!(serves, part.part, "{slot:?} serves two parts");
                }
                let parts: Vec<_> = parts.iter().map(|part| part.part).collect();
                assert!(parts.iter().all(|part| mapped.insert(*part)), "mapped twice");
                ClientFrame::Mapped(parts)
            }
            DaemonFrame::Revoke { parts, .. } => {
                let (pinned, free): (Vec<_>, Vec<_>) = parts
                    .into_iter()
                    .map(|told| told.part)
                    .partition(|part| self.pinned.contains_key(&(channel, *part)));
                self.to_unmap.extend(pinned.into_iter().map(|part| (channel, part)));
                let held: Vec<_> = free.into_iter().filter(|part| mapped.remove(part)).collect();
                let parts: Vec<_> = held.into_iter().map(|part| self.unmapped(channel, part)).collect();
                if parts.is_empty() {
                    return true;
                }
                ClientFrame::Unmapped(parts)
            }
            DaemonFrame::Lost(part) => {
                self.lost.push((channel, part));
                return true;
            }
            _ => return true,
        };
        self.event(Event::Frame { channel, frame: answer });
        true
    }

    /// The client's report of a part that it has unmapped.
    fn unmapped(&self, channel: ChannelId, part: PartRef) -> UnmappedPart {
        UnmappedPart { written: self.written.contains(&(channel, part)), ..unmapped(part) }
    }

    /// The shell looks at the words of a part.
    pub fn harvest(&mut self, client: Client, part: PartRef) {
        let pinned = self.pinned.contains_key(&(client.channel, part));
        let written = self.written.contains(&(client.channel, part));
        self.event(Event::PartsUsed(vec![PartUse { session: client.session, part, pinned, written }]));
    }

    /// Lets the driver work and clients answer until nothing is left to do.
    pub fn run_until_idle(&mut self) {
        loop {
            let mut busy = self.work_once();
            for channel in self.inboxes.keys().copied().collect::<Vec<_>>() {
                busy |= self.answer_once(channel);
            }
            if !busy {
                return;
            }
        }
    }

    pub fn advance(&mut self, micros: u64) {
        self.now = Time::from_micros(self.now.as_micros() + micros);
        self.event(Event::Tick);
    }

    pub fn hello(
        &mut self,
        tenant: &str,
        pid: u32,
        devices: Option<Vec<String>>,
    ) -> (ChannelId, DaemonFrame) {
        self.hello_after(tenant, pid, devices, Vec::new())
    }

    pub fn hello_after(
        &mut self,
        tenant: &str,
        pid: u32,
        devices: Option<Vec<String>>,
        unmapped_sessions: Vec<SessionId>,
    ) -> (ChannelId, DaemonFrame) {
        self.hello_with(tenant, pid, devices, unmapped_sessions, false)
    }

    fn hello_with(
        &mut self,
        tenant: &str,
        pid: u32,
        devices: Option<Vec<String>>,
        unmapped_sessions: Vec<SessionId>,
        pins: bool,
    ) -> (ChannelId, DaemonFrame) {
        self.channels += 1;
        let channel = ChannelId(self.channels);
        let hello = Hello {
            tenant: tenant.to_owned(),
            pid,
            uid: UID,
            client_name: "test".to_owned(),
            devices,
            unmapped_sessions,
            pins,
            managed_orders: self.takes_orders,
            pressure: self.subscribes_to_pressure,
        };
        self.event(Event::Hello { channel, hello });
        let answer = self.inboxes.get_mut(&channel).and_then(VecDeque::pop_front).expect("hello is answered");
        (channel, answer)
    }

    fn new_pid(&self) -> u32 {
        100 + u32::try_from(self.channels).expect("few channels")
    }

    /// A session of a process of its own.
    pub fn open(&mut self, tenant: &str) -> Client {
        let pid = self.new_pid();
        let (channel, answer) = self.hello(tenant, pid, None);
        match answer {
            DaemonFrame::Welcome { session, .. } => Client { channel, session, pid },
            other => panic!("no welcome: {other:?}"),
        }
    }

    /// The same for a session with pins, which maps its word table.
    pub fn open_pinning(&mut self, tenant: &str) -> Client {
        let pid = self.new_pid();
        self.open_pinning_in(pid, tenant)
    }

    /// The same in a process that may have other sessions.
    pub fn open_pinning_in(&mut self, pid: u32, tenant: &str) -> Client {
        let client = self.greet_pinning_in(pid, tenant);
        self.frame(client, ClientFrame::WordsMapped);
        client
    }

    /// A session with pins that has not mapped its word table.
    pub fn greet_pinning(&mut self, tenant: &str) -> Client {
        let pid = self.new_pid();
        self.greet_pinning_in(pid, tenant)
    }

    fn greet_pinning_in(&mut self, pid: u32, tenant: &str) -> Client {
        let (channel, answer) = self.hello_with(tenant, pid, None, Vec::new(), true);
        match answer {
            DaemonFrame::Welcome { session, slots, .. } if slots > 0 => Client { channel, session, pid },
            other => panic!("no welcome: {other:?}"),
        }
    }

    pub fn frame(&mut self, client: Client, frame: ClientFrame) {
        self.event(Event::Frame { channel: client.channel, frame });
    }

    /// Pins by the word: the part must be mapped.
    pub fn pin(&mut self, client: Client, part: PartRef) {
        assert!(self.maps(client, part), "{part:?} is not mapped");
        *self.pinned.entry((client.channel, part)).or_default() += 1;
    }

    /// The last unpin of a part that is wanted back unmaps it.
    pub fn unpin(&mut self, client: Client, part: PartRef) {
        let key = (client.channel, part);
        let pins = self.pinned.get_mut(&key).expect("a pin");
        *pins -= 1;
        if *pins == 0 {
            self.pinned.remove(&key);
            if self.to_unmap.remove(&key) {
                self.mapped.entry(client.channel).or_default().remove(&part);
                let unmapped = self.unmapped(client.channel, part);
                self.frame(client, ClientFrame::Unmapped(vec![unmapped]));
            }
        }
    }

    pub fn pin_call(&mut self, client: Client, call: u64, parts: &[PartRef]) {
        self.pin_frame(client, call, parts, None);
    }

    pub fn pin_within(&mut self, client: Client, call: u64, parts: &[PartRef], wait: Duration) {
        self.pin_frame(client, call, parts, Some(wait));
    }

    fn pin_frame(&mut self, client: Client, call: u64, parts: &[PartRef], wait: Option<Duration>) {
        self.frame(client, ClientFrame::Pin { call, parts: parts.to_vec(), write: false, wait });
    }

    pub fn maps(&self, client: Client, part: PartRef) -> bool {
        self.mapped.get(&client.channel).is_some_and(|mapped| mapped.contains(&part))
    }

    pub fn start(&mut self, client: Client, key: Option<RequestKey>, request: ClientRequest) -> CallId {
        self.calls += 1;
        let call = CallId(self.calls);
        self.event(Event::Client { call, session: client.session, peer: client.peer(), key, request });
        call
    }

    /// A request and its answer, after all work is done.
    pub fn call(&mut self, client: Client, request: ClientRequest) -> Result<Reply, Refusal> {
        let call = self.start(client, None, request);
        self.run_until_idle();
        self.replies.remove(&call).expect("an answer")
    }

    pub fn start_operator(&mut self, key: Option<RequestKey>, request: OperatorRequest) -> CallId {
        self.calls += 1;
        let call = CallId(self.calls);
        self.event(Event::Operator { call, uid: 0, key, request });
        call
    }

    pub fn operate(&mut self, request: OperatorRequest) -> Result<Reply, Refusal> {
        let call = self.start_operator(None, request);
        self.run_until_idle();
        self.replies.remove(&call).expect("an answer")
    }

    pub fn allocate(&mut self, client: Client, spec: AllocationSpec) -> Result<AllocationId, Refusal> {
        match self.call(client, ClientRequest::allocate(vec![spec]))? {
            Reply::Allocated(views) => Ok(views[0].id),
            other => panic!("no allocation: {other:?}"),
        }
    }

    pub fn sealed(&mut self, client: Client, spec: AllocationSpec) -> AllocationId {
        let id = self.allocate(client, spec).expect("room");
        self.call(client, ClientRequest::Seal(id)).expect("sealed");
        id
    }

    pub fn end_process(&mut self, client: Client) {
        self.event(Event::ProcessEnded { channel: client.channel });
        self.run_until_idle();
    }

    pub fn charged(&self) -> Bytes {
        self.broker.devices().iter().fold(Bytes::ZERO, |sum, device| sum.saturating_add(device.charged))
    }

    pub fn charged_in_host(&self) -> Bytes {
        let host = |device: &broker_core::DeviceView| device.host.map_or(Bytes::ZERO, |host| host.charged);
        self.broker.devices().iter().fold(Bytes::ZERO, |sum, device| sum.saturating_add(host(device)))
    }

    pub fn charged_on_disk(&self) -> Bytes {
        let disk = |device: &broker_core::DeviceView| device.disk.map_or(Bytes::ZERO, |disk| disk.charged);
        self.broker.devices().iter().fold(Bytes::ZERO, |sum, device| sum.saturating_add(disk(device)))
    }

    pub fn charged_to(&self, tenant: &str) -> Bytes {
        let view = self.broker.quota(tenant, None, broker_core::Tier::Device).expect("a tenant");
        view.in_force.expect("a present device").charged
    }
}

pub fn spec(mib: u32) -> AllocationSpec {
    AllocationSpec {
        size: Bytes::mib(mib),
        device: None,
        kind: Kind::Movable,
        lifetime: Lifetime::Session,
        name: None,
        readers: Vec::new(),
        part_size: None,
        replace: false,
        uninitialized: false,
        unpinned: false,
        discardable: false,
    }
}

/// The content of a file at an offset.
pub fn file_content(file: broker_core::FileId, offset: Bytes) -> u64 {
    file.0 << 32 | offset.get() >> 20
}

pub fn named(mib: u32, name: &str) -> AllocationSpec {
    AllocationSpec { name: Some(name.to_owned()), ..spec(mib) }
}

pub fn persistent(mib: u32, name: &str) -> AllocationSpec {
    AllocationSpec { lifetime: Lifetime::Persistent, ..named(mib, name) }
}

pub fn key(id: u8, content: u8) -> Option<RequestKey> {
    Some(RequestKey { id: [id; 16], fingerprint: [content; 16] })
}

/// On all devices, in MiB.
pub fn set_quota(tenant: &str, guarantee: u32, limit: u32) -> OperatorRequest {
    OperatorRequest::SetQuota {
        tenant: tenant.to_owned(),
        device: broker_core::DeviceSelector::All,
        tier: broker_core::Tier::Device,
        guarantee: Some(Quantity::Bytes(Bytes::mib(guarantee))),
        limit: Some(Quantity::Bytes(Bytes::mib(limit))),
    }
}

pub fn unmapped(part: PartRef) -> UnmappedPart {
    UnmappedPart { part, failure: None, written: false }
}
