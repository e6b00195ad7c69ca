//! Bad requests through the real socket: each gets the registry's code, reason and details, and changes nothing on the
//! node.

use std::os::fd::AsRawFd as _;

use vramd_proto::v1::{
    AllocateBatchRequest, AllocationSpec, AttachRequest, DeleteQuotaRequest, DescribeAllocationRequest,
    DetachRequest, FreeBatchRequest, GetQuotaRequest, Hello, Lifetime, ListAllAllocationsRequest,
    ListAllocationsRequest, ListMovesRequest, ListQuotasRequest, ListSessionsRequest, ListWaitsRequest,
    LoadFileRequest, SealRequest, SetQuotaRequest, Tier, attach_request::Target,
};
use vramd_tests::{
    Config, Daemon, MIB, NodeState, RawSession, Refused,
    daemon::quota,
    session::{hello, persistent, spec},
};
use vramd_types::Reason;

/// A daemon with two devices and allocations, which a bad request could damage.
struct Scene {
    daemon: Daemon,
    session: RawSession,
    /// An open allocation of `session`.
    own: u64,
    /// A sealed allocation of another session of the tenant.
    other: u64,
    _other: RawSession,
    state: NodeState,
}

impl Scene {
    fn new() -> Self {
        let daemon = Daemon::start(&Config::devices(&["1GiB", "1GiB"]).limit("batch_items_max = 3"));
        let (mut session, mut second) = (daemon.open(), daemon.open());
        let own = session.allocate(spec(4 * MIB)).allocation_id;
        let other = second.allocate(persistent("weights", MIB)).allocation_id;
        second.seal(other);
        let state = daemon.settled_state();
        Self { daemon, session, own, other, _other: second, state }
    }

    #[track_caller]
    fn allocation(&self, spec: AllocationSpec, reason: Reason) -> Refused {
        self.unharmed(self.session.refused(spec), reason)
    }

    #[track_caller]
    fn unharmed(&self, refused: Refused, reason: Reason) -> Refused {
        refused.is(reason);
        assert_eq!(self.daemon.state(), self.state, "the books changed: {refused:?}");
        refused
    }
}

#[test]
fn invalid_sizes_are_refused() {
    let scene = Scene::new();
    // On the wire a negative number is one of the largest.
    for size in [0, u64::MAX, u64::MAX - MIB, (-5_i64).cast_unsigned()] {
        let refused = scene.allocation(spec(size), Reason::SizeInvalid);
        assert_eq!(refused.number("size"), size);
        assert!(refused.fact("field").contains("size_bytes"), "{refused:?}");
    }
    // Each fits in 64 bits, their sum does not.
    let request = scene.session.request(vec![spec(1 << 63), spec(1 << 63)]);
    scene.unharmed(scene.session.memory.allocate_batch(request).refused(), Reason::SizeInvalid);
    // Larger than any device, and otherwise valid.
    let refused = scene.session.refused(spec(1 << 60));
    assert!(
        ["QUOTA_LIMIT", "DEVICE_FULL", "ALLOCATIONS_TOO_MANY"].contains(&refused.reason.as_str()),
        "{refused:?}"
    );
    assert_eq!(scene.daemon.state(), scene.state);
}

#[test]
fn invalid_part_sizes_are_refused() {
    let scene = Scene::new();
    for size in [0, 1, 4096, 3 * MIB, 2 * MIB + 1, 1 << 50, u64::MAX] {
        let parts = AllocationSpec { part_size_bytes: Some(size), ..spec(4 * MIB) };
        assert_eq!(scene.allocation(parts, Reason::PartSizeInvalid).number("size"), size);
    }
}

#[test]
fn invalid_names_are_refused() {
    let scene = Scene::new();
    let long = "x".repeat(129);
    for name in ["", &long, ".hidden", "-x", "a b", "ä", "a\n", "*", "/", "other/weights", "a/b/c"] {
        let refused = scene.allocation(persistent(name, MIB), Reason::NameInvalid);
        assert_eq!(refused.fact("name"), name);
    }
    scene.allocation(persistent("weights", MIB), Reason::NameTaken);
    for reader in ["", "a b", "a/b", &long] {
        let readers = vec![reader.to_owned()];
        scene.allocation(AllocationSpec { readers, ..persistent("new", MIB) }, Reason::NameInvalid);
    }
    for target in ["", "a b", "/", "a/b/c", &long] {
        scene.unharmed(scene.session.attach_refused(target), Reason::NameInvalid);
    }
}

