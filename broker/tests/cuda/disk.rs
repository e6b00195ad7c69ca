//! A disk tier beside a device, whose bytes go through buffers of host memory.

use std::{fs, io::Write as _, path::PathBuf};

use fake_cuda::Fake;
use vramd_proto::v1::{MoveOutcome, PartMove, SealRequest, Tier};
use vramd_tests::{RawSession, content, node_state::NodeState, spec, wait::until};
use vramd_types::Reason;

use crate::{
    Cgroup, Daemon, configured,
    host::{evicting, pins_and_finds, unmap_until_answered},
};

/// A part.
const PART: u64 = 4 << 20;

/// With a disk of four parts.
fn with_disk(place: &tempfile::TempDir, fake: &Fake) -> PathBuf {
    let directory = place.path().join("disk");
    fs::create_dir(&directory).unwrap();
    let config = configured(place, fake, "0");
    let mut file = fs::File::options().append(true).open(&config).unwrap();
    write!(file, "[disk]\ndirectory = {directory:?}\nsize = \"16MiB\"\n").unwrap();
    config
}

fn evicted(daemon: &Daemon, session: &mut RawSession, allocation: u64) -> PartMove {
    let answer = evicting(daemon, allocation, 0, Tier::Disk);
    unmap_until_answered(session, || answer.is_answered());
    answer.ok().parts[0].clone()
}

/// The host tier is not charged to the cgroup, but the buffers are. No process is killed: copies that need a
/// buffer are refused, lose nothing, and are done once there is room.
#[test]
fn copies_are_refused_if_the_cgroup_has_no_room_for_buffers() {
    let fake = Fake::new();
    let place = tempfile::tempdir().unwrap();
    let cgroup = Cgroup::new(&place, 512 << 20, 511 << 20);
    let command = cgroup.command(&with_disk(&place, &fake));
    let daemon = Daemon::start_by(command, place);
    let why = "out of host memory: the memory limit of the daemon's cgroup leaves 1 MiB";
    let unmeasured = format!("device 0: {why}; disk: {why}");
    assert!(daemon.log().contains(&unmeasured), "{}", daemon.log());

    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(spec(PART)).allocation_id;
    let bytes = content(PART, 4);
    session.write(id, &bytes);
    let told = evicted(&daemon, &mut session, id);
    assert_eq!((told.outcome(), told.problem.as_str()), (MoveOutcome::Failed, why));
    pins_and_finds(&mut session, id, &bytes);

    let request = SealRequest { session_id: session.id(), request_id: Vec::new(), allocation_id: id };
    let sealing = session.memory.seal(request);
    let revoke = session.receive_revoke();
    session.unmap_parts(revoke.parts);
    sealing.refused().is(Reason::DriverFailed);
    session.map_all(id);
    pins_and_finds(&mut session, id, &bytes);

    cgroup.set_usage(0);
    let told = evicted(&daemon, &mut session, id);
    assert_eq!(told.outcome(), MoveOutcome::Moved, "{told:?}");
    pins_and_finds(&mut session, id, &bytes);
    session.free(id);
    until("nothing is charged", || NodeState::read(&daemon.admin()).is_empty());
}
