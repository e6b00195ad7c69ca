//! The cost of planning prefetch requests: of one that begins at once, and of one that finds many others queued.
//!
//! Each request is for one part that was written and lies in host memory. As in `moves`, copies and answers take no
//! time.

use std::{collections::VecDeque, time::Duration};

use broker_core::{CallId, ClientFrame, Event, PartRef, PrefetchSpec, PrefetchState};
use vramd_types::{AllocationId, Bytes, PartIndex};

use crate::{
    client::{self, Client},
    dice::Dice,
    meter::Pace,
    moves::{PART, bytes, config, spec},
    shell::Shell,
};

/// How many requests, or turns, are counted.
const COUNTED: u32 = 500;
/// The tenants whose requests are queued. Each has one session.
const TENANTS: u32 = 4;
/// The parts that the device has room for while requests are queued.
const ROOM: u32 = TENANTS;
/// The rest of the device is full of memory in use. Its parts are large, so that few stand in the order of victims.
const FILL_PART: Bytes = Bytes::gib(1);
/// The priorities of queued requests, from zero on.
const PRIORITIES: usize = 4;
/// Half of the queued requests have a deadline, which the link can meet.
const DEADLINE: Duration = Duration::from_secs(60 * 60);

/// Counts requests that begin at once, of a session with `wanted` parts. Returns how many there were.
pub fn count_at_once(parts: u32, wanted: u32) -> u64 {
    let mut requests = Requests::new(Shell::with(config(parts, parts), Pace::Untimed), 1, wanted);
    for _ in 0..COUNTED {
        requests.ask(Hurry::None);
        requests.shell.meter.counting = true;
        requests.shell.step();
        requests.shell.meter.counting = false;
        requests.shell.drain();
    }
    u64::from(COUNTED)
}

/// Counts requests that are cancelled while they and `queued` others are queued. Returns how many there were.
pub fn count_cancelled(queued: u32) -> u64 {
    let mut requests = Requests::queued(queued);
    for _ in 0..COUNTED {
        let asked = requests.ask(Hurry::Any);
        requests.count();
        requests.cancel(asked);
        requests.count();
    }
    assert_eq!(requests.arrivals(), [], "no request has begun");
    u64::from(COUNTED)
}

/// Counts turns while `queued` requests are queued: one more is made, one that has arrived is cancelled, its part
/// leaves, and the next request begins and arrives. Returns how many there were.
pub fn count_turns(queued: u32) -> u64 {
    let mut requests = Requests::queued(queued);
    for _ in 0..COUNTED {
        requests.ask(Hurry::Any);
        requests.count();
        let oldest = requests.on_device.pop_front().expect("requests have arrived");
        requests.cancel(oldest);
        requests.count();
        let arrived = requests.arrivals();
        assert_eq!(arrived.len(), 1, "the next request has arrived");
        requests.on_device.extend(arrived);
    }
    u64::from(COUNTED)
}

/// The priority and the deadline of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hurry {
    None,
    /// Any priority, and a deadline for every second one.
    Any,
}

/// A request: the index of its client, and its number.
type Asked = (usize, u64);

/// Requests of several tenants in turn. No part is asked for twice.
struct Requests {
    shell: Shell,
    dice: Dice,
    clients: Vec<(Client, AllocationId)>,
    asked: u32,
    /// Requests that have arrived, the oldest first. Each keeps its part on the device.
    on_device: VecDeque<Asked>,
}

impl Requests {
    /// Sessions that have `wanted` parts each, all of them in host memory.
    fn new(mut shell: Shell, tenants: u32, wanted: u32) -> Self {
        let open = |tenant| {
            let client = Client::open(&mut shell, tenant);
            let allocation = client.allocate(&mut shell, CallId(0), spec(wanted, true));
            client::evict(&mut shell, CallId(1), allocation);
            shell.replies.clear();
            (client, allocation)
        };
        let clients = (0..tenants).map(open).collect();
        Self { shell, dice: Dice::new(7), clients, asked: 0, on_device: VecDeque::new() }
    }

    /// A full device, and so many requests that wait for room.
    fn queued(queued: u32) -> Self {
        let wanted = (ROOM + queued + COUNTED).div_ceil(TENANTS);
        let filled = bytes(TENANTS * wanted).get().div_ceil(FILL_PART.get()) * FILL_PART.get();
        let filled_parts = u32::try_from(filled / PART.get()).expect("few");
        let shell = Shell::with(config(filled_parts + ROOM, filled_parts + ROOM), Pace::Untimed);
        let mut requests = Self::new(shell, TENANTS, wanted);
        let other = Client::open(&mut requests.shell, TENANTS);
        other.allocate(&mut requests.shell, CallId(2), client::spec(Bytes::new(filled), FILL_PART));
        for _ in 0..ROOM + queued {
            requests.ask(Hurry::Any);
            requests.shell.drain();
        }
        requests.on_device = requests.arrivals().into();
        assert_eq!(requests.on_device.len(), usize::try_from(ROOM).expect("few"), "the rest is queued");
        requests
    }

    /// Makes a request for the next part of the next tenant.
    fn ask(&mut self, hurry: Hurry) -> Asked {
        let tenants = u32::try_from(self.clients.len()).expect("few");
        let (at, part) = (self.asked % tenants, self.asked / tenants);
        let (at, number) = (usize::try_from(at).expect("few"), u64::from(part) + 1);
        self.asked += 1;
        let (client, allocation) = self.clients[at];
        let (within, priority) = match hurry {
            Hurry::None => (None, 0),
            Hurry::Any => {
                let within = (self.dice.below(2) == 0).then_some(DEADLINE);
                (within, u8::try_from(self.dice.below(PRIORITIES)).expect("few"))
            }
        };
        let parts = vec![PartRef { allocation, part: PartIndex(part) }];
        let spec = PrefetchSpec { parts, whole: true, within, priority };
        self.send(client, ClientFrame::Prefetch { number, spec });
        (at, number)
    }

    fn cancel(&mut self, (at, number): Asked) {
        self.send(self.clients[at].0, ClientFrame::PrefetchCancelled { number });
    }

    fn send(&mut self, client: Client, frame: ClientFrame) {
        self.shell.send(Event::Frame { channel: client.channel, frame });
    }

    /// Counts all that the core does until nothing is left to do.
    fn count(&mut self) {
        self.shell.meter.counting = true;
        self.shell.drain();
        self.shell.meter.counting = false;
    }

    /// Takes the requests that have arrived since the last call.
    fn arrivals(&mut self) -> Vec<Asked> {
        let told = std::mem::take(&mut self.shell.prefetches).into_iter();
        let ready = told.filter(|(.., state)| matches!(state, PrefetchState::Ready { .. }));
        ready.map(|(channel, number, _)| (self.client_of(channel), number)).collect()
    }

    fn client_of(&self, channel: broker_core::ChannelId) -> usize {
        let found = self.clients.iter().position(|(client, _)| client.channel == channel);
        found.expect("only these ask")
    }
}
