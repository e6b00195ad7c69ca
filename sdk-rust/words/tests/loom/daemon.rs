//! The daemon: the mapper set, the place and the backing of one part, as the core keeps them.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use loom::sync::mpsc::Receiver;
use vramd_words::{Daemon, DaemonSlot, Evict, Fence, State, Word, WriteBack};

use crate::form::Form;
use crate::step::{self, Step};
use crate::world::{Memory, ToDaemon, ToWorker, World};

const WRITTEN: u64 = 1 << 24;
const REVOKE: u64 = 1 << 26;

/// Whether the session maps the part, as far as frames say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mapper {
    No,
    MapSent,
    Mapped,
    RevokeSent,
    /// It unmaps on its own account: no frame was sent, and `unmapped` is coming.
    Leaving,
}

pub(crate) struct Broker {
    world: Arc<World>,
    words: Daemon<Memory>,
    mapper: Mapper,
    /// The extent of the part; `None` if it lies in the host.
    extent: Option<usize>,
    next_extent: usize,
    host: u64,
    /// Whether `host` is a clean copy of the extent, as far as is known before the word is read.
    shadow: bool,
    /// To be copied out once no session maps it.
    moving: bool,
    /// A call waits for the part.
    wanted: bool,
    /// The session answered too late.
    silent: bool,
    /// The content of the last `unmapped`.
    told_written: bool,
    sealed: bool,
}

impl Broker {
    /// A part that lies in the host.
    pub(crate) fn new(world: Arc<World>, words: Daemon<Memory>, host: u64) -> Broker {
        Broker {
            world,
            words,
            mapper: Mapper::No,
            extent: None,
            next_extent: 0,
            host,
            shadow: true,
            moving: false,
            wanted: false,
            silent: false,
            told_written: false,
            sealed: false,
        }
    }

    pub(crate) fn seal(&mut self) {
        self.sealed = true;
    }

    /// Fetches the part before any caller asks.
    pub(crate) fn prefetch(&mut self) {
        self.map();
    }

    pub(crate) fn run(mut self, inbox: &Receiver<ToDaemon>) -> u64 {
        loop {
            match inbox.recv().unwrap() {
                ToDaemon::Finish => break,
                message => self.handle(message),
            }
        }
        self.drain(inbox);
        self.world.tell_worker(ToWorker::Stop);
        self.host
    }

    /// No caller is left, so the part must be evicted without resistance.
    fn drain(&mut self, inbox: &Receiver<ToDaemon>) {
        while self.extent.is_some() {
            match self.mapper {
                Mapper::No => self.copy_out(),
                Mapper::Mapped => {
                    self.evict();
                    assert_ne!(self.mapper, Mapper::Mapped, "a pin was left behind");
                }
                Mapper::MapSent | Mapper::RevokeSent | Mapper::Leaving => {
                    self.moving = true;
                    self.handle(inbox.recv().unwrap());
                }
            }
        }
        assert_eq!(self.slot().state(), Ok(State::Absent), "the word of an unmapped part");
    }

    pub(crate) fn handle(&mut self, message: ToDaemon) {
        match message {
            ToDaemon::Pin => self.pin(),
            ToDaemon::Mapped => self.mapped(),
            ToDaemon::Unmapped { written } => self.unmapped(written),
            ToDaemon::Evict => self.evict(),
            ToDaemon::Fence => self.fence(),
            ToDaemon::WriteBack { fails } => self.write_back(fails),
            ToDaemon::Deadline => self.deadline(),
            ToDaemon::Finish => unreachable!("handled before"),
        }
    }

    fn pin(&mut self) {
        match self.mapper {
            Mapper::No => self.map(),
            Mapper::Mapped => self.world.tell_worker(ToWorker::Resident),
            Mapper::MapSent => self.wanted = true,
            Mapper::RevokeSent | Mapper::Leaving => {
                self.wanted = true;
                self.moving = false;
            }
        }
    }

    fn map(&mut self) {
        let extent = *self.extent.get_or_insert_with(|| {
            self.next_extent += 1;
            self.world.extents[self.next_extent - 1].store(self.host, Relaxed);
            self.world.truth().owned = Some(self.next_extent - 1);
            self.next_extent - 1
        });
        (self.mapper, self.wanted) = (Mapper::MapSent, false);
        self.world.tell_worker(ToWorker::Map { extent });
    }