#[test]
fn persistent_memory_needs_a_name() {
    let scene = Scene::new();
    let nameless = AllocationSpec { lifetime: Lifetime::Persistent.into(), ..spec(MIB) };
    let refused = scene.allocation(nameless, Reason::NameInvalid);
    assert!(refused.message.starts_with("name: a persistent allocation needs a name"), "{refused:?}");
    assert_eq!(refused.fact("field"), "name");
}

#[test]
fn names_of_other_tenants_do_not_exist() {
    let scene = Scene::new();
    for target in ["none", "other/weights"] {
        let refused = scene.unharmed(scene.session.attach_refused(target), Reason::AllocationNotFound);
        assert!(refused.fact("allocation").contains(target), "{refused:?}");
    }
}

#[test]
fn a_client_name_grants_nothing() {
    let scene = Scene::new();
    let claim = Hello { client_name: "team-b".to_owned(), ..hello() };
    let session = RawSession::open_with(&scene.daemon.sockets(), claim).unwrap();
    assert_eq!(session.tenant(), scene.session.tenant());
    assert_ne!(session.tenant(), "team-b");
    session.refused(persistent("team-b/weights", MIB)).is(Reason::NameInvalid);
    assert_eq!(scene.daemon.state().charged_to("team-b"), 0);
}

