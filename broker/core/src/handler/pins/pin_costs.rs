//! Tests of what pin calls cost. They count steps, so that no load of the machine decides.

use std::collections::BTreeMap;

use vramd_types::{AllocationId, Bytes, PartIndex, Quantity, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, Reply},
    config::{Config, DeviceConfig},
    event::{
        AllocationSpec, CallId, ChannelId, ClientFrame, ClientRequest, Completion, Event, Hello, Kind,
        Lifetime, OperatorRequest, PartRef, Peer, Target,
    },
    limits::Limits,
    time::Time,
    view::StoredQuotas,
};

const PARTS: u32 = 64;
const CHANNEL: ChannelId = ChannelId(1);
const PEER: Peer = Peer { pid: 7, uid: 1000 };

/// A session whose one allocation is fenced while the session pins all of it. Each further call for it waits.
struct Fenced {
    broker: Broker,
    allocation: AllocationId,
    now: Time,
    answers: BTreeMap<u64, bool>,
}

impl Fenced {
    fn new() -> Self {
        let device = DeviceConfig {
            uuid: "GPU-0".to_owned(),
            name: "sim".to_owned(),
            total: Bytes::gib(1),
            share: Bytes::gib(1),
            context_bytes: Bytes::ZERO,
            maps_host: true,
            makes_fixed: false,
            host: Bytes::ZERO,
            disk: Bytes::ZERO,
        };
        let config = Config {
            boot_epoch: 1,
            devices: vec![device],
            part_size: Bytes::mib(2),
            default_limit: Quantity::Percent(100),
            default_host_limit: Quantity::Percent(100),
            default_disk_limit: Quantity::Percent(100),
            sessions_reserved: 1,
            eviction: crate::eviction::EvictionPolicy::Lru,
            victim_script: Vec::new(),
            check_clean_backings: false,
            files: false,
            pressure: crate::pressure::PressureBounds::default(),
            shares: vramd_types::Shares::default(),
            tenants: std::collections::BTreeMap::new(),
            limits: Limits::default(),
        };
        let broker = Broker::new(config, StoredQuotas::default(), Time::START);
        let allocation = AllocationId::from_raw(0);
        let mut world = Self { broker, allocation, now: Time::START, answers: BTreeMap::new() };
        let hello = Hello {
            tenant: "a".to_owned(),
            pid: PEER.pid,
            uid: PEER.uid,
            client_name: String::new(),
            devices: None,
            unmapped_sessions: Vec::new(),
            pins: true,
            managed_orders: false,
            pressure: false,
        };
        world.event(Event::Hello { channel: CHANNEL, hello });
        world.frame(ClientFrame::WordsMapped);
        let session = world.session();
        let spec = AllocationSpec {
            size: Bytes::mib(2 * PARTS),
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
        };
        let request = ClientRequest::allocate(vec![spec]);
        world.event(Event::Client { call: CallId(1), session, peer: PEER, key: None, request });
        let target = Target::Id(world.allocation);
        let request = OperatorRequest::RevokeMappings { target, parts: Vec::new(), wait: true };
        world.event(Event::Operator { call: CallId(2), uid: 0, key: None, request });
        world
    }

    fn session(&self) -> SessionId {
        self.broker.sessions.on_channel(CHANNEL).expect("a session")
    }

    /// Handles the event and all that follows, except that the client does not unmap: it pins. Returns how many
    /// parts of calls were checked.
    fn event(&mut self, event: Event) -> usize {
        let before = self.broker.follow_ups.parts_checked;
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            self.broker.handle(self.now, event);
            while let Some(command) = self.broker.poll_command() {
                match command {
                    Command::CreateExtent { extent, .. } => {
                        events.push(Event::Completion(Completion::Created { extent, result: Ok(()) }));
                    }
                    Command::Send { frame: DaemonFrame::Map(parts), .. } => {
                        let frame = ClientFrame::Mapped(parts.iter().map(|part| part.part).collect());
                        events.push(Event::Frame { channel: CHANNEL, frame });
                    }
                    Command::Send { frame: DaemonFrame::PinAnswer { call, refusal }, .. } => {
                        self.answers.insert(call, refusal.is_none());
                    }
                    Command::Reply { outcome: Ok(Reply::Allocated(views)), .. } => {
                        self.allocation = views.first().expect("one").id;
                    }
                    _ => {}
                }
            }
        }
        assert_eq!(self.broker.check(), []);
        self.broker.follow_ups.parts_checked - before
    }

    fn frame(&mut self, frame: ClientFrame) -> usize {
        self.event(Event::Frame { channel: CHANNEL, frame })
    }

    fn pin(&mut self, call: u64) -> usize {
        let parts = (0..PARTS).map(|part| PartRef { allocation: self.allocation, part: PartIndex(part) });
        self.frame(ClientFrame::Pin { call, parts: parts.collect(), write: false, wait: None })
    }
}

#[test]
fn event_costs_what_it_changes_however_many_calls_wait() {
    let mut world = Fenced::new();
    let of_one_call = PARTS as usize;
    for call in 1..=200 {
        assert_eq!(world.pin(call), of_one_call, "call {call}");
        assert_eq!(world.event(Event::Tick), 0, "call {call}");
    }
    assert_eq!(world.frame(ClientFrame::PinEnded { call: 7 }), 0);
    assert!(world.answers.is_empty());
    let allocation = world.allocation;
    let unmapped = |part| crate::event::UnmappedPart {
        part: PartRef { allocation, part: PartIndex(part) },
        failure: None,
        written: false,
    };
    // The part is unmapped, its fence ends, and it is requested, sent and mapped. No other part is checked.
    let looked_at = world.frame(ClientFrame::Unmapped(vec![unmapped(5)]));
    assert!((199..=5 * 199).contains(&looked_at), "{looked_at}");
}

#[test]
fn stall_checks_run_twice_per_stall_time_not_at_every_event() {
    let mut world = Fenced::new();
    for call in 1..=100 {
        world.pin(call);
    }
    let stall = Limits::default().pin_stall;
    let mut looked_at = 0;
    // No other session is in the way: one call after the other is aborted, the youngest first, each after its
    // time.
    for round in 1..=3 {
        for _ in 0..50 {
            world.now = world.now.after(stall / 50);
            looked_at += world.event(Event::Tick);
        }
        assert_eq!(world.answers.len(), round, "one is aborted at a time");
        assert_eq!(world.answers.first_key_value(), Some((&(101 - round as u64), &false)));
    }
    assert!(looked_at <= 3 * 2 * 100 * PARTS as usize, "{looked_at} parts of 6400 were looked at in 3 times");
}
