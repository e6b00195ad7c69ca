//! File-backed allocations: a file that never changes is the backing of their parts, and costs nothing.

use std::sync::Arc;

use crate::world::{
    Client, World, config, file_content, key,
    moving::{moved, to},
    named, persistent,
    revoking::{answer, part},
    spec,
    writing_back::{clean, write_back},
};
use broker_core::{
    AllocationSpec, AllocationState, AllocationView, ClientFrame, ClientRequest, Command, Config,
    CreateError, Event, FileId, FileSpan, Kind, PartMove, Refusal, Reply, StoredQuotas, Target, Tier,
    limits::FILE_LOADS_PER_TENANT_MAX,
};
use vramd_types::{AllocationId, Bytes};

const FILE: FileId = FileId(3);

/// A world with a device of this size, and nothing below it but files.
fn node(mib: u32) -> World {
    World::with(Config { files: true, ..config(&[Bytes::mib(mib)]) }, StoredQuotas::default())
}

fn load(spec: AllocationSpec, offset: Bytes) -> ClientRequest {
    ClientRequest::Load { spec, file: FileSpan { file: FILE, path: Arc::from("/models/m"), offset } }
}

fn loaded(world: &mut World, client: Client, spec: AllocationSpec) -> AllocationId {
    match world.call(client, load(spec, Bytes::ZERO)).expect("loaded") {
        Reply::Sealed(view) => view.id,
        other => panic!("not sealed: {other:?}"),
    }
}

fn show(world: &World, id: AllocationId) -> AllocationView {
    world.broker.show(&Target::Id(id)).expect("it is there")
}

fn attach(world: &mut World, client: Client, id: AllocationId) -> Result<Reply, Refusal> {
    world.call(client, ClientRequest::Attach(Target::Id(id)))
}

fn free(world: &mut World, client: Client, id: AllocationId) {
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
    world.run_until_idle();
}

#[test]
fn loaded_allocation_is_sealed_lies_in_its_file_and_costs_nothing() {
    let mut world = node(8);
    let client = world.open_pinning("a");
    // More than the device has.
    let Reply::Sealed(view) = world.call(client, load(named(30, "m"), Bytes::new(100))).expect("loaded")
    else {
        panic!()
    };
    assert_eq!((view.state, view.digest), (AllocationState::Sealed, Some([7; 32])));
    assert_eq!((view.charged, view.resident, view.on_disk), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO));
    assert_eq!((view.in_file, view.file.as_deref()), (Bytes::mib(30), Some("/models/m")));
    assert_eq!((world.charged(), world.charged_on_disk(), view.mapper_count), (Bytes::ZERO, Bytes::ZERO, 0));
    free(&mut world, client, view.id);
    assert!(world.in_files.is_empty() && world.broker.show(&Target::Id(view.id)).is_err());
}

#[test]
fn each_part_has_its_piece_of_the_file_and_the_last_has_the_rest() {
    let mut world = node(8);
    let client = world.open_pinning("a");
    let size = Bytes::mib(9).saturating_add(Bytes::new(5));
    world.start(client, None, load(AllocationSpec { size, ..spec(1) }, Bytes::new(100)));
    let pieces: Vec<_> = world
        .work
        .iter()
        .map(|work| match work {
            Command::OpenExtent { file: FILE, offset, bytes, size, .. } => (*offset, *bytes, *size),
            other => panic!("{other:?}"),
        })
        .collect();
    let whole = |at: u64| (Bytes::new(100 + (at << 20)), Bytes::mib(4), Bytes::mib(4));
    let rest = (Bytes::new(100 + (8 << 20)), Bytes::new((1 << 20) + 5), Bytes::mib(2));
    assert_eq!(pieces, [whole(0), whole(4), rest]);
}

#[test]
fn file_backed_part_is_fetched_by_a_pin_and_leaves_without_a_copy() {
    let mut world = node(8);
    let client = world.open_pinning("a");
    let id = loaded(&mut world, client, spec(12));
    world.call(client, ClientRequest::AttachUnpinned(Target::Id(id))).expect("attached");
    for (call, index) in (1..).zip([0, 1, 2, 0, 2]) {
        let part = part(id, index);
        world.pin_call(client, call, &[part]);
        let mut copied = Vec::new();
        while world.work_once() || world.answer_once(client.channel) {
            copied.extend(world.work.iter().filter_map(|work| match work {
                Command::Copy { from, .. } => Some(*from),
                _ => None,
            }));
        }
        assert!(
            copied.iter().all(|from| world.in_files.contains(from)),
            "nothing is copied out of the device"
        );
        assert_eq!(answer(&world, client, call), Some(&None), "{index}");
        assert_eq!(world.read(client, part), file_content(FILE, Bytes::mib(4 * index)));
        world.frame(client, ClientFrame::PinEnded { call });
    }
    assert_eq!((world.charged(), clean(&world, "a")), (Bytes::mib(8), Bytes::mib(8)));
    let view = show(&world, id);
    assert_eq!((view.resident, view.charged, view.in_file), (Bytes::mib(8), Bytes::mib(8), Bytes::mib(4)));
}

