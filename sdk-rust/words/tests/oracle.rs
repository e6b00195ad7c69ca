//! Random steps of all sides, one at a time, against an oracle that knows no bits: the words must say what it says.
//!
//! The model (`tests/loom`) covers threads; this test finds a step that is wrong by itself, in random orders. A seed
//! is a walk.

use std::sync::Arc;

use vramd_words::{
    Access, AtomicU64, Client, Daemon, Evict, Fence, HEADER_WORDS, Header, NotMappable, NotPinned,
    NotUnmappable, PinRefused, State, Unpinned, Waiting, Word, Worker, WriteBack, open, pin_set,
};

const SEEDS: u64 = 2_000;
const STEPS: u32 = 200;
const SLOTS: u32 = 2;

/// One part, described without bits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Part {
    mapped: bool,
    unmapping: bool,
    wanted_back: bool,
    written: bool,
    pins: u64,
}

impl Part {
    fn state(self) -> State {
        let pins = u32::try_from(self.pins).unwrap();
        match (self.mapped, self.unmapping, self.wanted_back) {
            (false, true, _) => State::Unmapping,
            (false, false, _) => State::Absent,
            (true, _, false) => State::Resident { pins },
            (true, _, true) => State::Revoking { pins },
        }
    }

    fn pin(&mut self, readers: u64, writers: u64) -> Result<(), PinRefused> {
        if !self.mapped || (self.wanted_back && self.pins == 0) {
            return Err(PinRefused::NeedsFrame);
        }
        if self.pins + readers + writers > u64::from(Word::PINS_MAX) {
            return Err(PinRefused::Saturated);
        }
        self.pins += readers + writers;
        self.written |= writers > 0;
        Ok(())
    }

    fn unpin(&mut self) -> Result<Unpinned, NotPinned> {
        if self.pins == 0 {
            return Err(NotPinned::NoPins);
        }
        self.pins -= 1;
        Ok(if self.pins == 0 && self.wanted_back { Unpinned::WakeWorker } else { Unpinned::Done })
    }

    fn unmap(&mut self, by_frame: bool) -> Result<(), NotUnmappable> {
        match *self {
            Part { mapped: false, .. } => Err(NotUnmappable::Leaving),
            Part { wanted_back: false, .. } if by_frame => Err(NotUnmappable::NotRevoked),
            Part { pins: 1.., .. } => Err(NotUnmappable::Pinned),
            _ => {
                *self = Part { unmapping: true, written: self.written, ..Part::default() };
                Ok(())
            }
        }
    }
}

