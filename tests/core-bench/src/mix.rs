//! The mixed workload: tenants and sessions that do everything a client can, over a constant number of live
//! allocations.

use std::collections::BTreeMap;

use broker_core::{
    AllocationSpec, CallId, ChannelId, ClientRequest, DeviceSelector, Event, Hello, Kind as AllocationKind,
    Lifetime, OperatorRequest, Peer, Reply, RequestKey, Target, Tier,
};
use vramd_types::{AllocationId, Bytes, Quantity, SessionId};

use crate::{
    dice::Dice,
    kind::Kind,
    meter::Pace,
    shell::{Shell, UUIDS},
};

const TENANTS: usize = 64;
/// Sessions that stay and own most allocations.
const RESIDENTS: usize = 256;
/// Sessions that come and go, with a few allocations each.
const VISITORS: usize = 64;
const VISITOR_OWNS_MAX: usize = 8;
/// Sealed allocations that every session may attach.
const LIBRARY: usize = 64;
/// Requests that are under way at the same time, each of another session.
const REQUESTS: usize = 8;
/// The most allocations in one batch of the mix.
const BATCH_MAX: usize = 15;
/// Requested sizes, each equally often. A part is 256 MiB.
const SIZES_MIB: [u32; 8] = [2, 2, 20, 64, 256, 512, 1024, 2048];
/// Virtual time between two rounds: about what a round takes in reality.
const ROUND_MICROS: u64 = 150;
const UID: u32 = 1000;

#[derive(Debug)]
struct Client {
    channel: ChannelId,
    session: SessionId,
    pid: u32,
    tenant: usize,
    owned: Vec<AllocationId>,
    sealed: Vec<AllocationId>,
    attached: Vec<AllocationId>,
}

/// How an answer is used.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Allocate,
    Seal,
    Library,
    Other,
}

#[derive(Debug)]
pub struct Mix {
    pub shell: Shell,
    dice: Dice,
    target: usize,
    clients: Vec<Client>,
    library: Vec<AllocationId>,
    asked: BTreeMap<CallId, (usize, Asked)>,
    round: u64,
    last: u64,
}

impl Mix {
    /// Opens all sessions, seals the library, and makes `live` allocations.
    pub fn new(pace: Pace, live: usize) -> Self {
        let mut mix = Self {
            shell: Shell::new(pace),
            dice: Dice::new(7),
            target: live,
            clients: Vec::new(),
            library: Vec::new(),
            asked: BTreeMap::new(),
            round: 0,
            last: 0,
        };
        for at in 0..RESIDENTS + VISITORS {
            mix.clients.push(Client {
                channel: ChannelId(0),
                session: SessionId::from_raw(0),
                pid: 0,
                tenant: at % TENANTS,
                owned: Vec::new(),
                sealed: Vec::new(),
                attached: Vec::new(),
            });
            mix.open(at);
            mix.drain();
        }
        mix.fill_library();
        mix.fill();
        mix
    }

    pub fn live(&self) -> usize {
        self.shell.broker.node().allocations
    }

    /// Runs eight requests at the same time, with all that follows from them.
    pub fn round(&mut self) {
        self.round += 1;
        self.shell.advance(ROUND_MICROS);
        let mut busy = [usize::MAX; REQUESTS];
        for at in 0..REQUESTS {
            let client = self.dice.below(self.clients.len());
            if busy.contains(&client) {
                continue;
            }
            if let Some(slot) = busy.get_mut(at) {
                *slot = client;
            }
            self.request(client);
        }
        if self.round.is_multiple_of(256) {
            self.operate();
        }
        self.drain();
    }

    fn request(&mut self, client: usize) {
        match self.dice.below(100) {
            0..50 => self.allocate_or_free(client),
            50..57 => self.attach(client),
            57..64 => self.detach(client),
            64..68 => self.seal(client),
            68..72 => self.come_and_go(),
            _ => self.query(client),
        }
    }

    fn allocate_or_free(&mut self, client: usize) {
        let is_visitor = client >= RESIDENTS;
        let Some(of) = self.clients.get_mut(client) else { return };
        let frees = if is_visitor {
            of.owned.len() >= VISITOR_OWNS_MAX
        } else {
            self.shell.broker.node().allocations >= self.target
        };
        let count = self.dice.below(BATCH_MAX) + 1;
        if !frees {
            let count = if is_visitor { VISITOR_OWNS_MAX } else { count };
            return self.allocate(client, count);
        }
        let mut ids: Vec<_> = (0..count).filter_map(|_| self.dice.take(&mut of.owned)).collect();
        ids.extend(self.dice.take(&mut of.sealed));
        if !ids.is_empty() {
            self.ask(client, Asked::Other, ClientRequest::FreeBatch(ids));
        }
    }

