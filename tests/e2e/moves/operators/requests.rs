//! Requests of operators to move parts: their effects, their views and their refusals.

use vramd_proto::v1::{
    DrainRequest, EventKind, MoveEvent, MoveOutcome as Outcome, MovePartsRequest, SetQuotaRequest, Tier,
    WatchRequest, move_event::Change, move_parts_request::Target, watch_response::Event,
};
use vramd_tests::{
    Config, Daemon, Home, MIB, MIB_2, RawSession, Watching, content, daemon::quota, digest,
    proc::host_memory_of, wait::until,
};
use vramd_types::Reason;
use vramd_words::{Access, Unpinned};

use crate::has_other_users;
use crate::moves::{
    assert_nothing_left, evict, fetch_by_pin, first, held, open_and_write, outcomes, part, parts, pin_words,
    request, start_move, tiers, unmap_revoked, unpin_words, until_charged, vramctl, vramctl_json,
};

const CONFIGURATION_WRONG: i32 = 3;

#[test]
fn an_evicted_part_makes_room_and_its_pin_fetches_it() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let (mut session, id) = open_and_write(&daemon, 4);
    pin_words(&session, id, 4);
    let mut other = match has_other_users("what_an_operator_evicts_makes_room_for_others") {
        true => daemon.probe_as(20_002),
        false => daemon.probe(),
    };
    other.ask("open pins");
    other.refused("reserve 4194304").is(if vramd_tests::is_root() {
        Reason::DeviceFull
    } else {
        Reason::QuotaLimit
    });
    unpin_words(&session, id, 4);
    let target = format!("a-{id}");
    let told = std::thread::scope(|scope| {
        let command =
            scope.spawn(|| vramctl_json(&daemon, &["alloc", "evict", &target, "--part", "1", "--part", "3"]));
        let mut left = 2;
        while left > 0 {
            let revoke = session.receive_revoke();
            left -= revoke.parts.len();
            session.unmap_parts(revoke.parts);
        }
        command.join().unwrap()
    });
    assert_eq!(
        (&told["parts"][0]["outcome"], &told["parts"][1]["outcome"]),
        (&"moved".into(), &"moved".into())
    );
    until_charged(&daemon, 4, 8);
    let shown = vramctl_json(&daemon, &["alloc", "show", &target]);
    let lies: Vec<_> = (0..4).map(|at| shown["allocation"]["parts"][at]["tier"].as_str().unwrap()).collect();
    assert_eq!(lies, ["device", "host", "device", "host"]);
    assert_eq!(shown["allocation"]["tier_bytes"]["host"], 4 * MIB);
    let device = &vramctl_json(&daemon, &["device", "list"])["devices"][0];
    assert_eq!(
        (&device["host_capacity_bytes"], &device["host_held_bytes"]),
        (&(8 * MIB).into(), &(8 * MIB).into())
    );
    let listed = String::from_utf8(vramctl(&daemon, &["alloc", "list"]).stdout).unwrap();
    assert!(listed.contains("device+host"), "{listed}");

    let theirs = other.ask("allocate 4194304 part=2097152")["allocation"].as_u64().unwrap();
    assert_eq!(held(&daemon), (8, 8));
    other.ask(&format!("free {theirs}"));
    until_charged(&daemon, 4, 8);
    fetch_by_pin(&mut session, id, 4);
    until_charged(&daemon, 8, 8);
    assert_eq!(session.digest(id, 8 * MIB), digest(&content(8 * MIB, id)));
    session.free(id);
    other.leave();
    assert_nothing_left(&daemon);
}

#[test]
fn an_operator_fetches_a_part_that_no_client_wants() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let (mut session, id) = open_and_write(&daemon, 2);
    evict(&daemon, &mut session, id);
    let target = format!("a-{id}");
    let told = vramctl_json(&daemon, &["alloc", "bring-in", &target]);
    assert_eq!(
        (&told["parts"][0]["outcome"], &told["parts"][1]["outcome"]),
        (&"moved".into(), &"moved".into())
    );
    until_charged(&daemon, 4, 4);
    assert!(session.parts(id).next().is_none(), "no session pinned it");
    let again = start_move(&daemon, id, Tier::Device).ok();
    assert_eq!(outcomes(&again), [Outcome::Moved; 2], "it is there");
    fetch_by_pin(&mut session, id, 2);
    assert_eq!(session.digest(id, 4 * MIB), digest(&content(4 * MIB, id)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_session_that_pins_a_part_is_named_and_keeps_it() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let (mut session, id) = open_and_write(&daemon, 1);
    let slot = session.slot(id, 0);
    session.word_table().client(slot).pin(Access::Write).unwrap();
    let answer = start_move(&daemon, id, Tier::Host).ok();
    assert_eq!(first(&answer), (Outcome::Pinned, &[session.id()][..]));
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    assert_eq!(session.word_table().client(slot).unpin(), Ok(Unpinned::Done));
    // A session without pins maps the part until it frees it.
    let mut plain = daemon.open();
    let standing = plain.allocate(parts(1)).allocation_id;
    let answer = start_move(&daemon, standing, Tier::Host).ok();
    assert_eq!(first(&answer), (Outcome::Standing, &[plain.id()][..]));
    until_charged(&daemon, 4, 4);
    let text = vramctl(&daemon, &["alloc", "evict", &format!("a-{standing}")]);
    assert_eq!(text.status.code(), Some(0), "the outcome is the answer");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("standing") && text.contains(&format!("s-{}", plain.id())), "{text}");
    session.free(id);
    plain.free(standing);
    assert_nothing_left(&daemon);
}

