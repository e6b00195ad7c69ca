//! Fragmentation: charged bytes beyond the requested ones, and cached and pinned free memory in sizes that no request
//! has.

use vramd_proto::v1::AllocationSpec;
use vramd_tests::{
    Config, Daemon, MIB, RawSession,
    session::spec,
    wait::{PATIENCE, within},
};

use super::{
    moves::{mib, until_said, value},
    scrape,
};
use crate::moves::{assert_nothing_left, evict, open_and_write, tiers};

const INTERNAL: &str = "vramd_fragmentation_internal_bytes";
const EXTERNAL: &str = "vramd_fragmentation_external_bytes";
const POOL: &str = "vramd_pool_usage_bytes";
const REBUILDS: &str = "vramd_pool_rebuilds_total";

fn measured(config: Config) -> Config {
    config.telemetry("prometheus_listen = \"127.0.0.1:0\"")
}

#[test]
fn fragmentation_counts_rounding_and_cached_extents() {
    let config =
        Config::default().limit("cached_bytes_per_tenant_max = \"96MiB\"").memory("part_size = \"16MiB\"");
    let daemon = Daemon::start(&measured(config));
    let mut session = daemon.open();
    let tenant = session.tenant().to_owned();
    let whole = session.allocate(spec(36 * MIB)).allocation_id;
    assert_eq!(value(&scrape(&daemon), INTERNAL, &[&tenant]), 0.0, "a whole part has no bytes beyond");
    let odd = [5 * MIB + 1, 16 * MIB - 1].map(|size| session.allocate(spec(size)).allocation_id);
    assert_eq!(value(&scrape(&daemon), INTERNAL, &[&tenant]), (MIB - 1 + 1) as f64);
    let large = AllocationSpec { part_size_bytes: Some(24 * MIB), ..spec(24 * MIB) };
    let large = session.allocate(large).allocation_id;
    assert_eq!(value(&scrape(&daemon), POOL, &[]), 0.0);

    for id in [whole, large].into_iter().chain(odd) {
        assert_eq!(session.free(id).still_charged_bytes, 0);
    }
    let scrape = scrape(&daemon);
    assert_eq!(value(&scrape, INTERNAL, &[]), 0.0, "a cached extent belongs to no allocation");
    assert_eq!(value(&scrape, POOL, &["device"]), mib(36 + 24 + 6 + 16));
    assert_eq!(value(&scrape, EXTERNAL, &["device", "smaller"]), mib(4 + 6), "the last parts");
    assert_eq!(value(&scrape, EXTERNAL, &["device", "larger"]), mib(24));
    assert_eq!(value(&scrape, "vramd_memory_usage_bytes", &["cached"]), mib(82), "as of the books");
}

#[test]
fn pinned_free_memory_of_other_sizes_becomes_pieces_on_demand() {
    let config = tiers("64MiB", "16MiB").memory("part_size = \"2MiB\"");
    let daemon = Daemon::start(&measured(config));
    until_said(&daemon, POOL, &["host", "0"], mib(16));
    assert_eq!(value(&scrape(&daemon), EXTERNAL, &["host"]), 0.0, "it is pinned ahead in pieces");

    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let large = AllocationSpec { part_size_bytes: Some(4 * MIB), ..spec(16 * MIB) };
    let id = session.allocate(large).allocation_id;
    evict(&daemon, &mut session, id);
    until_said(&daemon, POOL, &["host"], 0.0);
    session.free(id);
    until_said(&daemon, EXTERNAL, &["host", "0", "larger"], mib(16));
    assert_eq!(value(&scrape(&daemon), REBUILDS, &[]), 0.0, "no request has wanted a piece");

    let (mut other, id) = open_and_write(&daemon, 4);
    evict(&daemon, &mut other, id);
    let mut last = String::new();
    let rebuilt = within(PATIENCE, || {
        last = scrape(&daemon);
        let larger = value(&last, EXTERNAL, &["host", "larger"]);
        (value(&last, POOL, &["host"]) == mib(8) && larger <= mib(4)).then_some(())
    });
    assert!(rebuilt.is_some(), "{last}");
    assert!(value(&last, REBUILDS, &["0"]) >= 1.0, "{last}");
    other.free(id);
    assert_nothing_left(&daemon);
}
