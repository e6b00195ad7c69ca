//! Tests of revokes during copies.

use std::{
    sync::{Arc, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use vramd_proto::v1::{Access, PartRef, Revoke, RevokeReason, client_frame, daemon_frame::Frame};
use vramd_types::AllocationId;

use super::{Label, Mode, Table};
use crate::{
    channel::fake::{Fake, PATIENCE, arrived, memory, part, part_ref, soon},
    error::{Error, Result},
};

const COPIED: u64 = 7;
const IDLE: u64 = 8;

fn id(raw: u64) -> AllocationId {
    AllocationId::from_raw(raw)
}

fn unmapped(fake: &Fake) -> Vec<PartRef> {
    let Some(client_frame::Frame::Unmapped(answer)) = fake.next() else { panic!("something is unmapped") };
    answer.parts.into_iter().filter_map(|part| part.part).collect()
}

fn first_byte(table: &Table, of: u64) -> Result<u8> {
    let mut byte = [0];
    table.copy_pinned(id(of), 1, Some(Access::ReadWrite), |window| window.read(0, &mut byte))?;
    Ok(byte[0])
}

/// No guard exists, but a thread has a pin that it is about to give back: by a slot that changed its part, or of a set that it
/// cannot complete. That part stays mapped, and the session lives.
#[test]
fn unmap_leaves_a_transiently_pinned_part_to_the_daemon() {
    let fake = Fake::start(Mode::Map);
    fake.table.claim(id(COPIED), Label::default()).unwrap();
    let parts = [0, 1].map(|index| part(COPIED, index, 2, Access::ReadWrite)).to_vec();
    fake.map(parts, &[memory("halfway", 1), memory("halfway", 2)]);
    fake.next().unwrap();
    let slot = fake.table.slots(id(COPIED), 1..2)[0].1;
    let view = fake.table.view();
    view.slot(slot).unwrap().pin(vramd_words::Access::Read).unwrap();
    let let_go = || {
        let channel = fake.link.lock_channel();
        channel.report(fake.table.unmap(id(COPIED), true).unwrap()).unwrap();
    };
    let_go();
    assert_eq!(unmapped(&fake), [part_ref(COPIED, 0)]);
    assert_eq!(first_byte_of_last_part(&fake.table), 2, "it is there");
    assert!(fake.table.claim(id(COPIED), Label::default()).is_err(), "until it is gone");

    fake.revoke(part_ref(COPIED, 1), RevokeReason::Freed);
    // A later answer shows that the revoke was seen and not answered.
    fake.map(vec![part(IDLE, 0, 1, Access::ReadWrite)], &[memory("later", 3)]);
    assert!(matches!(fake.next(), Some(client_frame::Frame::Mapped(_))));
    assert_eq!(fake.table.mapped_count(id(COPIED), None), 1);
    let unpinned = view.slot(slot).unwrap().unpin();
    fake.table.wake_if(matches!(unpinned, Ok(vramd_words::Unpinned::WakeWorker)));
    assert_eq!(unmapped(&fake), [part_ref(COPIED, 1)]);
    assert_eq!((fake.table.base(id(COPIED)), fake.table.ending()), (None, None));
    fake.table.claim(id(COPIED), Label::default()).unwrap();
}

fn first_byte_of_last_part(table: &Table) -> u8 {
    let mut byte = [0];
    let offset = usize::try_from(crate::channel::fake::PART).unwrap();
    table.window(id(COPIED)).unwrap().read(offset, &mut byte).unwrap();
    byte[0]
}

/// The copied allocation is unmapped when its copy ends and accepts no new copy meanwhile, so a program that copies again and
/// again cannot keep the daemon waiting. The idle allocation is unmapped at once.
#[test]
fn revoke_waits_for_the_copy_of_one_allocation_only() {
    let fake = Fake::start(Mode::Map);
    for (raw, fill) in [(COPIED, 1), (IDLE, 2)] {
        fake.table.claim(id(raw), Label::default()).unwrap();
        fake.map(vec![part(raw, 0, 1, Access::ReadWrite)], &[memory("copying", fill)]);
        fake.next().unwrap();
        fake.table.wait(arrived(id(raw), 1, Access::ReadWrite), soon()).unwrap();
        assert_eq!(first_byte(&fake.table, raw).unwrap(), fill);
    }
    let ((begun, is_begun), (go_on, may_go_on)) = (channel(), channel());
    let table = Arc::clone(&fake.table);
    let copy = thread::spawn(move || {
        let mut bytes = [0; 4096];
        let outcome = table.copy_pinned(id(COPIED), 1, None, |window| {
            begun.send(()).unwrap();
            may_go_on.recv_timeout(PATIENCE).unwrap();
            window.read(0, &mut bytes)
        });
        outcome.map(|()| bytes)
    });
    is_begun.recv_timeout(PATIENCE).unwrap();

    let parts: Vec<PartRef> = [COPIED, IDLE].map(|raw| part_ref(raw, 0)).to_vec();
    fake.send(Frame::Revoke(Revoke { parts, reason: RevokeReason::Freed.into() }), &[]);
    for raw in [COPIED, IDLE] {
        let deadline = soon();
        while let Ok(byte) = first_byte(&fake.table, raw) {
            assert!(byte > 0 && Instant::now() < deadline, "new copies are refused");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(first_byte(&fake.table, raw), Err(Error::NotMapped { allocation: id(raw).to_string() }));
    }
    assert_eq!(unmapped(&fake), [part_ref(IDLE, 0)]);
    assert_eq!([COPIED, IDLE].map(|raw| fake.table.mapped_count(id(raw), None)), [1, 0]);
    go_on.send(()).unwrap();
    assert_eq!(copy.join().unwrap(), Ok([1; 4096]), "the copy was of mapped memory to its end");
    assert_eq!(unmapped(&fake), [part_ref(COPIED, 0)]);
    assert_eq!([COPIED, IDLE].map(|raw| fake.table.mapped_count(id(raw), None)), [0, 0]);
}
