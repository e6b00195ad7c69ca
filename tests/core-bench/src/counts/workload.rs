//! The workloads whose instructions are counted. Each is a process of its own under Valgrind.

use std::hint::black_box;

use prost::Message as _;
use vramd_proto::v1;
use vramd_types::Bytes;
use vramd_words::{Access, AtomicU64, Daemon, HEADER_WORDS, Header, SLOT_WORDS, Waiting, Worker};

use crate::{
    counted::regions,
    kind::Kind,
    meter::{Meter, Pace},
    mix::Mix,
    moves, prefetches,
    shell::UUIDS,
};

/// The live allocations of the mix, and its rounds: some to warm up, then those that count.
const LIVE: usize = 10_000;
/// The same with more: a walk over all live allocations would show as a factor of ten.
const LIVE_MANY: usize = 100_000;
const WARM_UP: u32 = 200;
/// Enough for several changes of a quota, which come every 256 rounds.
const ROUNDS: u32 = 1_200;
/// The parts of a planned move's world. A tenth of them fits on the device.
const PARTS: u32 = 50_000;
const MOVES: u64 = 2_000;
/// The parts of a device for requests that begin at once, and those of the session that makes them.
const EMPTY: u32 = 20_000;
const WANTED: u32 = 4_096;
/// The items of an encoded batch.
const ITEMS: u64 = 1_000;
/// How many prefetch requests are queued, from few to many.
const QUEUED: [u32; 3] = [100, 1_000, 10_000];
/// The slots of the word table, and how often each is pinned.
const SLOTS: u32 = 64;
const PINS: u32 = 100;
const MAJOR: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// The mix, one event at a time: the instructions of each kind.
    Kinds,
    /// The same over ten times as many live allocations.
    KindsOverMany,
    /// The mix as the reactor hands it over: the instructions of an event.
    Mixed,
    /// Moves that the core plans while that many pins wait.
    Moves(usize),
    /// Prefetch requests that begin at once.
    Prefetches,
    /// Prefetch requests that are cancelled while that many others are queued.
    Cancelled(u32),
    /// Prefetch requests that begin in their turn while that many others are queued.
    Turns(u32),
    /// The request of a batch, decoded.
    Decode,
    /// The answer to a batch, encoded.
    Encode,
    /// A pin and an unpin of one part, through the words that client and daemon share.
    Pins,
}

/// A count that a workload yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The name of the count.
    pub name: &'static str,
    /// The function in which it is counted.
    pub region: &'static str,
    /// How often it was done.
    pub times: u64,
}

impl Workload {
    /// The workloads whose counts are committed.
    pub const COMMITTED: [Self; 15] = [
        Self::Moves(1_000),
        Self::Moves(32),
        Self::Moves(1),
        Self::Kinds,
        Self::Mixed,
        Self::Turns(QUEUED[2]),
        Self::Cancelled(QUEUED[2]),
        Self::Turns(QUEUED[1]),
        Self::Cancelled(QUEUED[1]),
        Self::Turns(QUEUED[0]),
        Self::Cancelled(QUEUED[0]),
        Self::Prefetches,
        Self::Decode,
        Self::Encode,
        Self::Pins,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Kinds => "kinds of events",
            Self::KindsOverMany => "kinds of events over many",
            Self::Mixed => "an event of the mixed workload",
            Self::Moves(1) => "a planned move, 1 waiting",
            Self::Moves(32) => "a planned move, 32 waiting",
            Self::Moves(_) => "a planned move, 1,000 waiting",
            Self::Prefetches => "a prefetch request",
            Self::Cancelled(100) => "a prefetch request and its end, 100 queued",
            Self::Cancelled(1_000) => "a prefetch request and its end, 1,000 queued",
            Self::Cancelled(_) => "a prefetch request and its end, 10,000 queued",
            Self::Turns(100) => "a prefetch request's turn, 100 queued",
            Self::Turns(1_000) => "a prefetch request's turn, 1,000 queued",
            Self::Turns(_) => "a prefetch request's turn, 10,000 queued",
            Self::Decode => "the request of a batch of 1,000, decoded",
            Self::Encode => "the answer to a batch of 1,000, encoded",
            Self::Pins => "a pin and unpin",
        }
    }

    /// Whether the workload takes too long for every commit. A long count of queued requests repeats what those with
    /// fewer show.
    pub const fn is_long(self) -> bool {
        matches!(self, Self::KindsOverMany | Self::Cancelled(10_000) | Self::Turns(10_000))
    }

    pub fn find(name: &str) -> Option<Self> {
        let all = Self::COMMITTED.into_iter().chain([Self::KindsOverMany]);
        all.into_iter().find(|workload| workload.name() == name)
    }

    /// The same work with more and more requests queued: each workload, and how many there are.
    pub fn queued() -> [[(Self, u32); 3]; 2] {
        [Self::Cancelled, Self::Turns].map(|work| QUEUED.map(|queued| (work(queued), queued)))
    }

    /// Runs the workload, and says what was done in which region.
    pub fn run(self) -> Vec<Unit> {
        let times = match self {
            Self::Kinds => return kinds(LIVE),
            Self::KindsOverMany => return kinds(LIVE_MANY),
            Self::Mixed => mixed(),
            Self::Moves(waiting) => moves::count(PARTS, waiting, MOVES),
            Self::Prefetches => prefetches::count_at_once(EMPTY, WANTED),
            Self::Cancelled(queued) => prefetches::count_cancelled(queued),
            Self::Turns(queued) => prefetches::count_turns(queued),
            Self::Decode => decode(),
            Self::Encode => encode(),
            Self::Pins => pins(),
        };
        vec![Unit { name: self.name(), region: "whole", times }]
    }
}

