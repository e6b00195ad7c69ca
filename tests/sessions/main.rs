//! Sessions in a row, thousands of them: the daemon does not grow, and neither does a process that opens them all.
//!
//! Each allocates, maps and writes, and then ends in one of five ways. After a warm-up the descriptors, the memory and
//! the charged bytes are looked at again and again. A thousand run unless told:
//!
//! ```text
//! VRAMD_SESSIONS=10000 VRAMD_SESSIONS_OUT=sessions.json cargo test -p vramd-tests --test sessions -- --nocapture
//! ```

mod figures;

use std::{
    env, fs, process,
    time::{Duration, Instant},
};

use figures::{Figures, Growth};
use serde_json::json;
use vramd_client::{AllocationRequest, Bytes, Client};
use vramd_proto::v1::ListSessionsRequest;
use vramd_tests::{Daemon, MIB, MIB_2, Probe, content, digest, wait::until};

const SESSIONS: u64 = 1000;
/// Sessions after which both processes have created what they keep: a fifth of all, and at most this many.
const WARM_UP_MAX: u64 = 1000;
/// How often the figures are sampled after the warm-up.
const LOOKS: u64 = 20;

/// Pages that an allocator caches at its own will. A session that leaks 200 bytes is found after 10,000.
const MEMORY_TOLERANCE_BYTES: u64 = 2 << 20;

/// How long descriptors may take to be closed after the last session.
const SETTLES_IN: Duration = Duration::from_secs(10);

/// How a session ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// It frees everything.
    Frees,
    /// It drops everything, some of it sealed, and does not wait for the releases.
    Seals,
    Drops,
    /// By SIGKILL, after it has mapped and written.
    Dies,
    /// By SIGKILL, with unread packets.
    DiesUnread,
}

/// One session of this many is a process, which costs more than a hundred sessions.
const PROCESS_EVERY: u64 = 25;

#[test]
fn sessions_in_a_row_leave_nothing_behind() {
    let sessions = env::var("VRAMD_SESSIONS").map_or(SESSIONS, |count| count.parse().expect("a number"));
    let daemon = Daemon::new();
    let warm_up = WARM_UP_MAX.min(sessions / 5);
    let started = Instant::now();
    (0..warm_up).for_each(|number| live(&daemon, number));
    let mut samples = vec![at_rest(&daemon, 0)];
    let step = sessions.div_ceil(LOOKS);
    for first in (0..sessions).step_by(usize::try_from(step).expect("steps are short")) {
        let end = sessions.min(first + step);
        (first..end).for_each(|number| live(&daemon, number));
        samples.push(at_rest(&daemon, end));
    }
    let seconds = started.elapsed().as_secs_f64();
    // A thread that ends closes its descriptors a moment later. A leak stays, however often the figures are sampled.
    let patience = Instant::now() + SETTLES_IN;
    while Growth::of(&samples).has_descriptors() && Instant::now() < patience {
        samples.push(at_rest(&daemon, sessions));
    }
    let growth = Growth::of(&samples);
    eprintln!("{sessions} sessions after {warm_up} in {seconds:.0} s: {growth}");
    if let Some(path) = env::var_os("VRAMD_SESSIONS_OUT") {
        let out = json!({
            "sessions": sessions, "warm_up": warm_up, "seconds": seconds,
            "growth": growth.json(), "samples": samples.iter().map(Figures::json).collect::<Vec<_>>(),
            "memory_tolerance_bytes": MEMORY_TOLERANCE_BYTES,
        });
        fs::write(path, format!("{out:#}\n")).expect("the figures can be written");
    }
    growth.check(MEMORY_TOLERANCE_BYTES).unwrap_or_else(|why| panic!("{why}\n{samples:#?}"));
}

fn live(daemon: &Daemon, number: u64) {
    let ending = match number % 5 {
        _ if number.is_multiple_of(2 * PROCESS_EVERY) => Ending::Dies,
        _ if number.is_multiple_of(PROCESS_EVERY) => Ending::DiesUnread,
        0 | 1 => Ending::Frees,
        2 | 3 => Ending::Seals,
        _ => Ending::Drops,
    };
    match ending {
        Ending::Dies => {
            let mut probe = open(daemon);
            let id = probe.ask(&format!("allocate {MIB_2}"))["allocation"].clone();
            probe.ask(&format!("write {id} {number}"));
            probe.kill();
        }
        Ending::DiesUnread => {
            let mut probe = open(daemon);
            probe.ask(&format!("reserve {MIB_2}"));
            probe.kill();
        }
        Ending::Frees | Ending::Seals | Ending::Drops => in_process(daemon, number, ending),
    }
}

fn in_process(daemon: &Daemon, number: u64, ending: Ending) {
    let client = Client::builder().socket_dir(daemon.sockets()).connect().expect("a session opens");
    let mut open = client.allocate(AllocationRequest::new(Bytes::new(MIB))).expect("there is room");
    let written = content(4096, number);
    open.as_mut_slice().expect("it is mapped")[..written.len()].copy_from_slice(&written);
    match ending {
        Ending::Seals => {
            let sealed = open.seal().expect("it can be sealed");
            assert_eq!(digest(&sealed.as_slice().expect("it is mapped")[..written.len()]), digest(&written));
        }
        Ending::Drops => drop(open),
        _ => assert_eq!(open.free().expect("it is ours").still_charged.get(), 0),
    }
}

fn open(daemon: &Daemon) -> Probe {
    let mut probe = daemon.probe();
    probe.ask("open");
    probe
}

/// The figures once everything that has ended is gone.
fn at_rest(daemon: &Daemon, sessions: u64) -> Figures {
    // The next hello of this process reports that the last session is unmapped, if its own report came too late.
    until("every session is gone", || {
        drop(Client::builder().socket_dir(daemon.sockets()).connect().expect("a session opens"));
        let request = ListSessionsRequest { page_size: Some(1000), ..Default::default() };
        daemon.admin.list_sessions(request).ok().sessions.len() <= 1
    });
    daemon.drains();
    Figures::take(daemon.pid(), process::id(), &daemon.state(), sessions)
}
