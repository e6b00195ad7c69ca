//! The main job: one process writes bytes once and seals them, and other processes read the same memory.

use vramd_proto::v1::{AllocationSpec, AllocationState, ListAllocationsRequest};
use vramd_tests::{
    Config, Daemon, MIB, content, digest, proc,
    session::{persistent, spec},
};
use vramd_types::Reason;

#[test]
fn processes_read_bytes_that_one_wrote() {
    let daemon = Daemon::new();
    // Three parts, the last one partly used.
    let size = 5 * MIB + 123;
    let expected = digest(&content(size, 7));

    let mut writer = daemon.probe();
    writer.ask("open");
    let reserved = writer.ask(&format!("allocate {size} name=weights persistent part={}", 2 * MIB));
    assert_eq!(reserved["charged"], 6 * MIB);
    let id = reserved["allocation"].as_u64().unwrap();
    writer.ask(&format!("write {id} 7"));
    assert_eq!(writer.ask(&format!("seal {id}"))["digest"], expected);

    let mut readers = [daemon.probe(), daemon.probe()];
    for reader in &mut readers {
        reader.ask("open");
        let attached = reader.ask("attach weights");
        assert_eq!(attached["allocation"], id);
        assert_eq!(attached["told"], expected);
        assert_eq!(attached["found"], expected);
    }
    for reader in &readers {
        assert_eq!(proc::memory_mapping_count(reader.pid()), 3, "the bytes are mapped, not copied");
        assert_eq!(proc::memory_fd_count(reader.pid()), 0, "descriptors are closed once mapped");
    }
    let state = daemon.state();
    let allocation = state.allocation(id).unwrap();
    assert_eq!(allocation.mapper_count, 3, "writer and both readers at once");
    assert_eq!(allocation.charged_bytes, 6 * MIB, "charged once, however many map it");
    assert_eq!(state.charged(), 6 * MIB);
    assert_eq!(state.node.fds_in_flight, 0);
    assert_eq!(allocation.digest, expected);

    // The writer ends. A persistent allocation stays with the tenant.
    writer.leave();
    for reader in readers {
        reader.leave();
    }
    let mut late = daemon.probe();
    late.ask("open");
    assert_eq!(late.ask("attach weights")["found"], expected);
    let allocation = &daemon.state().allocations[0];
    assert_eq!((allocation.state(), allocation.owner_session_id), (AllocationState::Sealed, 0));
    // Any session of the tenant may free an allocation whose owner has ended.
    assert_eq!(late.ask(&format!("free {id}"))["still_charged"], 0);
    daemon.drains();
}

#[test]
fn fresh_memory_is_zero() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    for seed in 0..3 {
        let allocation = session.allocate(spec(4 * MIB)).allocation_id;
        assert!(session.parts(allocation).all(|part| part.bytes().iter().all(|&byte| byte == 0)));
        session.write(allocation, &content(4 * MIB, seed));
        session.free(allocation);
    }
}

#[test]
fn memory_ends_with_its_session_unless_sealed_and_persistent() {
    let daemon = Daemon::new();
    let mut client = daemon.probe();
    client.ask("open");
    client.ask("allocate 2097152 name=unsealed persistent");
    let sealed_only = client.ask("allocate 2097152 name=sealed-only")["allocation"].clone();
    client.ask(&format!("seal {sealed_only}"));
    assert_eq!(daemon.state().charged(), 4 * MIB);
    client.leave();
    daemon.drains();
}

#[test]
fn no_other_session_attaches_before_the_seal() {
    let daemon = Daemon::new();
    let mut owner = daemon.open();
    let allocation = owner.allocate(persistent("weights", MIB)).allocation_id;
    let other = daemon.open();
    let state = daemon.settled_state();
    let refused = other.attach_refused("weights");
    assert_eq!(refused.is(Reason::NotSealed).fact("allocation"), format!("a-{allocation}"));
    assert_eq!(daemon.state(), state);
}

#[test]
fn sealed_memory_comes_back_read_only() {
    let daemon = Daemon::new();
    let mut owner = daemon.open();
    let allocation = owner.allocate(persistent("weights", MIB)).allocation_id;
    assert!(owner.parts(allocation).all(|part| part.writable));
    owner.seal(allocation);
    assert!(owner.parts(allocation).all(|part| !part.writable));
    let mut reader = daemon.open();
    reader.attach("weights");
    assert!(reader.parts(allocation).all(|part| !part.writable));
}

#[test]
fn a_name_is_taken_until_it_is_free() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let first = session.allocate(persistent("weights", MIB)).allocation_id;
    let state = daemon.settled_state();
    let refused = session.refused(persistent("weights", MIB));
    assert_eq!(refused.is(Reason::NameTaken).fact("name"), format!("{}/weights", session.tenant()));
    assert_eq!(daemon.state(), state);
    session.free(first);
    session.allocate(persistent("weights", MIB));
}