struct Walk {
    random: u64,
    daemon: Daemon<Arc<[AtomicU64]>>,
    client: Client<Arc<[AtomicU64]>>,
    worker: Worker<Arc<[AtomicU64]>>,
    parts: [Part; SLOTS as usize],
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let words = HEADER_WORDS + 2 * SLOTS as usize;
        let memory: Arc<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let header = Header { major: 1, minor: 0, features: 0, slots: SLOTS };
        let daemon = Daemon::create(memory.clone(), header).unwrap();
        let (client, worker) = open(memory, 1).unwrap();
        Walk { random: seed, daemon, client, worker, parts: [Part::default(); SLOTS as usize] }
    }

    /// `SplitMix64`: below `bound`.
    fn draw(&mut self, bound: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(bound)).unwrap()
    }

    fn access(&mut self) -> Access {
        if self.draw(2) == 0 { Access::Read } else { Access::Write }
    }

    /// Few calls mostly; now and then as many as fill a word, or one too many.
    fn waiting(&mut self) -> Waiting {
        let readers = if self.draw(8) == 0 { Word::PINS_MAX - self.draw(2) } else { self.draw(3) };
        Waiting { readers, writers: self.draw(2) }
    }

    fn step(&mut self) {
        let at = self.draw(SLOTS);
        match self.draw(13) {
            0..=5 => self.client_step(at),
            6..=8 => self.worker_step(at),
            _ => self.daemon_step(at),
        }
    }

    fn client_step(&mut self, at: u32) {
        let (kind, access) = (self.draw(6), self.access());
        let part = &mut self.parts[at as usize];
        match kind {
            0..=2 => {
                let expected =
                    part.pin(u64::from(access == Access::Read), u64::from(access == Access::Write));
                assert_eq!(self.client.slot(at).unwrap().pin(access), expected);
            }
            3..=4 => assert_eq!(self.client.slot(at).unwrap().unpin(), part.unpin()),
            _ => self.pin_both(),
        }
    }

    fn worker_step(&mut self, at: u32) {
        let (kind, waiting) = (self.draw(7), self.waiting());
        let (by_frame, driver_refuses) = (self.draw(2) == 0, self.draw(32) == 0);
        let part = &mut self.parts[at as usize];
        let slot = self.worker.slot(at).unwrap();
        match kind {
            0..=1 if part.state() == State::Absent => {
                part.mapped = true;
                let expected = part.pin(waiting.readers.into(), waiting.writers.into());
                part.mapped = expected.is_ok();
                assert_eq!(slot.set_mapped(waiting), expected.map_err(|_| NotMappable::Saturated));
            }
            0..=1 => assert!(matches!(slot.set_mapped(waiting), Err(NotMappable::NotAbsent(_)))),
            2..=3 => {
                let expected = part.pin(waiting.readers.into(), waiting.writers.into());
                assert_eq!(slot.pin_waiting(waiting), expected);
            }
            4..=5 => {
                let begun = if by_frame { slot.begin_unmap_revoked() } else { slot.begin_unmap() };
                match (begun, part.unmap(by_frame)) {
                    (Ok(_stays), Ok(())) if driver_refuses => {}
                    (Ok(unmapping), Ok(())) => {
                        assert_eq!(unmapping.finish(), part.written);
                        part.unmapping = false;
                    }
                    (begun, expected) => assert_eq!(begun.map(drop), expected),
                }
            }
            _ => {
                slot.forget_revoke();
                part.wanted_back = false;
            }
        }
    }

    fn daemon_step(&mut self, at: u32) {
        let kind = self.draw(4);
        let part = &mut self.parts[at as usize];
        let slot = self.daemon.slot(at).unwrap();
        match kind {
            0 | 1 if part.wanted_back => {
                assert!(slot.revoke_to_evict().is_err() && slot.revoke_to_fence().is_err());
            }
            0 => {
                let expected = match (part.mapped, part.pins) {
                    (false, _) => Evict::Leaving,
                    (true, 0) => Evict::Revoked,
                    (true, _) => Evict::StillPinned,
                };
                assert_eq!(slot.revoke_to_evict(), Ok(expected));
                part.wanted_back = expected == Evict::Revoked;
            }
            1 => {
                let pins = u32::try_from(part.pins).unwrap();
                let expected = if part.mapped { Fence::Revoked { pins } } else { Fence::Leaving };
                assert_eq!(slot.revoke_to_fence(), Ok(expected));
                part.wanted_back = part.mapped;
            }
            2 => {
                let free = part.state() == State::Resident { pins: 0 };
                let expected = if free { WriteBack::Begun } else { WriteBack::Stopped };
                assert_eq!(slot.begin_write_back(), Ok(expected));
                part.written &= !free;
            }
            _ if part.state() == State::Absent => {
                assert_eq!(slot.collect_written(), Ok(part.written));
                part.written = false;
            }
            _ => assert!(slot.collect_written().is_err()),
        }
    }

    fn pin_both(&mut self) {
        let access = [self.access(), self.access()];
        let set: Vec<_> = (0..SLOTS).map(|at| (self.client.slot(at).unwrap(), access[at as usize])).collect();
        let taken = pin_set(&set);
        let mut expected = Ok(());
        for (at, access) in (0..).zip(access) {
            expected =
                self.parts[at].pin(u64::from(access == Access::Read), u64::from(access == Access::Write));
            if expected.is_err() {
                for before in &mut self.parts[..at] {
                    assert_eq!(before.unpin(), Ok(Unpinned::Done));
                }
                break;
            }
        }
        assert_eq!(taken.map_err(|refused| refused.reason), expected);
    }

    fn check(&self) {
        for (at, part) in (0..).zip(self.parts) {
            let slot = self.daemon.slot(at).unwrap();
            assert_eq!((slot.state(), slot.is_written()), (Ok(part.state()), Ok(part.written)));
        }
    }
}

#[test]
fn random_steps_agree_with_the_oracle() {
    for seed in 0..SEEDS {
        let walked = std::panic::catch_unwind(|| {
            let mut walk = Walk::new(seed);
            for _ in 0..STEPS {
                walk.step();
                walk.check();
            }
        });
        assert!(walked.is_ok(), "seed {seed}");
    }
}

#[test]
fn walks_reach_every_state() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let mut walk = Walk::new(seed);
        for _ in 0..STEPS {
            walk.step();
            let part = walk.parts[0];
            let pins = if part.pins == u64::from(Word::PINS_MAX) { 2 } else { part.pins.min(1) };
            seen.insert((part.mapped, part.unmapping, part.wanted_back, part.written, pins));
        }
    }
    // Absent and unmapping, each written or not; resident and revoking, each also with none, some and all pins, where
    // all of them can be readers'.
    assert_eq!(seen.len(), 4 + 12, "{seen:?}");
}