#[test]
fn attach_fetches_a_loaded_allocation() {
    let mut world = node(8);
    let (owner, reader) = (world.open_pinning("a"), world.open("a"));
    let id = loaded(&mut world, owner, named(8, "m"));
    attach(&mut world, reader, id).expect("there is room");
    assert_eq!(world.read(reader, part(id, 1)), file_content(FILE, Bytes::mib(4)));
    // The owner maps it no sooner than others.
    assert!(!world.maps(owner, part(id, 0)));
    attach(&mut world, owner, id).expect("it is there");
    assert!(world.maps(owner, part(id, 0)));
    assert_eq!(world.charged_to("a"), Bytes::mib(8));
}

#[test]
fn loaded_allocation_outlives_its_session() {
    let mut world = node(8);
    let (owner, next) = (world.open_pinning("a"), world.open("a"));
    let id = loaded(&mut world, owner, persistent(4, "m"));
    let gone = loaded(&mut world, owner, named(4, "n"));
    world.end_process(owner);
    assert!(world.broker.show(&Target::Id(gone)).is_err());
    world.call(next, ClientRequest::Attach(Target::Name("m".to_owned()))).expect("attached");
    assert_eq!(world.read(next, part(id, 0)), file_content(FILE, Bytes::ZERO));
}

#[test]
fn unreadable_file_is_refused() {
    let mut world = node(8);
    let client = world.open_pinning("a");
    let call = world.start(client, None, load(named(8, "m"), Bytes::ZERO));
    let Some(Command::OpenExtent { extent, .. }) = world.work.back() else { panic!() };
    world.damaged.insert(*extent);
    world.run_until_idle();
    let refused = world.replies.remove(&call).expect("an answer");
    let lost = |refusal: &Refusal| matches!(refusal, Refusal::ContentLost { part, .. } if part.0 == 1);
    assert!(refused.as_ref().is_err_and(lost), "{refused:?}");
    assert!(world.in_files.is_empty());
    world.fail_creates.extend([None, Some(CreateError::Failed("no such file".to_owned()))]);
    let refused = world.call(client, load(named(8, "m"), Bytes::ZERO)).expect_err("it is gone");
    assert!(matches!(refused, Refusal::DriverFailed { .. }), "{refused:?}");
    assert!(world.in_files.is_empty());
    loaded(&mut world, client, named(8, "m"));
}

#[test]
fn changed_file_loses_the_changed_part_alone() {
    let mut world = node(16);
    let client = world.open_pinning("a");
    let id = loaded(&mut world, client, spec(8));
    let Some(changed) = world.in_files.last().copied() else { panic!() };
    world.damaged.insert(changed);
    world.call(client, ClientRequest::AttachUnpinned(Target::Id(id))).expect("attached");
    world.pin_call(client, 1, &[part(id, 1)]);
    world.run_until_idle();
    assert!(matches!(answer(&world, client, 1), Some(Some(Refusal::ContentLost { .. }))));
    world.pin_call(client, 2, &[part(id, 0)]);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 2), Some(&None));
}

#[test]
fn free_or_session_end_during_a_load_leaves_nothing() {
    for dies in [false, true] {
        let mut world = node(8);
        let client = world.open_pinning("a");
        let call = world.start(client, None, load(spec(4), Bytes::ZERO));
        world.work_once();
        assert!(matches!(world.work.front(), Some(Command::Digest { .. })));
        let id =
            world.broker.list_allocations(None, None, 10).0.first().map(|view| view.id).expect("it is there");
        match dies {
            true => world.event(Event::ProcessEnded { channel: client.channel }),
            false => {
                world.start(client, None, ClientRequest::FreeBatch(vec![id]));
            }
        }
        assert!(matches!(world.replies.get(&call), Some(Err(_))), "{:?}", world.replies);
        world.run_until_idle();
        assert!(world.in_files.is_empty());
        assert!(world.broker.show(&Target::Id(id)).is_err());
    }
}

#[test]
fn file_backed_part_moved_to_the_host_is_charged_there() {
    let mut node = config(&[Bytes::mib(8)]);
    (node.files, node.devices[0].host) = (true, Bytes::mib(8));
    let mut world = World::with(node, StoredQuotas::default());
    let client = world.open_pinning("a");
    let id = loaded(&mut world, client, spec(4));
    assert!(matches!(moved(world.operate(to(id, Tier::Disk))), PartMove::Moved));
    assert!(matches!(moved(world.operate(to(id, Tier::Device))), PartMove::Moved));
    assert!(matches!(write_back(&mut world, part(id, 0)), PartMove::Moved), "its file has it already");
    assert!(matches!(moved(world.operate(to(id, Tier::Disk))), PartMove::Moved));
    assert_eq!(
        (world.charged(), world.charged_in_host(), world.in_files.len()),
        (Bytes::ZERO, Bytes::ZERO, 1)
    );
    assert!(matches!(moved(world.operate(to(id, Tier::Host))), PartMove::Moved));
    assert_eq!(
        (world.charged_in_host(), world.in_files.len()),
        (Bytes::mib(4), 0),
        "its file is of no use then"
    );
    assert_eq!(show(&world, id).file, None);
    let nowhere = world.operate(to(id, Tier::Disk)).expect_err("there is no disk");
    assert_eq!(nowhere, Refusal::TierUnsupported { tier: Tier::Disk });
    world.call(client, ClientRequest::AttachUnpinned(Target::Id(id))).expect("attached");
    world.pin_call(client, 1, &[part(id, 0)]);
    world.run_until_idle();
    assert_eq!(world.read(client, part(id, 0)), file_content(FILE, Bytes::ZERO));
}

