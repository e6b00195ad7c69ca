//! The view of each side of a table, and the effect of its steps on memory.

use std::sync::Arc;

use vramd_words::{
    Access, AtomicU64, Client, Daemon, Evict, Fence, HEADER_WORDS, Header, InvalidWord, LastUse, NotMappable,
    NotPinned, NotUnmappable, PinRefused, State, Unpinned, Waiting, Word, Worker, WriteBack, open, pin_set,
};

type Memory = Arc<[AtomicU64]>;

const MAPPED: u64 = 1 << 25;
const REVOKE: u64 = 1 << 26;
const UNMAPPING: u64 = 1 << 27;
const WRITTEN: u64 = 1 << 24;
const READER: Waiting = Waiting { readers: 1, writers: 0 };
const WRITER: Waiting = Waiting { readers: 0, writers: 1 };
const NOBODY: Waiting = Waiting { readers: 0, writers: 0 };

/// Both sides of a table of three slots.
struct Sides {
    memory: Memory,
    daemon: Daemon<Memory>,
    client: Client<Memory>,
    worker: Worker<Memory>,
}

impl Sides {
    fn new() -> Sides {
        let memory: Memory = (0..HEADER_WORDS + 6).map(|_| AtomicU64::new(0)).collect();
        let header = Header { major: 1, minor: 2, features: 5, slots: 3 };
        let daemon = Daemon::create(memory.clone(), header).unwrap();
        let (client, worker) = open(memory.clone(), 1).unwrap();
        Sides { memory, daemon, client, worker }
    }

    /// Sets slot 0 to a state.
    fn with(word: u64) -> Sides {
        let sides = Sides::new();
        sides.poke(word);
        sides
    }

    fn poke(&self, word: u64) {
        self.memory[HEADER_WORDS].store(word, std::sync::atomic::Ordering::SeqCst);
    }

    fn word(&self) -> u64 {
        self.memory[HEADER_WORDS].load(std::sync::atomic::Ordering::SeqCst)
    }
}

#[test]
fn part_passes_through_all_its_states() {
    let sides = Sides::new();
    let (daemon, client, worker) =
        (sides.daemon.slot(0).unwrap(), sides.client.slot(0).unwrap(), sides.worker.slot(0).unwrap());
    assert_eq!(client.pin(Access::Write), Err(PinRefused::NeedsFrame));
    worker.set_mapped(WRITER).unwrap();
    assert_eq!(daemon.state(), Ok(State::Resident { pins: 1 }));
    client.pin(Access::Read).unwrap();
    assert_eq!(daemon.revoke_to_evict(), Ok(Evict::StillPinned));
    assert_eq!(client.unpin(), Ok(Unpinned::Done));
    assert_eq!(daemon.revoke_to_fence(), Ok(Fence::Revoked { pins: 1 }));
    assert_eq!(worker.begin_unmap_revoked().unwrap_err(), NotUnmappable::Pinned);
    client.pin(Access::Read).unwrap();
    assert_eq!(client.unpin(), Ok(Unpinned::Done));
    assert_eq!(client.unpin(), Ok(Unpinned::WakeWorker));
    assert_eq!(client.pin(Access::Read), Err(PinRefused::NeedsFrame));
    let unmapping = worker.begin_unmap_revoked().unwrap();
    assert_eq!(daemon.state(), Ok(State::Unmapping));
    assert!(unmapping.finish(), "written by the call that waited");
    assert_eq!(daemon.is_written(), Ok(true));
    assert_eq!(daemon.collect_written(), Ok(true));
    assert_eq!((daemon.is_written(), sides.word()), (Ok(false), 0));
}

#[test]
fn evict_sets_revoke_only_without_pins() {
    let cases = [
        (MAPPED, Evict::Revoked, MAPPED | REVOKE),
        (MAPPED | WRITTEN, Evict::Revoked, MAPPED | WRITTEN | REVOKE),
        (MAPPED | 1, Evict::StillPinned, MAPPED | 1),
        (0, Evict::Leaving, 0),
        (WRITTEN, Evict::Leaving, WRITTEN),
        (UNMAPPING | WRITTEN, Evict::Leaving, UNMAPPING | WRITTEN),
    ];
    for (before, outcome, after) in cases {
        let sides = Sides::with(before);
        assert_eq!(sides.daemon.slot(0).unwrap().revoke_to_evict(), Ok(outcome), "{before:#x}");
        assert_eq!(sides.word(), after, "{before:#x}");
    }
}