    fn mapped(&mut self) {
        let fits = self.mapper == Mapper::MapSent;
        assert!(fits || self.world.is(Form::RollBackWithTwoAnswers), "an answer that does not fit");
        self.mapper = Mapper::Mapped;
        if std::mem::take(&mut self.wanted) {
            self.world.tell_worker(ToWorker::Resident);
        }
    }

    /// True at any time.
    fn unmapped(&mut self, written: bool) {
        if self.silent && self.world.is(Form::LateAnswerIgnored) {
            return;
        }
        (self.mapper, self.told_written) = (Mapper::No, written);
        if self.wanted {
            self.map();
        } else if self.moving {
            self.copy_out();
        }
    }

    fn evict(&mut self) {
        if self.world.is(Form::AbsentTakenForUnmapped)
            && self.extent.is_some()
            && self.slot().state() == Ok(State::Absent)
        {
            return self.copy_out();
        }
        match self.mapper {
            Mapper::No if self.extent.is_some() => self.copy_out(),
            Mapper::Mapped => match self.slot().revoke_to_evict().unwrap() {
                Evict::Revoked => self.send_revoke(),
                Evict::StillPinned => {}
                Evict::Leaving => (self.mapper, self.moving) = (Mapper::Leaving, true),
            },
            Mapper::No | Mapper::MapSent | Mapper::RevokeSent | Mapper::Leaving => {}
        }
    }

    fn fence(&mut self) {
        match self.mapper {
            Mapper::Mapped => match self.slot().revoke_to_fence().unwrap() {
                Fence::Revoked { .. } => self.send_revoke(),
                Fence::Leaving => (self.mapper, self.moving) = (Mapper::Leaving, true),
            },
            Mapper::No | Mapper::MapSent | Mapper::RevokeSent | Mapper::Leaving => self.evict(),
        }
    }

    fn send_revoke(&mut self) {
        (self.mapper, self.moving) = (Mapper::RevokeSent, true);
        self.world.tell_worker(ToWorker::Revoke);
    }

    /// The move is cancelled; the revoke stands.
    fn deadline(&mut self) {
        if self.mapper != Mapper::RevokeSent {
            return;
        }
        self.moving = false;
        self.silent = true;
        if self.world.is(Form::RollBackAfterFrame) || self.world.is(Form::RollBackWithTwoAnswers) {
            self.world.bare().fetch_and(!REVOKE, AcqRel);
            self.mapper = Mapper::Mapped;
        }
    }

    fn write_back(&mut self, fails: bool) {
        let (Some(extent), Mapper::Mapped) = (self.extent, self.mapper) else { return };
        if !self.world.is(Form::OldShadowKept) {
            self.shadow = false;
        }
        if self.begin_write_back() == WriteBack::Begun && !fails {
            self.host = self.world.extents[extent].load(Relaxed);
            self.shadow = true;
        }
    }

    fn begin_write_back(&self) -> WriteBack {
        if let Some(order) = self.world.ordering(Step::BeginWriteBack) {
            let begun = step::take(self.world.bare(), order, |word| word.begin_write_back().ok_or(()));
            return if begun.is_ok() { WriteBack::Begun } else { WriteBack::Stopped };
        }
        if !self.world.is(Form::WriteBackInTwoSteps) {
            return self.slot().begin_write_back().unwrap();
        }
        let word = Word::from_raw(self.world.bare().load(Acquire));
        if word.state() != Some(State::Resident { pins: 0 }) {
            return WriteBack::Stopped;
        }
        self.world.bare().fetch_and(!WRITTEN, AcqRel);
        WriteBack::Begun
    }

    /// No session maps it any more: the last read of the word decides whether the backing is clean.
    fn copy_out(&mut self) {
        self.check_unused();
        let written = self.slot().collect_written().unwrap();
        assert_eq!(written, self.told_written, "the frame and the word say different things");
        let written = written && (!self.sealed || self.world.is(Form::ReadersWrittenBelieved));
        let extent = self.extent.take().unwrap();
        if written || !self.shadow {
            self.host = self.world.extents[extent].load(Relaxed);
        }
        self.check_unused();
        (self.shadow, self.moving) = (true, false);
        self.world.truth().owned = None;
    }

    fn check_unused(&self) {
        let truth = self.world.truth();
        assert_eq!((truth.mapped, truth.pins), (None, 0), "copied out while in use");
    }

    fn slot(&self) -> DaemonSlot<'_> {
        self.words.slot(0).unwrap()
    }
}
