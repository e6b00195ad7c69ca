//! Measures how much memory one user can make the daemon hold. `docs/benchmarks/hostile/README.md` has the figures, and
//! those from before there were bounds.
//!
//! ```text
//! VRAMD_HOSTILE_OUT=hostile.json cargo test -p vramd-tests --test e2e -- hostile::memory --nocapture
//! ```

use std::{
    env, fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use vramd_proto::{
    channel::FRAME_BYTES_MAX,
    v1::{FreeBatchRequest, Hello, client_frame},
};
use vramd_tests::{
    Config, Daemon, MIB, RawChannel, RawSession,
    hostile::{Hostile, message_head, unfinished_headers},
    proc::resident_bytes,
    session::hello,
    wait::until,
};

/// Maximum bytes that the daemon may hold more for one user.
const BUDGET: u64 = 64 * MIB;
/// The case is at its peak once the daemon has not grown for this long.
const SETTLED: Duration = Duration::from_secs(2);
const SAMPLE: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(60);

const ALLOCATE: &str = "vramd.v1.MemoryService/AllocateBatch";
const WATCH: &str = "grpc.health.v1.Health/Watch";
const REFLECT: &str = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const STREAMS: usize = 256;
const MESSAGE: usize = 4 << 20;
/// The window of a client that reads.
const READS: u32 = 1 << 20;

/// Connections of a case, kept open.
#[derive(Default)]
struct Open {
    calls: Hostile,
    channels: Vec<RawChannel>,
    sessions: Vec<RawSession>,
}

type Case = fn(&Path) -> Open;

const CASES: [(&str, Case); 8] = [
    ("256 streams that stall just short of 4 MiB", stalled_messages),
    ("65,536 health watches on 256 connections", health_watches),
    ("4 batches of two million empty items", empty_items),
    ("1,024 connections with unfinished headers", unfinished),
    ("4,096 answers of reflection that are not read", unread_answers),
    ("1,024 silent connections and 512 silent greetings", silent),
    ("1,000 sessions with long hellos", sessions),
    ("256 remembered batches of 4,096 refused items", remembered),
];

#[test]
fn one_user_cannot_fill_the_daemons_memory() {
    let mut figures = serde_json::Map::new();
    for (name, case) in CASES {
        let more = measure(case);
        eprintln!("{name}: {} KiB more", more >> 10);
        figures.insert(name.to_owned(), json!(more));
    }
    let most = figures.values().filter_map(serde_json::Value::as_u64).max();
    if let Some(path) = env::var_os("VRAMD_HOSTILE_OUT") {
        let out = json!({ "budget_bytes": BUDGET, "more_bytes": figures });
        fs::write(path, format!("{out:#}\n")).expect("the figures can be written");
    }
    assert!(most.is_some_and(|most| most <= BUDGET), "{figures:#?}");
}

/// Returns by how many bytes the daemon grows at most.
fn measure(case: Case) -> u64 {
    let daemon = Daemon::start(&Config::default().log_level("info"));
    drop(daemon.open());
    daemon.state();
    let before = resident_bytes(daemon.pid());
    let sockets = daemon.sockets();
    let (pid, mut peak, mut grown) = (daemon.pid(), before, Instant::now());
    let end = grown + LONGEST;
    thread::scope(|scope| {
        let running = scope.spawn(|| case(&sockets));
        while (!running.is_finished() || grown.elapsed() < SETTLED) && Instant::now() < end {
            let now = resident_bytes(pid);
            // A page more or less is no growth.
            if now > peak + MIB / 4 {
                (peak, grown) = (now, Instant::now());
            }
            thread::sleep(SAMPLE);
        }
        let open = running.join().expect("the case runs to its end");
        // Operators are served meanwhile.
        daemon.state();
        drop(open);
    });
    // The daemon notices a moment later that the calls of the hostile client are over.
    until("the user is admitted again", || RawSession::open_with(&daemon.sockets(), hello()).is_ok());
    peak - before
}

fn stalled_messages(sockets: &Path) -> Open {
    let mut open = Open::default();
    open.calls.connect(&sockets.join("vramd.sock"), 1, READS).unwrap();
    let message = [&message_head(MESSAGE)[..], &vec![0; MESSAGE - 1]].concat().into();
    open.calls.call(STREAMS, ALLOCATE, &message, false);
    open
}

fn health_watches(sockets: &Path) -> Open {
    let mut open = Open::default();
    let _ = open.calls.connect(&sockets.join("vramd.sock"), 256, READS);
    open.calls.call(STREAMS, WATCH, &message_head(0).to_vec().into(), true);
    open
}

fn empty_items(sockets: &Path) -> Open {
    let mut open = Open::default();
    open.calls.connect(&sockets.join("vramd.sock"), 4, READS).unwrap();
    // The field `items`, of length 0.
    let items = [0x1a, 0].repeat(MESSAGE / 2);
    let message = [&message_head(items.len())[..], &items].concat().into();
    open.calls.call(1, ALLOCATE, &message, true);
    open.calls.heads();
    open
}

fn unfinished(sockets: &Path) -> Open {
    let mut open = Open::default();
    open.calls.send(&sockets.join("vramd.sock"), 1024, &unfinished_headers(16_000)).unwrap();
    open
}

fn unread_answers(sockets: &Path) -> Open {
    let mut open = Open::default();
    let _ = open.calls.connect(&sockets.join("vramd.sock"), 16, 0);
    let symbol = b"vramd.v1.MemoryService";
    // The field `file_containing_symbol`.
    let question = [&[0x22, u8::try_from(symbol.len()).unwrap()][..], symbol].concat();
    let question = [&message_head(question.len())[..], &question].concat();
    open.calls.call(STREAMS, REFLECT, &question.repeat(8).into(), false);
    open
}

fn silent(sockets: &Path) -> Open {
    let mut open = Open::default();
    open.calls.send(&sockets.join("vramd.sock"), 1024, &[]).unwrap();
    open.channels = (0..512).map_while(|_| RawChannel::connect(sockets).ok()).collect();
    open
}

fn sessions(sockets: &Path) -> Open {
    let mut open = Open::default();
    // Ids of one byte, as many as a frame takes.
    let unmapped_session_ids = vec![1; FRAME_BYTES_MAX - 1024];
    for _ in 0..1000 {
        let channel = RawChannel::connect(sockets).unwrap();
        let hello = Hello { unmapped_session_ids: unmapped_session_ids.clone(), ..hello() };
        // A refused connection is closed at once.
        let _ = channel.send(client_frame::Frame::Hello(hello));
        channel.receive(LONGEST);
        open.channels.push(channel);
    }
    open
}

fn remembered(sockets: &Path) -> Open {
    let mut open = Open::default();
    open.sessions = (0..8).map(|_| RawSession::open(sockets)).collect();
    for id in 0..32 {
        for session in &open.sessions {
            let request = FreeBatchRequest {
                session_id: session.id(),
                request_id: vec![id; 16],
                allocation_ids: (1..=4096).collect(),
            };
            let answer = session.memory.free_batch(request).ok();
            assert!(answer.results.iter().all(|result| result.error.is_some()), "no such allocation exists");
        }
    }
    open
}