#[test]
fn fence_sets_revoke_on_every_mapped_part() {
    let cases = [
        (MAPPED, Fence::Revoked { pins: 0 }, MAPPED | REVOKE),
        (MAPPED | 7, Fence::Revoked { pins: 7 }, MAPPED | REVOKE | 7),
        (0, Fence::Leaving, 0),
        (UNMAPPING, Fence::Leaving, UNMAPPING),
    ];
    for (before, outcome, after) in cases {
        let sides = Sides::with(before);
        assert_eq!(sides.daemon.slot(0).unwrap().revoke_to_fence(), Ok(outcome), "{before:#x}");
        assert_eq!(sides.word(), after, "{before:#x}");
    }
}

#[test]
fn invalid_word_is_reported_and_left_unchanged() {
    for word in [1, MAPPED | UNMAPPING, 1 << 40, REVOKE, Word::FORKED.raw()] {
        let sides = Sides::with(word);
        let slot = sides.daemon.slot(0).unwrap();
        let impossible = InvalidWord(Word::from_raw(word));
        assert_eq!(slot.revoke_to_evict(), Err(impossible));
        assert_eq!(slot.revoke_to_fence(), Err(impossible));
        assert_eq!(slot.begin_write_back(), Err(impossible));
        assert_eq!(slot.is_written(), Err(impossible));
        assert_eq!(slot.collect_written(), Err(impossible));
        assert_eq!(slot.state(), Err(impossible));
        assert_eq!(sides.word(), word);
    }
}

#[test]
fn second_revoke_means_that_the_client_set_the_first() {
    let sides = Sides::with(MAPPED | REVOKE);
    let slot = sides.daemon.slot(0).unwrap();
    let impossible = InvalidWord(Word::from_raw(MAPPED | REVOKE));
    assert_eq!((slot.revoke_to_evict(), slot.revoke_to_fence()), (Err(impossible), Err(impossible)));
    assert_eq!(sides.word(), MAPPED | REVOKE);
}

#[test]
fn write_back_begins_only_without_pins() {
    let cases = [
        (MAPPED | WRITTEN, WriteBack::Begun, MAPPED),
        (MAPPED, WriteBack::Begun, MAPPED),
        (MAPPED | WRITTEN | 1, WriteBack::Stopped, MAPPED | WRITTEN | 1),
        (MAPPED | WRITTEN | REVOKE, WriteBack::Stopped, MAPPED | WRITTEN | REVOKE),
        (WRITTEN, WriteBack::Stopped, WRITTEN),
        (UNMAPPING | WRITTEN, WriteBack::Stopped, UNMAPPING | WRITTEN),
    ];
    for (before, outcome, after) in cases {
        let sides = Sides::with(before);
        assert_eq!(sides.daemon.slot(0).unwrap().begin_write_back(), Ok(outcome), "{before:#x}");
        assert_eq!(sides.word(), after, "{before:#x}");
    }
}

#[test]
fn only_an_absent_word_is_collected() {
    let sides = Sides::with(MAPPED | WRITTEN);
    assert!(sides.daemon.slot(0).unwrap().collect_written().is_err());
    assert_eq!(sides.word(), MAPPED | WRITTEN);
}

#[test]
fn written_mark_survives_unmap_and_map() {
    let sides = Sides::with(MAPPED | WRITTEN);
    let worker = sides.worker.slot(0).unwrap();
    assert!(worker.begin_unmap().unwrap().finish());
    assert_eq!(sides.word(), WRITTEN);
    worker.set_mapped(READER).unwrap();
    assert_eq!(sides.word(), MAPPED | WRITTEN | 1);
}

#[test]
fn worker_maps_only_absent_parts() {
    for word in [MAPPED, UNMAPPING, MAPPED | REVOKE] {
        let sides = Sides::with(word);
        let refused = NotMappable::NotAbsent(Word::from_raw(word));
        assert_eq!(sides.worker.slot(0).unwrap().set_mapped(NOBODY), Err(refused));
        assert_eq!(sides.word(), word);
    }
}

#[test]
fn worker_pins_a_mapped_part_for_waiting_calls() {
    let sides = Sides::with(MAPPED);
    let worker = sides.worker.slot(0).unwrap();
    worker.pin_waiting(Waiting { readers: 2, writers: 1 }).unwrap();
    assert_eq!(sides.word(), MAPPED | WRITTEN | 3);
    sides.poke(MAPPED | REVOKE);
    assert_eq!(worker.pin_waiting(READER), Err(PinRefused::NeedsFrame));
}

#[test]
fn worker_unmaps_after_a_frame_or_by_itself() {
    let sides = Sides::with(MAPPED);
    let worker = sides.worker.slot(0).unwrap();
    assert_eq!(worker.begin_unmap_revoked().unwrap_err(), NotUnmappable::NotRevoked);
    assert!(!worker.begin_unmap().unwrap().finish());
    assert_eq!(worker.begin_unmap().unwrap_err(), NotUnmappable::Leaving);
    assert_eq!(worker.begin_unmap_revoked().unwrap_err(), NotUnmappable::Leaving);
    sides.poke(MAPPED | REVOKE);
    assert!(!worker.begin_unmap().unwrap().finish(), "freed while the frame is on its way");
    assert_eq!(sides.word(), 0);
}

