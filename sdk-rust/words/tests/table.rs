//! The table as bytes: what the daemon lays out, what a client will open, and where both end.

use std::sync::atomic::Ordering;

use vramd_words::{
    AtomicU64, DEFAULT_SLOTS, Daemon, HEADER_WORDS, Header, MAGIC, OpenError, TooSmall, bytes_for, open,
};

const HEADER: Header = Header { major: 3, minor: 4, features: 0b101, slots: 2 };

fn memory(words: usize) -> Vec<AtomicU64> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn header_is_64_bytes_that_describe_the_table() {
    let memory = memory(HEADER_WORDS + 4);
    Daemon::create(&memory[..], HEADER).unwrap();
    let words: Vec<u64> = memory.iter().map(|word| word.load(Ordering::SeqCst)).collect();
    assert_eq!(words, [MAGIC, 3 << 32 | 4, 0b101, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&words[0].to_ne_bytes(), b"VRAMDWRD");
}

#[test]
fn client_reads_the_header_of_the_daemon() {
    let memory = memory(HEADER_WORDS + 4);
    Daemon::create(&memory[..], HEADER).unwrap();
    let (client, _) = open(&memory[..], 3).unwrap();
    assert_eq!(client.header(), HEADER);
}

#[test]
fn default_table_takes_a_mebibyte_and_its_header() {
    assert_eq!(bytes_for(DEFAULT_SLOTS), 64 + (1 << 20));
    assert_eq!(bytes_for(0), 64);
}

#[test]
fn memory_that_is_too_small_is_refused_unwritten() {
    let memory = memory(HEADER_WORDS + 3);
    assert_eq!(Daemon::create(&memory[..], HEADER).unwrap_err(), TooSmall { needed_bytes: 96, bytes: 88 });
    assert!(memory.iter().all(|word| word.load(Ordering::SeqCst) == 0));
}

#[test]
fn memory_without_a_table_is_not_opened() {
    assert_eq!(open(&memory(0)[..], 3).unwrap_err(), OpenError::Magic(0));
    assert_eq!(open(&memory(99)[..], 3).unwrap_err(), OpenError::Magic(0));
}

#[test]
fn only_another_major_is_refused_with_both_numbers() {
    let memory = memory(HEADER_WORDS + 4);
    Daemon::create(&memory[..], HEADER).unwrap();
    assert_eq!(open(&memory[..], 2).unwrap_err(), OpenError::Major { ours: 2, theirs: 3 });
    memory[1].store(3 << 32 | 9, Ordering::SeqCst);
    assert_eq!(open(&memory[..], 3).unwrap().0.header().minor, 9);
}

#[test]
fn header_with_too_many_slots_is_refused() {
    let memory = memory(HEADER_WORDS + 5);
    Daemon::create(&memory[..], HEADER).unwrap();
    for promised in [3, u64::from(u32::MAX), 1 << 32, u64::MAX] {
        memory[3].store(promised, Ordering::SeqCst);
        assert_eq!(open(&memory[..], 3).unwrap_err(), OpenError::Slots { promised, room: 2 });
    }
}

#[test]
fn no_view_reaches_beyond_the_last_slot() {
    // There is memory behind the second slot, and it is not the table's.
    let memory = memory(HEADER_WORDS + 8);
    let daemon = Daemon::create(&memory[..], HEADER).unwrap();
    let (client, worker) = open(&memory[..], 3).unwrap();
    for index in [0, 1] {
        assert!(client.slot(index).is_some() && worker.slot(index).is_some() && daemon.slot(index).is_some());
    }
    for index in [2, 3, u32::MAX] {
        assert!(client.slot(index).is_none() && worker.slot(index).is_none() && daemon.slot(index).is_none());
    }
}

#[test]
fn later_write_to_the_header_moves_no_bound() {
    let memory = memory(HEADER_WORDS + 8);
    let daemon = Daemon::create(&memory[..], HEADER).unwrap();
    memory[3].store(4, Ordering::SeqCst);
    assert!(daemon.slot(2).is_none());
}
