//! A daemon that stops in the middle of a copy to disk: it leaves no file, and ends in time even if the disk hangs.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use vramd_proto::v1::{AllocationSpec, MovePartsResponse, MoveState, Tier};
use vramd_tests::{
    Daemon, Home, MIB, Pending, RawSession, SyscallFilter, config::Effect, proc::is_in_call, session::spec,
    wait::until,
};

use crate::moves::{disk::tier::files, operators::list::listed, start_move, tiers, unmap_revoked};

/// How long a daemon waits for its driver.
const BOUND: Duration = Duration::from_secs(10);
/// The size of the one part.
const SIZE: u64 = 256 * MIB;

/// A daemon that copies a part to disk, with at least this many bytes in the file.
#[track_caller]
fn leaving(daemon: &Daemon, seen: impl Fn(u64) -> bool) -> (RawSession, Pending<MovePartsResponse>) {
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(AllocationSpec { part_size_bytes: Some(SIZE), ..spec(SIZE) }).allocation_id;
    let evicting = start_move(daemon, id, Tier::Disk);
    unmap_revoked(&mut session, id);
    until("it is copied", || {
        let moves = listed(daemon).moves;
        moves.iter().any(|it| it.state() == MoveState::Copying && it.copied_bytes.is_some_and(&seen))
    });
    assert_eq!(files(daemon.home().path()).len(), 1);
    (session, evicting)
}

fn config() -> vramd_tests::Config {
    tiers("512MiB", "0").disk("512MiB")
}

#[test]
fn a_daemon_stopped_during_a_copy_to_disk_leaves_no_file() {
    for (config, is_begun) in [(config(), true), (config().fault("copy", 1, Effect::Hold), false)] {
        let daemon = Daemon::start(&config);
        let (_session, evicting) = leaving(&daemon, |there| there < SIZE && (there > 0) == is_begun);
        let (status, home) = daemon.stop();
        assert!(status.success(), "{status}");
        assert_eq!(files(home.path()), Vec::<PathBuf>::new());
        // A stop that ran into its bound says so.
        assert!(!home.log().contains("the driver has not ended"), "{}", home.log());
        drop(evicting);
    }
}

/// The kernel never completes the daemon's writes.
#[test]
fn a_stop_waits_for_a_hanging_disk_only_for_its_time_limit() {
    let home = Home::new().with_filter(SyscallFilter::Unanswered(libc::SYS_pwritev2));
    config().disk_engine("threads").write(home.path());
    let daemon = Daemon::start_in(home);
    let (_session, evicting) = leaving(&daemon, |there| there == 0);
    until("its write hangs", || is_in_call(daemon.pid(), libc::SYS_pwritev2));
    let asked = Instant::now();
    let (status, home) = daemon.stop();
    let took = asked.elapsed();
    assert!(status.success() && took >= BOUND, "{status} after {took:?}");
    let says = "the driver has not ended; the next start deletes its files on disk";
    assert!(home.log().contains(says), "{}", home.log());
    drop(evicting);
    assert_eq!(files(home.path()).len(), 1);
    let next = Daemon::start_in(home);
    assert_eq!(files(next.home().path()), Vec::<PathBuf>::new());
}