#[test]
fn revoke_that_crosses_an_unmap_leaves_no_mark() {
    let sides = Sides::with(MAPPED);
    let unmapping = sides.worker.slot(0).unwrap().begin_unmap().unwrap();
    sides.poke(sides.word() | REVOKE);
    assert!(!unmapping.finish());
    assert_eq!(sides.word(), 0);
}

#[test]
fn word_stays_unmapping_when_the_driver_refuses() {
    let sides = Sides::with(MAPPED | WRITTEN);
    drop(sides.worker.slot(0).unwrap().begin_unmap().unwrap());
    assert_eq!(sides.word(), UNMAPPING | WRITTEN);
    assert_eq!(sides.client.slot(0).unwrap().pin(Access::Read), Err(PinRefused::NeedsFrame));
}

#[test]
fn revoke_is_forgotten_after_the_channel_ends() {
    let sides = Sides::with(MAPPED | REVOKE | WRITTEN);
    let client = sides.client.slot(0).unwrap();
    assert_eq!(client.pin(Access::Read), Err(PinRefused::NeedsFrame));
    sides.worker.slot(0).unwrap().forget_revoke();
    client.pin(Access::Read).unwrap();
    assert_eq!(sides.word(), MAPPED | WRITTEN | 1);
}

#[test]
fn surplus_unpin_is_an_error_and_changes_nothing() {
    for word in [0, MAPPED, MAPPED | REVOKE, UNMAPPING] {
        let sides = Sides::with(word);
        assert_eq!(sides.client.slot(0).unwrap().unpin(), Err(NotPinned::NoPins));
        assert_eq!(sides.word(), word);
    }
}

#[test]
fn full_word_takes_no_pin() {
    let full = MAPPED | u64::from(Word::PINS_MAX);
    let sides = Sides::with(full);
    assert_eq!(sides.client.slot(0).unwrap().pin(Access::Write), Err(PinRefused::Saturated));
    assert_eq!(sides.word(), full);
}

#[test]
fn forked_child_cannot_pin_and_drops_guards() {
    let sides = Sides::with(Word::FORKED.raw());
    let client = sides.client.slot(0).unwrap();
    assert_eq!(client.pin(Access::Read), Err(PinRefused::Forked));
    assert_eq!(client.unpin(), Err(NotPinned::Forked));
    assert_eq!(sides.word(), Word::FORKED.raw());
}

#[test]
fn set_is_pinned_whole_or_not_at_all() {
    let sides = Sides::new();
    let slot = |index| sides.client.slot(index).unwrap();
    for index in [0, 2] {
        sides.worker.slot(index).unwrap().set_mapped(NOBODY).unwrap();
    }
    let set = [(slot(0), Access::Write), (slot(2), Access::Read), (slot(1), Access::Read)];
    let refused = pin_set(&set).unwrap_err();
    assert_eq!((refused.reason, refused.unpinned), (PinRefused::NeedsFrame, Unpinned::Done));
    let state = |index| sides.daemon.slot(index).unwrap().state();
    assert_eq!(
        [state(0), state(1), state(2)].map(Result::unwrap),
        [State::Resident { pins: 0 }, State::Absent, State::Resident { pins: 0 }]
    );
    assert_eq!(sides.word(), MAPPED | WRITTEN, "a write pin that was given back still counts as a write");
    pin_set(&set[..2]).unwrap();
    assert_eq!([state(0), state(2)].map(Result::unwrap), [State::Resident { pins: 1 }; 2]);
}

#[test]
fn uses_count_and_wrap() {
    let sides = Sides::new();
    let (client, daemon) = (sides.client.slot(1).unwrap(), sides.daemon.slot(1).unwrap());
    assert_eq!(daemon.last_use(), LastUse::default());
    client.record_use(7);
    client.record_use(u32::MAX);
    assert_eq!(daemon.last_use(), LastUse { tick: u32::MAX, uses: 2 });
    sides.memory[HEADER_WORDS + 3].store(u64::MAX, std::sync::atomic::Ordering::SeqCst);
    client.record_use(1);
    assert_eq!(daemon.last_use(), LastUse { tick: 1, uses: 0 });
}

#[test]
fn clock_is_read_at_every_eighth_use() {
    let sides = Sides::new();
    let (client, daemon) = (sides.client.slot(0).unwrap(), sides.daemon.slot(0).unwrap());
    let mut read = 0;
    for clock in 101..125 {
        client.record_use_with(|| {
            read += 1;
            clock
        });
    }
    assert_eq!(read, 3);
    assert_eq!(daemon.last_use(), LastUse { tick: 117, uses: 24 });
}