/// A mix that is warm, and counts from now on.
fn counting_mix(pace: Pace, live: usize) -> Mix {
    let mut mix = Mix::new(pace, live);
    for _ in 0..WARM_UP {
        mix.round();
    }
    mix.shell.meter = Meter { counting: true, ..Meter::new(pace) };
    for _ in 0..ROUNDS {
        mix.round();
    }
    mix
}

fn kinds(live: usize) -> Vec<Unit> {
    let mix = counting_mix(Pace::Single, live);
    let seen = Kind::ALL.iter().zip(&mix.shell.meter.samples);
    // The rest is not one kind, and mostly nothing.
    let seen = seen.filter(|(kind, samples)| **kind != Kind::Other && !samples.is_empty());
    let times = |samples: &Vec<u32>| u64::try_from(samples.len()).expect("64 bits");
    seen.map(|(kind, samples)| Unit { name: kind.name(), region: kind.region(), times: times(samples) })
        .collect()
}

fn mixed() -> u64 {
    counting_mix(Pace::Untimed, LIVE).shell.meter.events
}

fn decode() -> u64 {
    let request = v1::AllocateBatchRequest {
        session_id: 1 << 40,
        request_id: vec![7; 16],
        items: (0..ITEMS).map(item).collect(),
        wait_ms: 0,
    };
    let bytes = request.encode_to_vec();
    let decoded = regions::whole(|| v1::AllocateBatchRequest::decode(black_box(&*bytes)));
    assert_eq!(decoded.expect("it was encoded here"), request);
    1
}

fn item(number: u64) -> v1::AllocationSpec {
    v1::AllocationSpec {
        size_bytes: Bytes::mib(2).get(),
        device: Some(UUIDS[0].to_owned()),
        kind: v1::AllocationKind::Movable.into(),
        lifetime: v1::Lifetime::Session.into(),
        name: Some(format!("tensor-{number}")),
        ..Default::default()
    }
}

fn encode() -> u64 {
    let answer = v1::AllocateBatchResponse { allocations: (0..ITEMS).map(allocation).collect() };
    let bytes = regions::whole(|| black_box(&answer).encode_to_vec());
    assert_eq!(bytes.len(), answer.encoded_len());
    1
}

fn allocation(number: u64) -> v1::Allocation {
    let size = Bytes::mib(2).get();
    v1::Allocation {
        allocation_id: (1 << 40) + number,
        name: format!("team-a/tensor-{number}"),
        tenant: "team-a".to_owned(),
        device: UUIDS[0].to_owned(),
        kind: v1::AllocationKind::Movable.into(),
        lifetime: v1::Lifetime::Session.into(),
        state: v1::AllocationState::Open.into(),
        size_bytes: size,
        charged_bytes: size,
        resident_bytes: size,
        owner_session_id: 1 << 40,
        parts: vec![v1::Part { size_bytes: size, tier: v1::Tier::Device.into(), ..Default::default() }],
        mapper_count: 1,
        ..Default::default()
    }
}

/// Pins each part, records its use as the SDK does, and unpins it.
fn pins() -> u64 {
    let words = usize::try_from(SLOTS).expect("64 bits") * SLOT_WORDS + HEADER_WORDS;
    let words: Vec<_> = (0..words).map(|_| AtomicU64::new(0)).collect();
    let header = Header { major: MAJOR, minor: 0, features: 0, slots: SLOTS };
    _ = Daemon::create(&*words, header).expect("the words have room");
    let (client, worker): (_, Worker<_>) = vramd_words::open(&*words, MAJOR).expect("it was laid out here");
    for slot in 0..SLOTS {
        let slot = worker.slot(slot).expect("a slot of the table");
        slot.set_mapped(Waiting::default()).expect("it is absent");
    }
    regions::whole(|| {
        for tick in 0..PINS {
            for slot in 0..SLOTS {
                let slot = client.slot(black_box(slot)).expect("a slot of the table");
                slot.pin(black_box(Access::Write)).expect("it is mapped");
                slot.record_use_with(|| black_box(tick));
                _ = black_box(slot.unpin().expect("it is pinned"));
            }
        }
    });
    u64::from(PINS * SLOTS)
}