    /// A batch in which most allocations have one part and some up to eight. Half of them are named, half lie
    /// on the second device.
    fn allocate(&mut self, client: usize, count: usize) {
        let specs = (0..count).map(|_| {
            let chance = self.dice.below(4);
            let size = SIZES_MIB[self.dice.below(SIZES_MIB.len())];
            self.last += 1;
            AllocationSpec {
                size: Bytes::mib(size),
                device: (chance & 1 == 1).then(|| UUIDS[1].to_owned()),
                kind: AllocationKind::Movable,
                lifetime: Lifetime::Session,
                name: (chance & 2 == 2).then(|| format!("tensor-{}", self.last)),
                readers: Vec::new(),
                part_size: None,
                replace: false,
                uninitialized: false,
                unpinned: false,
                discardable: false,
            }
        });
        let specs = specs.collect();
        self.ask(client, Asked::Allocate, ClientRequest::allocate(specs));
    }

    fn attach(&mut self, client: usize) {
        let item = self.library[self.dice.below(LIBRARY)];
        let Some(of) = self.clients.get_mut(client) else { return };
        if !of.attached.contains(&item) {
            of.attached.push(item);
            self.ask(client, Asked::Other, ClientRequest::Attach(Target::Id(item)));
        }
    }

    fn detach(&mut self, client: usize) {
        let Some(of) = self.clients.get_mut(client) else { return };
        if let Some(item) = self.dice.take(&mut of.attached) {
            self.ask(client, Asked::Other, ClientRequest::Detach(vec![item]));
        }
    }

    fn seal(&mut self, client: usize) {
        let Some(of) = self.clients.get_mut(client) else { return };
        if client < RESIDENTS
            && let Some(id) = self.dice.take(&mut of.owned)
        {
            self.ask(client, Asked::Seal, ClientRequest::Seal(id));
        }
    }

    /// Ends a visitor's process, whatever it was doing, and starts another. Some answer nothing from then on,
    /// until the daemon closes their channel.
    fn come_and_go(&mut self) {
        self.drain();
        let visitor = RESIDENTS + self.dice.below(VISITORS);
        let Some(of) = self.clients.get_mut(visitor) else { return };
        let channel = of.channel;
        (of.owned, of.sealed, of.attached) = (Vec::new(), Vec::new(), Vec::new());
        self.shell.send(Event::ProcessEnded { channel });
        self.drain();
        self.open(visitor);
        self.drain();
        if self.dice.below(16) == 0 {
            let Some(of) = self.clients.get(visitor) else { return };
            self.shell.silent.insert(of.channel);
        }
    }

    fn query(&mut self, client: usize) {
        let Some(of) = self.clients.get(client) else { return };
        let peer = Peer { pid: of.pid, uid: UID };
        let (session, tenant) = (of.session, of.tenant);
        let some = (!of.owned.is_empty()).then(|| of.owned[self.dice.below(of.owned.len())]);
        let item = self.library[self.dice.below(LIBRARY)];
        let chance = self.dice.below(28);
        let (broker, meter) = (&self.shell.broker, &mut self.shell.meter);
        match chance {
            0..20 => {
                let target = Target::Id(some.unwrap_or(item));
                meter.query(Kind::Describe, || broker.describe(session, peer, &target));
            }
            20..22 => meter.query(Kind::ListVisible, || broker.list_visible(session, peer, "", some, 20)),
            22..24 => {
                let prefix = format!("tensor-{}", self.last / 2);
                meter.query(Kind::ListPrefix, || broker.list_visible(session, peer, &prefix, None, 20));
            }
            24..26 => {
                let target = Target::Name(format!("{}/model-{}", tenant_name(0), self.last % 64));
                meter.query(Kind::Show, || broker.show(&target));
            }
            26 => {
                let name = tenant_name(tenant);
                meter.query(Kind::ListAllocations, || broker.list_allocations(Some(&name), some, 20));
            }
            _ => {
                let name = tenant_name(tenant);
                meter.query(Kind::Quota, || broker.quota(&name, None, Tier::Device));
                meter.query(Kind::ListSessions, || broker.list_sessions(Some(&name), None, 20));
            }
        }
    }