#[test]
fn a_name_is_replaced_at_the_moment_of_sealing() {
    let daemon = Daemon::new();
    let mut owner = daemon.open();
    let old = owner.allocate(persistent("weights", MIB)).allocation_id;
    owner.write(old, &content(MIB, 1));
    owner.seal(old);
    let mut reader = daemon.open();
    reader.attach("weights");

    let new = owner.allocate(AllocationSpec { replace: true, ..persistent("weights", MIB) }).allocation_id;
    owner.write(new, &content(MIB, 2));
    let mut other = daemon.open();
    assert_eq!(other.attach("weights").allocation_id, old, "until the new one is sealed");
    owner.unmap(old);
    let sealed = owner.seal(new);
    assert_eq!(sealed.digest, digest(&content(MIB, 2)));

    let mut late = daemon.open();
    assert_eq!(late.attach("weights").allocation_id, new);
    // A session that maps the old allocation keeps it until it is asked to unmap, and the tenant stays charged.
    assert_eq!(reader.digest(old, MIB), digest(&content(MIB, 1)));
    assert_eq!(daemon.state().allocation(old).unwrap().state(), AllocationState::Freeing);
    for session in [&mut reader, &mut other] {
        session.unmap(old);
    }
    vramd_tests::wait::until("the old one is gone", || daemon.state().allocation(old).is_none());
}

#[test]
fn freed_memory_stays_charged_while_others_map_it() {
    let daemon = Daemon::new();
    let mut owner = daemon.open();
    let allocation = owner.allocate(persistent("weights", 3 * MIB)).allocation_id;
    owner.write(allocation, &content(3 * MIB, 5));
    owner.seal(allocation);
    let mut reader = daemon.open();
    reader.attach("weights");

    let freed = owner.free(allocation);
    assert_eq!((freed.error, freed.still_charged_bytes, freed.mapper_count), (None, 4 * MIB, 1));
    assert_eq!(daemon.state().charged(), 4 * MIB);
    assert_eq!(reader.digest(allocation, 3 * MIB), digest(&content(3 * MIB, 5)));
    owner.attach_refused("weights").is(Reason::AllocationNotFound);
    reader.unmap(allocation);
    daemon.drains();
}

#[test]
fn a_reader_detaches_and_attaches_again() {
    let daemon = Daemon::new();
    let mut owner = daemon.open();
    let allocation = owner.allocate(persistent("weights", MIB)).allocation_id;
    owner.seal(allocation);
    let mut reader = daemon.open();
    for _ in 0..3 {
        reader.attach("weights");
        assert_eq!(reader.detach(allocation).error, None);
        assert_eq!(daemon.state().allocation(allocation).unwrap().mapper_count, 1);
    }
}

#[test]
fn a_batch_is_all_or_nothing() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]));
    let mut session = daemon.open();
    let state = daemon.state();
    let request = session.request(vec![spec(8 * MIB), spec(80 * MIB)]);
    session.memory.allocate_batch(request).refused();
    assert_eq!(daemon.state(), state);
    let request = session.request(vec![spec(8 * MIB), spec(16 * MIB)]);
    let allocations = session.memory.allocate_batch(request).ok().allocations;
    let sizes: Vec<u64> = allocations.iter().map(|allocation| allocation.size_bytes).collect();
    assert_eq!(sizes, [8 * MIB, 16 * MIB], "in the order of the items");
    for allocation in allocations {
        session.map_all(allocation.allocation_id);
    }
}

#[test]
fn many_parts_come_one_packet_at_a_time() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let parts = AllocationSpec { part_size_bytes: Some(2 * MIB), ..spec(300 * MIB) };
    let allocation = session.reserve(parts).allocation_id;
    let first = session.receive_map();
    assert_eq!(first.len(), 128);
    // No further packet is in flight until these parts are acknowledged.
    assert_eq!(daemon.state().node.fds_in_flight, 128);
    session.accept(first);
    session.map_all(allocation);
    vramd_tests::wait::until("nothing is in flight", || daemon.state().node.fds_in_flight == 0);
    assert_eq!(session.parts(allocation).count(), 150);
    assert_eq!(session.free(allocation).still_charged_bytes, 0);
    daemon.drains();
}

#[test]
fn a_session_lists_its_tenants_allocations_page_by_page() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    for number in 0..5 {
        session.allocate(persistent(&format!("weights-{number}"), MIB));
    }
    session.allocate(persistent("other", MIB));
    let (mut names, mut token) = (Vec::new(), String::new());
    loop {
        let page = session
            .memory
            .list_allocations(ListAllocationsRequest {
                session_id: session.id(),
                page_size: Some(2),
                page_token: token,
                name_prefix: "weights-".to_owned(),
            })
            .ok();
        assert!(page.allocations.len() <= 2);
        names.extend(page.allocations.into_iter().map(|allocation| allocation.name));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    let expected: Vec<String> =
        (0..5).map(|number| format!("{}/weights-{number}", session.tenant())).collect();
    assert_eq!(names, expected);
}