#[test]
fn a_client_name_moves_no_cursor() {
    let daemon = Daemon::new();
    let name = "x\u{1b}[31mEVIL\nuid-9  s-1  live\u{202e}";
    let session =
        RawSession::open_with(&daemon.sockets(), Hello { client_name: name.to_owned(), ..hello() }).unwrap();
    let shown = daemon.state().session(session.id()).unwrap().client_name.clone();
    assert_eq!(shown, "x\u{fffd}[31mEVIL\u{fffd}uid-9  s-1  live\u{fffd}");
    let table = daemon.vramctl().args(["session", "list"]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert_eq!(table.lines().count(), 2, "a heading and one session: {table}");
    assert!(!daemon.log().contains('\u{1b}'), "{}", daemon.log());
}

#[test]
fn unknown_and_foreign_ids_are_refused() {
    let scene = Scene::new();
    let (id, memory) = (scene.session.id(), &scene.session.memory);
    let missing = 0xdead_beef;
    let seal =
        |allocation_id| memory.seal(SealRequest { session_id: id, allocation_id, ..Default::default() });
    let refused = scene.unharmed(seal(missing).refused(), Reason::AllocationNotFound);
    assert_eq!(refused.fact("allocation"), format!("a-{missing}"));
    scene.unharmed(seal(scene.other).refused(), Reason::NotOwner);
    let target = Some(Target::AllocationId(missing));
    let attach = memory.attach(AttachRequest { session_id: id, target, ..Default::default() });
    scene.unharmed(attach.refused(), Reason::AllocationNotFound);

    let allocation_ids = vec![missing, scene.other];
    let free =
        FreeBatchRequest { session_id: id, allocation_ids: allocation_ids.clone(), ..Default::default() };
    let results = memory.free_batch(free).ok().results;
    let refused: Vec<Refused> =
        results.into_iter().map(|item| Refused::from_item(item.error.unwrap())).collect();
    scene.unharmed(refused[0].clone(), Reason::AllocationNotFound);
    scene.unharmed(refused[1].clone(), Reason::NotOwner);

    let detach = DetachRequest { session_id: id, allocation_ids, ..Default::default() };
    let results = memory.detach(detach).ok().results;
    let refused = Refused::from_item(results[0].error.clone().unwrap());
    scene.unharmed(refused, Reason::AllocationNotFound);
    assert_eq!(results[1].error, None, "an allocation that is not attached is detached");
}

#[test]
fn freed_ids_are_refused() {
    let mut scene = Scene::new();
    let stale = scene.session.allocate(spec(MIB)).allocation_id;
    assert_eq!(scene.session.free(stale).error, None);
    let error = scene.session.free(stale).error.expect("freed once is freed");
    Refused::from_item(error).is(Reason::AllocationNotFound);
}

#[test]
fn an_allocation_is_sealed_once() {
    let scene = Scene::new();
    let mut session = scene.daemon.open();
    let allocation = session.allocate(spec(MIB)).allocation_id;
    session.seal(allocation);
    let request = SealRequest { session_id: session.id(), allocation_id: allocation, ..Default::default() };
    session.memory.seal(request).refused().is(Reason::AlreadySealed);
}

#[test]
fn a_call_needs_a_session() {
    let scene = Scene::new();
    let memory = &scene.session.memory;
    let none = AllocateBatchRequest { items: vec![spec(1)], ..Default::default() };
    scene.unharmed(memory.allocate_batch(none).refused(), Reason::SessionMissing);
    let none = DescribeAllocationRequest::default();
    scene.unharmed(memory.describe_allocation(none).refused(), Reason::SessionMissing);
    let unknown = AllocateBatchRequest {
        session_id: scene.session.id() + 4711,
        items: vec![spec(1)],
        ..Default::default()
    };
    let refused = scene.unharmed(memory.allocate_batch(unknown).refused(), Reason::SessionLost);
    assert_eq!(refused.fact("session"), format!("s-{}", scene.session.id() + 4711));
}

#[test]
fn unknown_devices_are_refused() {
    let scene = Scene::new();
    for device in ["2", "-1", "GPU-0", "first", "*", ""] {
        let on = AllocationSpec { device: Some(device.to_owned()), ..spec(MIB) };
        let refused = scene.allocation(on, Reason::DeviceUnknown);
        assert_eq!(refused.fact("device"), device);
    }
    // A session that sees the first device alone.
    let uuid = |index: usize| scene.state.devices[index].device.clone().unwrap().uuid;
    let one = Hello { any_device: false, devices: vec![uuid(0)], ..hello() };
    let mut session = RawSession::open_with(&scene.daemon.sockets(), one).unwrap();
    assert_eq!(session.welcome.devices.len(), 1);
    for device in ["1".to_owned(), uuid(1)] {
        let refused = session.refused(AllocationSpec { device: Some(device), ..spec(MIB) });
        assert_eq!(refused.is(Reason::DeviceNotVisible).fact("device"), uuid(1));
    }
    assert_eq!(session.allocate(spec(MIB)).device, uuid(0));
    let mut other = scene.daemon.open();
    let far = other.allocate(AllocationSpec { device: Some("1".to_owned()), ..persistent("far", MIB) });
    other.seal(far.allocation_id);
    assert_eq!(session.attach_refused("far").is(Reason::DeviceNotVisible).fact("device"), uuid(1));
    // A session that sees no device.
    let none = Hello { any_device: false, devices: vec!["GPU-elsewhere".to_owned()], ..hello() };
    let session = RawSession::open_with(&scene.daemon.sockets(), none).unwrap();
    session.refused(spec(MIB)).is(Reason::DeviceNotVisible);
}

#[test]
fn undefined_enum_values_are_refused() {
    let scene = Scene::new();
    scene.allocation(AllocationSpec { kind: 2, ..spec(MIB) }, Reason::KindUnsupported);
    let named_managed = AllocationSpec { kind: 3, name: Some("managed".to_owned()), ..spec(MIB) };
    let undefined = [AllocationSpec { kind: 99, ..spec(MIB) }, AllocationSpec { lifetime: 99, ..spec(MIB) }];
    for bad in undefined.into_iter().chain([named_managed]) {
        scene.allocation(bad, Reason::RequestInvalid);
    }
    for tier in [Tier::Host, Tier::Disk] {
        let request = SetQuotaRequest { tier: tier.into(), ..quota("team-a", "*", "", "1MiB") };
        let refused = scene.daemon.admin.set_quota(request).refused();
        scene.unharmed(refused, Reason::TierUnsupported);
    }
    let request = SetQuotaRequest { tier: 99, ..quota("team-a", "*", "", "1MiB") };
    scene.unharmed(scene.daemon.admin.set_quota(request).refused(), Reason::RequestInvalid);
}

#[test]
fn invalid_request_ids_and_batches_are_refused() {
    let scene = Scene::new();
    for length in [1, 15, 17] {
        let mut request = scene.session.request(vec![spec(MIB)]);
        request.request_id = vec![7; length];
        let refused = scene.session.memory.allocate_batch(request).refused();
        assert_eq!(scene.unharmed(refused, Reason::RequestInvalid).fact("field"), "request_id");
    }
    let request = scene.session.request(vec![spec(MIB); 4]);
    let refused =
        scene.unharmed(scene.session.memory.allocate_batch(request).refused(), Reason::BatchTooLarge);
    assert_eq!((refused.number("items_max"), refused.number("items")), (3, 4));
    let request = scene.session.request(Vec::new());
    scene.unharmed(scene.session.memory.allocate_batch(request).refused(), Reason::RequestInvalid);
    let allocation_ids = vec![scene.own; 4];
    let free = FreeBatchRequest { session_id: scene.session.id(), allocation_ids, ..Default::default() };
    scene.unharmed(scene.session.memory.free_batch(free).refused(), Reason::BatchTooLarge);
}

#[test]
fn missing_targets_are_refused() {
    let scene = Scene::new();
    let attach = AttachRequest { session_id: scene.session.id(), ..Default::default() };
    scene.unharmed(scene.session.memory.attach(attach).refused(), Reason::RequestInvalid);
    let show = vramd_proto::v1::ShowAllocationRequest::default();
    scene.unharmed(scene.daemon.admin.show_allocation(show).refused(), Reason::RequestInvalid);
}

#[test]
fn invalid_pages_are_refused() {
    let scene = Scene::new();
    let list = |page_size, page_token: &str| {
        let (page_size, page_token) = (Some(page_size), page_token.to_owned());
        let session_id = scene.session.id();
        let request = ListAllocationsRequest { session_id, page_size, page_token, ..Default::default() };
        scene.session.memory.list_allocations(request).refused()
    };
    for size in [0, 1001] {
        assert_eq!(scene.unharmed(list(size, ""), Reason::RequestInvalid).fact("field"), "page_size");
    }
    assert_eq!(scene.unharmed(list(1, "next please"), Reason::RequestInvalid).fact("field"), "page_token");
    let request = ListQuotasRequest { page_token: "-".to_owned(), ..Default::default() };
    scene.unharmed(scene.daemon.admin.list_quotas(request).refused(), Reason::RequestInvalid);
}

/// A text that is given and empty is a mistake, as of a script whose variable is not set. The daemon does not take it for
/// one that was left out.
#[test]
fn empty_texts_are_not_taken_for_absent_ones() {
    let scene = Scene::new();
    let empty = || Some(String::new());
    let message = |refused: Refused| refused.message;

    let named = AllocationSpec { name: empty(), ..spec(MIB) };
    let refused = scene.allocation(named.clone(), Reason::NameInvalid);
    assert!(message(refused).starts_with("name: it is empty."));
    let on = AllocationSpec { device: empty(), ..spec(MIB) };
    let refused = scene.allocation(on.clone(), Reason::DeviceUnknown);
    assert_eq!(message(refused), "device: it is empty. Name a device by its UUID or index, or leave it out");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    for item in [named, on] {
        let load = LoadFileRequest {
            session_id: scene.session.id(),
            item: Some(item),
            fd: file.as_raw_fd().cast_unsigned(),
            ..Default::default()
        };
        let refused = scene.session.memory.load_file(load).refused();
        assert!(message(refused).contains(": it is empty."));
        assert_eq!(scene.daemon.state(), scene.state);
    }

    let admin = &scene.daemon.admin;
    let known = || quota("team-a", "*", "", "1MiB");
    for (request, reason) in [
        (SetQuotaRequest { device: empty(), ..known() }, Reason::DeviceUnknown),
        (SetQuotaRequest { limit: empty(), ..known() }, Reason::QuantityInvalid),
        (SetQuotaRequest { guarantee: empty(), ..known() }, Reason::QuantityInvalid),
        (SetQuotaRequest { tenant: String::new(), ..known() }, Reason::NameInvalid),
    ] {
        scene.unharmed(admin.set_quota(request).refused(), reason);
    }
    let get = GetQuotaRequest { tenant: "team-a".to_owned(), device: empty(), ..Default::default() };
    scene.unharmed(admin.get_quota(get).refused(), Reason::DeviceUnknown);
    // It would delete the quota of every device.
    let delete = DeleteQuotaRequest { tenant: "team-a".to_owned(), device: empty(), ..Default::default() };
    scene.unharmed(admin.delete_quota(delete).refused(), Reason::DeviceUnknown);

    let refusals = [
        admin.list_quotas(ListQuotasRequest { tenant: empty(), ..Default::default() }).refused(),
        admin.list_sessions(ListSessionsRequest { tenant: empty(), ..Default::default() }).refused(),
        admin
            .list_all_allocations(ListAllAllocationsRequest { tenant: empty(), ..Default::default() })
            .refused(),
        admin.list_waits(ListWaitsRequest { tenant: empty(), ..Default::default() }).refused(),
        admin.list_moves(ListMovesRequest { tenant: empty(), ..Default::default() }).refused(),
    ];
    for refused in refusals {
        assert_eq!(refused.is(Reason::NameInvalid).fact("field"), "tenant");
    }
    let zero = ListWaitsRequest { page_size: Some(0), ..Default::default() };
    scene.unharmed(admin.list_waits(zero).refused(), Reason::RequestInvalid);
}
