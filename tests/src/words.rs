//! A session's word table without an SDK, in which a test's client writes anything, valid or not.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use vramd_proto::channel::PROTOCOL_MAJOR;
use vramd_words::{Client, ClientSlot, HEADER_WORDS, SLOT_WORDS, Worker, WorkerSlot, bytes_for};

use crate::mapping::Mapping;

#[derive(Debug)]
pub struct WordTable {
    memory: Memory,
    client: Client<Memory>,
    worker: Worker<Memory>,
}

#[derive(Clone, Debug)]
struct Memory(Arc<Mapping>);

impl AsRef<[AtomicU64]> for Memory {
    fn as_ref(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

impl WordTable {
    /// Maps the table that came with the welcome.
    #[track_caller]
    pub fn map(fd: &OwnedFd, slots: u32) -> Self {
        let mapping = Mapping::new(fd.as_fd(), bytes_for(slots), 0, true).expect("a word table maps");
        let memory = Memory(Arc::new(mapping));
        let (client, worker) = vramd_words::open(memory.clone(), PROTOCOL_MAJOR).expect("the header is good");
        assert_eq!(client.header().slots, slots);
        Self { memory, client, worker }
    }

    #[track_caller]
    pub fn client(&self, slot: u32) -> ClientSlot<'_> {
        self.client.slot(slot).expect("the daemon names slots that there are")
    }

    #[track_caller]
    pub fn worker(&self, slot: u32) -> WorkerSlot<'_> {
        self.worker.slot(slot).expect("the daemon names slots that there are")
    }

    pub fn read(&self, slot: u32) -> u64 {
        self.word(slot).load(Ordering::SeqCst)
    }

    /// Overwrites the word.
    pub fn write(&self, slot: u32, word: u64) {
        self.word(slot).store(word, Ordering::SeqCst);
    }

    /// The whole table, as it is mapped.
    pub fn words(&self) -> &[AtomicU64] {
        self.memory.as_ref()
    }

    fn word(&self, slot: u32) -> &AtomicU64 {
        &self.memory.as_ref()[HEADER_WORDS + SLOT_WORDS * slot as usize]
    }
}
