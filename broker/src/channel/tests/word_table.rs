//! Sessions with a word table, up to the events that the core gets.

use broker_core::Slot;
use broker_driver::Export;
use rustix::fs::SealFlags;

use super::*;
use crate::channel::EvictOutcome;

pub(super) fn hello_with_pins() -> Vec<u8> {
    packet(v1::client_frame::Frame::Hello(v1::Hello { features: u64::MAX, ..hello() }))
}

fn words_mapped_packet() -> Vec<u8> {
    packet(v1::client_frame::Frame::WordsMapped(v1::WordsMapped {}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_table_is_sealed_once_it_is_mapped() {
    let mut daemon = Daemon::start();
    let client = daemon.connect();
    client.send(&hello_with_pins());
    let (channel, said) = daemon.hello().await;
    assert!(said.pins);
    let Some(Export::Memfd(table)) = daemon.channels.word_table(channel) else { panic!() };
    let sealed = |seals| rustix::fs::fcntl_get_seals(&*table).unwrap().contains(seals);
    assert!(sealed(SealFlags::SHRINK | SealFlags::GROW) && !sealed(SealFlags::FUTURE_WRITE));

    client.send(&words_mapped_packet());
    let Event::Frame { frame: ClientFrame::WordsMapped, .. } = daemon.event().await else { panic!() };
    assert!(sealed(SealFlags::FUTURE_WRITE | SealFlags::SEAL));
    assert!(daemon.channels.word_table(channel).is_none(), "the daemon has done with the descriptor");

    client.send(&words_mapped_packet());
    let Event::Malformed { problem, .. } = daemon.event().await else { panic!() };
    assert!(problem.contains("mapped the word table before"), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_words_are_reported() {
    let mut daemon = Daemon::start();
    let client = daemon.connect();
    client.send(&hello_with_pins());
    let (channel, _) = daemon.hello().await;
    let Some(Export::Memfd(table)) = daemon.channels.word_table(channel) else { panic!() };
    let write = |slot: u64, word: u64| {
        rustix::io::pwrite(&*table, &word.to_ne_bytes(), 64 + 16 * slot).unwrap();
    };
    let (mapped, revoke) = (1 << 25, 1 << 26);
    write(0, mapped);
    write(1, mapped | 2);
    write(2, 1 << 40);
    let channels = &daemon.channels;
    assert_eq!(channels.evict(channel, Slot(0)), Ok(EvictOutcome::Revoked));
    assert_eq!(channels.evict(channel, Slot(1)), Ok(EvictOutcome::Pinned));
    assert_eq!(channels.evict(channel, Slot(3)), Ok(EvictOutcome::Leaving));
    for slot in [2, 16, u32::MAX] {
        assert!(channels.evict(channel, Slot(slot)).is_err(), "{slot}");
        assert!(channels.fence(channel, Slot(slot)).is_err(), "{slot}");
        assert!(channels.forget_word(channel, Slot(slot)).is_err(), "{slot}");
    }
    assert!(channels.forget_word(channel, Slot(0)).is_err(), "it is mapped");
    assert_eq!(channels.forget_word(channel, Slot(3)), Ok(()));

    let word = |slot: u64| {
        let mut bytes = [0; 8];
        rustix::io::pread(&*table, &mut bytes, 64 + 16 * slot).unwrap();
        u64::from_ne_bytes(bytes)
    };
    assert_eq!((word(0), word(1), word(3)), (mapped | revoke, mapped | 2, 0));
    assert_eq!(channels.fence(channel, Slot(0)), Ok(()), "it stands already");
    channels.cancel_evict(channel, Slot(0));
    assert_eq!(channels.fence(channel, Slot(1)), Ok(()));
    assert_eq!((word(0), word(1)), (mapped, mapped | revoke | 2));
}
