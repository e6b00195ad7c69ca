//! Parts that leave without a copy because no word says that they were written, and clients that write all the same.

use vramd_proto::v1::{Tier, move_event::Change, watch_response::Event};
use vramd_tests::{Config, Daemon, MIB_2, RawSession, Watching, content, digest};

use crate::moves::{assert_nothing_left, evict, fetch_by_pin, open_and_write, tiers, until_charged};

/// A part that came back and was not written.
fn with_clean_backing(config: &Config) -> (Daemon, RawSession, u64) {
    let daemon = Daemon::start(config);
    let (mut session, id) = open_and_write(&daemon, 1);
    leaves_and_comes_back(&daemon, &mut session, id);
    (daemon, session, id)
}

fn leaves_and_comes_back(daemon: &Daemon, session: &mut RawSession, id: u64) {
    evict(daemon, session, id);
    until_charged(daemon, 0, 2);
    fetch_by_pin(session, id, 1);
}

fn warnings(daemon: &Daemon) -> usize {
    daemon.log().lines().filter(|line| line.contains("written without a pin for writing")).count()
}

#[test]
fn a_write_without_a_pin_is_lost_unless_backing_is_checked() {
    for checked in [false, true] {
        let config = tiers("8MiB", "8MiB").memory(&format!("check_shadows = {checked}"));
        let (daemon, mut session, id) = with_clean_backing(&config);
        let mut watching = Watching::all(&daemon.admin);
        let (before, after) = (content(MIB_2, id), content(MIB_2, 77));
        // The word does not say that the part was written.
        session.write(id, &after);
        leaves_and_comes_back(&daemon, &mut session, id);
        assert_eq!(session.digest(id, MIB_2), digest(if checked { &after } else { &before }));
        assert_eq!(warnings(&daemon), usize::from(checked), "{}", daemon.log());
        let left = |event: &Event| matches!(event, Event::Move(it) if (it.change(), it.tier()) == (Change::Moved, Tier::Host));
        let told = watching.until(left).into_iter().filter_map(|told| told.event);
        let differs =
            |event: &Event| matches!(event, Event::Move(it) if it.change() == Change::ShadowDiffers);
        assert_eq!(told.filter(differs).count(), usize::from(checked));
        session.free(id);
        assert_nothing_left(&daemon);
    }
}
