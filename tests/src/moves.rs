//! Past migrations, by the daemon's word.

use vramd_proto::v1::{EndedMove, ListMovesRequest, Tier, move_event::Change};

use crate::Daemon;

/// Bytes written to disk so far, and read from it, by the daemon's metrics.
#[track_caller]
pub fn disk_io_bytes(daemon: &Daemon) -> [u64; 2] {
    let scrape = daemon.metrics();
    ["\"to_disk\"", "\"from_disk\""].map(|way| {
        let is_meant = |line: &&str| line.starts_with("vramd_link_io_bytes_total{") && line.contains(way);
        let values =
            scrape.lines().filter(is_meant).filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        values.sum::<u64>()
    })
}

/// Whether a part of that session has gone to this tier and come back to its device, among the recent migrations.
#[track_caller]
pub fn has_returned(daemon: &Daemon, session: u64, from: Tier) -> bool {
    let owned: Vec<_> = daemon.state().allocations;
    let is_owned = |id: u64| owned.iter().any(|it| (it.allocation_id, it.owner_session_id) == (id, session));
    let mut ended = daemon.admin.list_moves(ListMovesRequest::default()).ok().ended;
    ended.retain(|it| {
        it.outcome() == Change::Moved && it.part.is_some_and(|part| is_owned(part.allocation_id))
    });
    let began = |it: &EndedMove| it.began_at.map(|at| (at.seconds, at.nanos));
    let has_come = |out: &EndedMove| {
        let same = ended.iter().filter(|it| it.part == out.part && it.tier() == Tier::Device);
        same.map(began).any(|came| came > began(out))
    };
    ended.iter().any(|it| it.tier() == from && has_come(it))
}