#[test]
fn an_invalid_move_is_refused_and_changes_nothing() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let (mut session, id) = open_and_write(&daemon, 1);
    let state = daemon.settled_state();
    let ask = |request: MovePartsRequest| daemon.admin.move_parts(request).refused();
    assert_eq!(ask(request(id, Tier::Disk)).is(Reason::TierUnsupported).fact("tier"), "disk");
    ask(MovePartsRequest { tier: 9, ..request(id, Tier::Host) }).is(Reason::RequestInvalid);
    ask(MovePartsRequest { target: None, ..request(id, Tier::Host) }).is(Reason::RequestInvalid);
    for part_indexes in [vec![1], vec![0, 0], vec![u32::MAX]] {
        let refused = ask(MovePartsRequest { part_indexes, ..request(id, Tier::Host) });
        assert_eq!(refused.is(Reason::RequestInvalid).fact("field"), "part_indexes");
    }
    ask(request(id + 1, Tier::Host)).is(Reason::AllocationNotFound);
    let named = Some(Target::Name("nobody/nothing".to_owned()));
    ask(MovePartsRequest { target: named, ..Default::default() }).is(Reason::AllocationNotFound);
    ask(MovePartsRequest { request_id: vec![1], ..request(id, Tier::Host) }).is(Reason::RequestInvalid);
    assert_eq!(daemon.state(), state);
    let output = vramctl(&daemon, &["alloc", "evict", &format!("a-{}", id + 1)]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(vramctl(&daemon, &["alloc", "evict"]).status.code(), Some(2));
    // A repeated request is done once, and gets the first answer.
    let once = MovePartsRequest { request_id: vec![7; 16], ..request(id, Tier::Host) };
    let evicting = daemon.admin.move_parts(once.clone());
    unmap_revoked(&mut session, id);
    let answer = evicting.ok();
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(daemon.admin.move_parts(once.clone()).ok(), answer);
    until_charged(&daemon, 2, 2);
    ask(MovePartsRequest { tier: Tier::Device.into(), ..once }).is(Reason::RequestIdReused);
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_node_without_a_host_tier_refuses_moves_to_the_host() {
    let daemon = Daemon::new();
    let (session, id) = open_and_write(&daemon, 1);
    let refused = start_move(&daemon, id, Tier::Host).refused();
    assert_eq!(refused.is(Reason::TierUnsupported).fact("tier"), "host");
    assert_eq!(outcomes(&start_move(&daemon, id, Tier::Device).ok()), [Outcome::Moved], "it is there");
    let set = SetQuotaRequest { tier: Tier::Host.into(), ..quota(session.tenant(), "0", "", "1GiB") };
    daemon.admin.set_quota(set).refused().is(Reason::TierUnsupported);
    assert_eq!(daemon.state().devices[0].host_capacity_bytes, 0);
}

#[test]
fn a_full_host_refuses_moves_and_names_the_limit() {
    let daemon = Daemon::start(&tiers("16MiB", "4MiB"));
    let (mut session, id) = open_and_write(&daemon, 2);
    evict(&daemon, &mut session, id);
    let (mut second, other) = open_and_write(&daemon, 1);
    let answer = start_move(&daemon, other, Tier::Host).ok();
    let refused = answer.parts[0].error.clone().expect("a refusal");
    assert_eq!((first(&answer).0, refused.reason.as_str()), (Outcome::Refused, Reason::QuotaLimit.name()));
    assert_eq!(
        (&*refused.metadata["tier"], &*refused.metadata["held"]),
        ("host", (4 * MIB).to_string().as_str())
    );
    assert_eq!(second.digest(other, MIB_2), digest(&content(MIB_2, other)), "it is mapped as before");

    // The guarantee of another tenant is room that no other tenant gets.
    second.free(other);
    session.free(id);
    until_charged(&daemon, 0, 0);
    let set = ["quota", "set", "team-z", "--device", "0", "--tier", "host", "--guarantee", "3MiB"];
    assert_eq!(vramctl_json(&daemon, &set)["quota"]["tier"], "host");
    let other = second.allocate(parts(1)).allocation_id;
    second.write(other, &content(MIB_2, other));
    let answer = start_move(&daemon, other, Tier::Host).ok();
    let refused = answer.parts[0].error.clone().expect("a refusal");
    assert_eq!((refused.reason.as_str(), &*refused.metadata["tier"]), (Reason::DeviceFull.name(), "host"));
    // The tenant has a limit of its own there.
    let tenant = second.tenant().to_owned();
    vramctl_json(&daemon, &["quota", "set", &tenant, "--tier", "host", "--limit", "1MiB"]);
    vramctl_json(&daemon, &["quota", "delete", "team-z", "--device", "0", "--tier", "host"]);
    let answer = start_move(&daemon, other, Tier::Host).ok();
    assert_eq!(answer.parts[0].error.as_ref().unwrap().metadata["limit"], MIB.to_string());
    vramctl_json(&daemon, &["quota", "set", &tenant, "--tier", "host", "--limit", "2MiB"]);
    evict(&daemon, &mut second, other);
    let rows = daemon.state().quotas;
    let in_host = rows.iter().find(|row| row.tier() == Tier::Host && row.device != "*").expect("a row");
    assert_eq!((in_host.held_bytes, in_host.limit_bytes), (MIB_2, MIB_2));
    second.free(other);
    assert_nothing_left(&daemon);
}

#[test]
fn a_drained_node_still_moves_parts() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let (mut session, id) = open_and_write(&daemon, 2);
    evict(&daemon, &mut session, id);
    assert!(daemon.admin.drain(DrainRequest::default()).ok().draining);
    assert_eq!(outcomes(&start_move(&daemon, id, Tier::Device).ok()), [Outcome::Moved; 2]);
    assert_eq!(outcomes(&start_move(&daemon, id, Tier::Host).ok()), [Outcome::Moved; 2]);
    let parcel = session.pin(vec![part(id, 0), part(id, 1)]);
    // The channel also tells the clients that the node is draining.
    while !session.is_mapped(id) {
        let parts = session.receive_map();
        session.accept(parts);
    }
    session.pin_answer(parcel).unwrap();
    assert_eq!(session.digest(id, 4 * MIB), digest(&content(4 * MIB, id)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn moves_are_reported_to_watches_and_counted() {
    let config = tiers("8MiB", "8MiB").telemetry("prometheus_listen = \"127.0.0.1:0\"");
    let daemon = Daemon::start(&config.fault("copy", 2, vramd_tests::config::Effect::Fail("a cable".into())));
    let kinds = vec![EventKind::Move.into()];
    let mut watching = Watching::start(&daemon.admin, WatchRequest { kinds, ..Default::default() }).unwrap();
    let (mut session, id) = open_and_write(&daemon, 1);
    evict(&daemon, &mut session, id);
    let failed = start_move(&daemon, id, Tier::Device).ok();
    assert_eq!((first(&failed).0, failed.parts[0].problem.as_str()), (Outcome::Failed, "a cable"));
    let seen = [watching.read(), watching.read()];
    assert!(seen.iter().all(|event| event.tenant == session.tenant()), "{seen:?}");
    let told = seen.map(|event| match event.event {
        Some(Event::Move(moved)) => moved,
        other => panic!("no move: {other:?}"),
    });
    let of = |change: Change, tier: Tier, detail: &str| MoveEvent {
        change: change.into(),
        allocation_id: id,
        part_index: 0,
        device: 0,
        tier: tier.into(),
        bytes: MIB_2,
        detail: detail.to_owned(),
    };
    assert_eq!(told, [of(Change::Moved, Tier::Host, ""), of(Change::Failed, Tier::Device, "a cable")]);

    until_charged(&daemon, 0, 2);
    let scrape = daemon.metrics();
    let sum = |metric: &str, labels: &[&str]| -> f64 {
        let of = |line: &&str| line.starts_with(metric) && labels.iter().all(|label| line.contains(label));
        scrape.lines().filter(of).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    let tenant = format!("vramd_tenant=\"{}\"", session.tenant());
    let (host, bytes) = ("vramd_tier=\"host\"", 2.0 * MIB as f64);
    assert_eq!(sum("vramd_quota_usage_bytes{", &[&tenant, host, "\"dirty\""]), bytes);
    assert_eq!(sum("vramd_memory_usage_bytes{", &[host, "\"resident\""]), bytes);
    assert_eq!(sum("vramd_memory_usage_bytes{", &["vramd_tier=\"device\""]), 0.0);
    assert_eq!(sum("vramd_memory_capacity_bytes{", &[host]), 4.0 * bytes);
    for (direction, outcome) in [("out", "moved"), ("in", "failed")] {
        let labels = [
            &*format!("vramd_migration_direction=\"{direction}\""),
            &format!("vramd_migration_outcome=\"{outcome}\""),
        ];
        assert_eq!(sum("vramd_migrations_total{", &labels), 1.0, "{scrape}");
        assert_eq!(sum("vramd_migration_io_bytes_total{", &labels), bytes);
    }
    assert_eq!(sum("vramd_migrations_total{", &[]), 2.0);
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_moving_part_shows_its_target_tier() {
    let config = tiers("8MiB", "8MiB").fault("copy", 1, vramd_tests::config::Effect::Hold);
    let daemon = Daemon::start(&config);
    let (mut session, id) = open_and_write(&daemon, 1);
    let evicting = start_move(&daemon, id, Tier::Host);
    unmap_revoked(&mut session, id);
    let shown = vramctl_json(&daemon, &["alloc", "show", &format!("a-{id}")]);
    let part = &shown["allocation"]["parts"][0];
    assert_eq!((&part["tier"], &part["moves_to"]), (&"device".into(), &"host".into()));
    let text = String::from_utf8(vramctl(&daemon, &["alloc", "show", &format!("a-{id}")]).stdout).unwrap();
    assert!(text.contains("device->host"), "{text}");
    assert_eq!(daemon.state().devices[0].moving_out_bytes, MIB_2);
    assert_eq!(held(&daemon), (2, 2), "it is charged in both");
    daemon.end_holds();
    assert_eq!(outcomes(&evicting.ok()), [Outcome::Moved]);
    until_charged(&daemon, 0, 2);
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn host_memory_is_pinned_ahead_and_kept_for_later_parts() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB").memory("part_size = \"2MiB\""));
    let said = "host memory is pinned ahead of need node=0 pinned_bytes=8388608";
    until("it is pinned", || daemon.log().contains(said));
    let uuid = daemon.state().devices[0].device.clone().unwrap_or_default().uuid;
    let ahead = host_memory_of(&uuid);
    assert_eq!(ahead.len(), 4);
    for round in 0..3 {
        let (mut session, id) = open_and_write(&daemon, 4);
        evict(&daemon, &mut session, id);
        until_charged(&daemon, 0, 8);
        assert_eq!(
            host_memory_of(&uuid),
            ahead,
            "the parts lie in what was pinned, and that is all: {round}"
        );
        fetch_by_pin(&mut session, id, 4);
        until_charged(&daemon, 8, 8);
        assert_eq!(session.digest(id, 4 * MIB_2), digest(&content(4 * MIB_2, id)));
        session.free(id);
    }
    assert_eq!(host_memory_of(&uuid), ahead);
    assert_nothing_left(&daemon);
}

#[test]
fn a_host_tier_beyond_the_machines_memory_ends_the_start() {
    let home = Home::new();
    Config::devices(&["1GiB", "1GiB"]).memory("host_size = \"1048576TiB\"").write(home.path());
    let output = home.command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(CONFIGURATION_WRONG), "{said}");
    assert!(said.contains("memory.host_size: 2 EiB for 2 devices is too much: this machine has "), "{said}");
    for (line, why) in [("host_size = \"50%\"", "is not allowed here"), ("host_size = \"much\"", "much")] {
        Config::default().memory(line).write(home.path());
        let output = home.command().arg("--check").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(CONFIGURATION_WRONG), "{said}");
        assert!(said.contains("memory.host_size") && said.contains(why), "{said}");
    }
}

#[test]
fn named_memory_stays_in_the_host_until_it_is_attached() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let mut owner = daemon.probe();
    owner.ask("sdk open");
    let id = owner.ask("sdk allocate 4194304 name=weights persistent")["allocation"].as_u64().unwrap();
    owner.ask("sdk write 9");
    owner.ask("sdk unhold");
    owner.ask("sdk seal");
    assert_eq!(outcomes(&start_move(&daemon, id, Tier::Host).ok()), [Outcome::Moved]);
    owner.leave();
    until_charged(&daemon, 0, 4);
    let mut reader = RawSession::open_with_pins(&daemon.sockets());
    assert_eq!(reader.attach("weights").digest, digest(&content(2 * MIB_2, 9)));
    assert_eq!(reader.digest(id, 2 * MIB_2), digest(&content(2 * MIB_2, 9)));
    until_charged(&daemon, 4, 4);
    reader.free(id);
    assert_nothing_left(&daemon);
}
