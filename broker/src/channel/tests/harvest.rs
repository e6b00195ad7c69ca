//! Harvests of a live session, and of one that has ended.

use broker_core::{DaemonFrame, MapPart, PartRef, PartUse, Slot};
use broker_driver::{Export, SharedFd};
use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, PartIndex, SessionId};

use super::{word_table::hello_with_pins, *};
use crate::{harvest::Harvest, reactor::Queue};

const EVERY: Duration = Duration::from_millis(5);
const MAPPED: u64 = 1 << 25;

fn part(part: u32) -> PartRef {
    PartRef { allocation: AllocationId::from_shown(7), part: PartIndex(part) }
}

fn map(index: u32, slot: u32) -> DaemonFrame {
    let size = Bytes::mib(2);
    DaemonFrame::Map(vec![MapPart {
        part: part(index),
        extent: ExtentId::from_raw(1),
        device: DeviceIndex(0),
        offset: Bytes::ZERO,
        size,
        span: size,
        writable: true,
        slot: Some(Slot(slot)),
        drop_count: 0,
    }])
}

async fn next(queue: &mut Queue) -> Event {
    match tokio::time::timeout(TIMEOUT, queue.next()).await.expect("an event") {
        Some(Message::Event(event)) => event,
        other => panic!("{other:?}"),
    }
}

/// The client's end of its table.
struct Table(Arc<SharedFd>);

impl Table {
    fn write(&self, slot: u64, words: [u64; 2]) {
        let bytes = words.map(u64::to_ne_bytes).concat();
        assert_eq!(rustix::io::pwrite(&*self.0, &bytes, 64 + 16 * slot), Ok(bytes.len()));
    }
}

async fn open(daemon: &mut Daemon, harvest: &Harvest, session: u64) -> (Client, ChannelId, Table) {
    let client = daemon.connect();
    client.send(&hello_with_pins());
    let (channel, _) = daemon.hello().await;
    let Some(Export::Memfd(table)) = daemon.channels.word_table(channel) else { panic!() };
    let session = SessionId::from_shown(session);
    let welcome = DaemonFrame::Welcome { session, tenant: String::new(), devices: vec![], slots: 16 };
    harvest.note_frame(channel, &welcome);
    (client, channel, Table(table))
}

fn touched(session: u64, index: u32, pinned: bool) -> PartUse {
    PartUse { session: SessionId::from_shown(session), part: part(index), pinned, written: false }
}

async fn reported(queue: &mut Queue) -> Vec<PartUse> {
    match next(queue).await {
        Event::PartsUsed(parts) => parts,
        other => panic!("{other:?}"),
    }
}

/// Waits for two harvests that see only a change of the first slot of this table. The second harvest begins after this
/// call.
async fn two_harvests(queue: &mut Queue, beat: &Table) {
    for pinned in [true, false] {
        beat.write(0, [MAPPED | u64::from(pinned), 0]);
        assert_eq!(reported(queue).await, [touched(9, 9, pinned)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn uses_are_reported_once_until_slot_or_channel_is_gone() {
    let mut daemon = Daemon::start();
    let (to_reactor, mut queue) = inbox(InboxLimits::default());
    let harvest = Harvest::start(Arc::clone(&daemon.channels), to_reactor, EVERY).unwrap();
    let (_stays, beating, beat) = open(&mut daemon, &harvest, 9).await;
    harvest.note_frame(beating, &map(9, 0));
    let (client, channel, table) = open(&mut daemon, &harvest, 3).await;

    table.write(0, [0, 4 << 32]);
    harvest.note_frame(channel, &map(0, 0));
    harvest.note_frame(channel, &map(1, 1));
    table.write(1, [MAPPED | 1, 0]);
    assert_eq!(
        reported(&mut queue).await,
        [touched(3, 1, true)],
        "uses before the part had the slot are not reported"
    );
    table.write(0, [MAPPED, 5 << 32]);
    assert_eq!(reported(&mut queue).await, [touched(3, 0, false)]);
    two_harvests(&mut queue, &beat).await;

    harvest.forget_slot(channel, Slot(0));
    two_harvests(&mut queue, &beat).await;
    table.write(0, [MAPPED | 7, 9 << 32]);
    two_harvests(&mut queue, &beat).await;
    table.write(1, [MAPPED, 0]);
    assert_eq!(reported(&mut queue).await, [touched(3, 1, false)]);

    drop(client);
    until_over(&daemon, channel).await;
    two_harvests(&mut queue, &beat).await;
    table.write(1, [MAPPED | 1, 0]);
    two_harvests(&mut queue, &beat).await;

    beat.write(0, [1 << 40, 0]);
    let Event::Malformed { channel: broken, problem } = next(&mut queue).await else { panic!() };
    assert!(broken == beating && problem.contains("no honest client"), "{problem}");
}

/// Regression test: a part was pinned when the core asked, and unpinned before the next harvest. The core never asked
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn a_pin_found_between_two_harvests_is_reported_when_it_ends() {
    let mut daemon = Daemon::start();
    let (to_reactor, mut queue) = inbox(InboxLimits::default());
    let harvest = Harvest::start(Arc::clone(&daemon.channels), to_reactor, EVERY).unwrap();
    let (_stays, beating, beat) = open(&mut daemon, &harvest, 9).await;
    harvest.note_frame(beating, &map(9, 0));
    let (_client, channel, table) = open(&mut daemon, &harvest, 3).await;
    harvest.note_frame(channel, &map(0, 0));
    table.write(0, [MAPPED, 0]);
    two_harvests(&mut queue, &beat).await;

    harvest.note_pinned(channel, Slot(0));
    assert_eq!(reported(&mut queue).await, [touched(3, 0, false)], "its pin came and went");
    table.write(0, [MAPPED | 1, 0]);
    assert_eq!(reported(&mut queue).await, [touched(3, 0, true)]);
    harvest.note_pinned(channel, Slot(0));
    harvest.note_pinned(channel, Slot(7));
    two_harvests(&mut queue, &beat).await;
}

async fn until_over(daemon: &Daemon, channel: ChannelId) {
    let over = async {
        while daemon.channels.read_words(channel, |_| ()).is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, over).await.expect("the channel is over");
}