#[test]
fn repeated_load_is_done_once() {
    let mut world = node(8);
    let client = world.open_pinning("a");
    let first = world.start(client, key(1, 1), load(spec(4), Bytes::ZERO));
    let again = world.start(client, key(1, 1), load(spec(4), Bytes::ZERO));
    world.run_until_idle();
    let late = world.start(client, key(1, 1), load(spec(4), Bytes::ZERO));
    let id = |call| match world.replies.get(&call) {
        Some(Ok(Reply::Sealed(view))) => view.id,
        other => panic!("{other:?}"),
    };
    assert_eq!((id(first), id(first)), (id(again), id(late)));
    assert_eq!(world.in_files.len(), 1);
}

#[test]
fn invalid_loads_are_refused() {
    let mut world = node(8);
    let client = world.open_pinning("a");
    let mut refuse =
        |spec: AllocationSpec, offset| world.call(client, load(spec, offset)).expect_err("refused");
    let field = |refusal: &Refusal| match refusal {
        Refusal::RequestInvalid { field, .. } | Refusal::SizeInvalid { field, .. } => *field,
        other => panic!("{other:?}"),
    };
    let fixed = AllocationSpec { kind: Kind::Fixed, ..spec(4) };
    assert_eq!(field(&refuse(fixed, Bytes::ZERO)), "kind");
    let lossy = AllocationSpec { discardable: true, ..spec(4) };
    assert_eq!(field(&refuse(lossy, Bytes::ZERO)), "discardable");
    assert_eq!(field(&refuse(spec(4), Bytes::MAX)), "offset_bytes");
    assert_eq!(field(&refuse(AllocationSpec { size: Bytes::ZERO, ..spec(4) }, Bytes::ZERO)), "size_bytes");
    loaded(&mut world, client, named(4, "m"));
    let taken = world.call(client, load(named(4, "m"), Bytes::ZERO)).expect_err("taken");
    assert!(matches!(taken, Refusal::NameTaken { .. }));
    let replaces = AllocationSpec { replace: true, ..named(4, "m") };
    loaded(&mut world, client, replaces);
    let mut without = World::new(8);
    let client = without.open_pinning("a");
    let refused = without.call(client, load(spec(4), Bytes::ZERO)).expect_err("no files");
    assert!(matches!(refused, Refusal::FileMutable { .. }));
}

#[test]
fn tenant_has_a_bounded_number_of_files_read_at_once() {
    let mut world = node(8);
    let (client, other) = (world.open_pinning("a"), world.open_pinning("b"));
    let calls: Vec<_> = (0..FILE_LOADS_PER_TENANT_MAX)
        .map(|_| world.start(client, None, load(spec(4), Bytes::ZERO)))
        .collect();
    let more = |world: &mut World, client| {
        let call = world.start(client, None, load(spec(4), Bytes::ZERO));
        world.replies.remove(&call)
    };
    let full =
        |answer: &Option<Result<Reply, Refusal>>| matches!(answer, Some(Err(Refusal::QueueFull { .. })));
    assert!(full(&more(&mut world, client)));
    assert!(more(&mut world, other).is_none(), "it is another's");
    // They are being read now, and one that is freed is read to its end.
    (0..FILE_LOADS_PER_TENANT_MAX + 1).for_each(|_| assert!(world.work_once()));
    let first =
        world.broker.list_allocations(Some("a"), None, 1).0.first().map(|view| view.id).expect("it is there");
    world.start(client, None, ClientRequest::FreeBatch(vec![first]));
    assert!(full(&more(&mut world, client)));
    world.run_until_idle();
    assert!(matches!(world.replies.get(&calls[1]), Some(Ok(Reply::Sealed(_)))));
    loaded(&mut world, client, spec(4));
}

#[test]
fn cached_extents_are_released_for_the_extents_of_a_load() {
    let mut config = Config { files: true, ..config(&[Bytes::mib(32)]) };
    (config.limits.extents_max, config.limits.cached_bytes_per_tenant_max) = (6, Bytes::mib(16));
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let cached = world.allocate(client, spec(16)).expect("room");
    free(&mut world, client, cached);
    let refused = world.call(client, load(spec(12), Bytes::ZERO)).expect_err("there are too many");
    assert!(matches!(refused, Refusal::AllocationsTooMany { limit: 6, .. }), "{refused:?}");
    loaded(&mut world, client, spec(12));
}