    fn operate(&mut self) {
        let percent = u8::try_from(50 + self.round % 50).expect("below 100");
        let request = OperatorRequest::SetQuota {
            tenant: tenant_name(self.dice.below(TENANTS)),
            device: DeviceSelector::All,
            tier: Tier::Device,
            guarantee: None,
            limit: Some(Quantity::Percent(percent)),
        };
        let (call, key) = self.next_call();
        self.asked.insert(call, (0, Asked::Other));
        self.shell.send(Event::Operator { call, uid: 0, key, request });
    }

    fn open(&mut self, at: usize) {
        self.last += 1;
        let Some(client) = self.clients.get_mut(at) else { return };
        client.channel = ChannelId(self.last);
        client.pid = u32::try_from(self.last % 4_000_000).expect("below four million");
        let hello = Hello {
            tenant: tenant_name(client.tenant),
            pid: client.pid,
            uid: UID,
            client_name: "python3 train.py".to_owned(),
            devices: None,
            unmapped_sessions: Vec::new(),
            pins: false,
            managed_orders: false,
            pressure: false,
        };
        self.shell.send(Event::Hello { channel: client.channel, hello });
    }

    fn fill_library(&mut self) {
        for number in 0..LIBRARY {
            let spec = AllocationSpec {
                size: Bytes::mib(8),
                device: None,
                kind: AllocationKind::Movable,
                lifetime: Lifetime::Persistent,
                name: Some(format!("model-{number}")),
                readers: vec!["*".to_owned()],
                part_size: Some(Bytes::mib(2)),
                replace: false,
                uninitialized: false,
                unpinned: false,
                discardable: false,
            };
            self.ask(0, Asked::Library, ClientRequest::allocate(vec![spec]));
            self.drain();
            let id = *self.library.last().expect("it was allocated");
            self.ask(0, Asked::Other, ClientRequest::Seal(id));
            self.drain();
        }
    }

    fn fill(&mut self) {
        let mut client = 0;
        while self.live() < self.target {
            let count = (self.target - self.live()).min(64);
            self.allocate(client, count);
            self.drain();
            client = (client + 1) % RESIDENTS;
        }
    }

    fn ask(&mut self, client: usize, asked: Asked, request: ClientRequest) {
        let (call, key) = self.next_call();
        self.asked.insert(call, (client, asked));
        let Some(of) = self.clients.get(client) else { return };
        let peer = Peer { pid: of.pid, uid: UID };
        self.shell.send(Event::Client { call, session: of.session, peer, key, request });
    }

    /// A number for the call, and a request id as the SDK gives one to each mutation.
    fn next_call(&mut self) -> (CallId, Option<RequestKey>) {
        self.last += 1;
        let id = (u128::from(self.dice.next()) << 64 | u128::from(self.dice.next())).to_be_bytes();
        (CallId(self.last), Some(RequestKey { id, fingerprint: id }))
    }

    fn drain(&mut self) {
        self.shell.drain();
        for (channel, session) in std::mem::take(&mut self.shell.welcomes) {
            let of = self.clients.iter_mut().find(|client| client.channel == channel);
            of.expect("it said hello").session = session;
        }
        let mut replies = std::mem::take(&mut self.shell.replies);
        for (call, outcome) in replies.drain(..) {
            let (client, asked) = self.asked.remove(&call).expect("it was asked, and is answered once");
            let of = self.clients.get_mut(client).expect("there");
            match (asked, outcome) {
                (Asked::Allocate, Ok(Reply::Allocated(views))) => {
                    of.owned.extend(views.iter().map(|view| view.id))
                }
                (Asked::Library, Ok(Reply::Allocated(views))) => {
                    self.library.extend(views.iter().map(|view| view.id))
                }
                (Asked::Seal, Ok(Reply::Sealed(view))) => of.sealed.push(view.id),
                (Asked::Other, Ok(_)) => {}
                // A visitor that answers nothing is refused.
                (_, Err(_)) if client >= RESIDENTS => {}
                (asked, outcome) => panic!("{asked:?} came to {outcome:?}"),
            }
        }
        self.shell.replies = replies;
    }
}

fn tenant_name(tenant: usize) -> String {
    format!("team-{tenant}")
}
