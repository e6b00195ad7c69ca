use std::{sync::Arc, time::Duration};

use broker_core::{
    AllocationView, Cause, ChannelId, ClientFrame, Command, DaemonFrame, Event, Kind, Lifetime, Notice,
    PartRef, PartUse, PartView, Refusal, Speculation, Tier, Time, WaitEnd,
};
use broker_replay::What;
use vramd_types::{AllocationId, Bytes, DeviceIndex, PartIndex, SessionId};

use super::*;

const CHANNEL: ChannelId = ChannelId(9);

fn id() -> AllocationId {
    AllocationId::from_shown(77_000_077)
}

fn session(number: u64) -> SessionId {
    SessionId::from_shown(number)
}

fn part(number: u32) -> PartRef {
    PartRef { allocation: id(), part: PartIndex(number) }
}

/// An allocation of two parts, of which the second lies in host memory.
fn view(kind: Kind) -> AllocationView {
    let part = |index, tier| PartView {
        index: PartIndex(index),
        offset: Bytes::ZERO,
        size: Bytes::mib(2),
        tier,
        moves_to: None,
        operator_hold: false,
        dropped: false,
        placement: None,
        backing: None,
        mappers: Vec::new(),
    };
    AllocationView {
        id: id(),
        name: "team-a/secret".to_owned(),
        tenant: "team-a".to_owned(),
        device: "GPU-1".to_owned(),
        kind,
        lifetime: Lifetime::Session,
        discardable: false,
        accessed_by_device: false,
        advice: Vec::new(),
        speculation: Speculation::default(),
        as_of: Time::START,
        state: AllocationState::Open,
        size: Bytes::mib(4),
        charged: Bytes::mib(4),
        resident: Bytes::mib(2),
        in_host: Bytes::mib(2),
        on_disk: Bytes::ZERO,
        in_file: Bytes::ZERO,
        file: None,
        unreturned: Bytes::ZERO,
        managed: None,
        digest: None,
        readers: Vec::new(),
        owner: Some(session(1)),
        parts: vec![part(0, Tier::Device), part(1, Tier::Host)],
        mapper_count: 0,
    }
}

/// A recording, and the time since it began.
struct Recorded {
    recording: Recording,
    now: u64,
}

impl Recorded {
    fn new(records_max: usize, kind: Kind) -> Self {
        let mut recording = Recording::new(Time::START, records_max);
        recording.add_allocation(Time::from_micros(0), &view(kind));
        Self { recording, now: 0 }
    }

    fn tick(&mut self) -> Time {
        self.now += 1;
        Time::from_micros(self.now)
    }

    fn event(&mut self, event: &Event) {
        let now = self.tick();
        self.recording.note_event(now, event);
    }

    fn command(&mut self, command: Command) {
        let now = self.tick();
        self.recording.note_command(now, &command);
    }

    fn notice(&mut self, notice: Notice) {
        self.command(Command::Notice(notice));
    }

    fn harvest(&mut self, session: SessionId, number: u32, pinned: bool, written: bool) {
        self.event(&Event::PartsUsed(vec![PartUse { session, part: part(number), pinned, written }]));
    }

    /// Calls for parts, and answers the call.
    fn pin(&mut self, call: u64, numbers: &[u32], refusal: Option<Refusal>) {
        let parts = numbers.iter().copied().map(part).collect();
        let frame = ClientFrame::Pin { call, parts, write: false, wait: None };
        self.event(&Event::Frame { channel: CHANNEL, frame });
        self.command(Command::Send { channel: CHANNEL, frame: DaemonFrame::PinAnswer { call, refusal } });
    }

    /// The lines of the file behind head and allocation, without times.
    fn lines(self) -> Vec<String> {
        let id = id().shown().to_string();
        let file: String = Arc::new(self.recording.finish(End::Stopped)).pieces().collect();
        broker_replay::read(file.as_bytes()).expect("it is read again");
        assert!(!file.contains("secret"), "{file}");
        let lines = file.lines().skip(2).filter(|line| !line.contains("allocate"));
        lines.map(|line| line.split_once(',').unwrap().1.replace(&id, "A")).collect()
    }
}

#[test]
fn granted_call_and_its_harvest_are_one_use() {
    let mut recorded = Recorded::new(100, Kind::Movable);
    recorded.pin(1, &[0, 1], None);
    recorded.harvest(session(1), 0, false, false);
    recorded.harvest(session(1), 0, false, false);
    recorded.pin(2, &[1], Some(Refusal::Draining));
    assert_eq!(recorded.lines(), ["use,A,0", "use,A,1", "use,A,0"]);
}

#[test]
fn part_is_held_while_any_session_keeps_it_pinned() {
    let mut recorded = Recorded::new(100, Kind::Movable);
    recorded.harvest(session(1), 0, true, false);
    recorded.harvest(session(2), 0, true, true);
    recorded.harvest(session(1), 0, false, false);
    recorded.notice(Notice::SessionGone { session: session(2), tenant: "team-a".into() });
    recorded.harvest(session(2), 0, false, false);
    let expected = ["use,A,0", "hold,A,0", "use,A,0", "write,A,0", "release,A,0", "use,A,0"];
    assert_eq!(recorded.lines(), expected);
}

#[test]
fn fixed_memory_is_held_in_parts_that_a_trace_may_have() {
    assert_eq!(Recorded::new(100, Kind::Fixed).lines(), ["hold,A,0"]);
    let mut recorded = Recorded { recording: Recording::new(Time::START, 100), now: 0 };
    let large = AllocationView { size: Bytes::gib(40), ..view(Kind::Fixed) };
    recorded.recording.add_allocation(Time::START, &large);
    let trace = Arc::new(recorded.recording.finish(End::Stopped));
    let trace = broker_replay::read(trace.pieces().collect::<String>().as_bytes()).unwrap();
    let sizes = trace.records.iter().filter_map(|record| match record.what {
        What::Allocate { bytes, .. } => Some(Bytes::new(bytes)),
        _ => None,
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [16, 16, 8].map(Bytes::gib));
}

/// A move of part 1.
fn moved(from: Tier, tier: Tier, copied: bool) -> Notice {
    Notice::Moved {
        part: part(1),
        tenant: "team-a".into(),
        device: DeviceIndex(0),
        from,
        tier,
        bytes: Bytes::mib(2),
        cause: Cause::Demand,
        began: Time::START,
        copied,
        sum: None,
        for_parts: Vec::new(),
    }
}

/// Its words are collected, and no harvest says that its sessions pin it no more.
#[test]
fn part_that_leaves_its_device_is_held_no_longer() {
    let mut recorded = Recorded::new(100, Kind::Movable);
    recorded.harvest(session(1), 1, true, false);
    recorded.harvest(session(2), 1, true, false);
    recorded.notice(moved(Tier::Device, Tier::Host, true));
    recorded.harvest(session(1), 1, true, false);
    let left = ["release,A,1", "evict,A,1,2097152,,,demand copied"];
    let expected = [&["use,A,1", "hold,A,1", "use,A,1"][..], &left, &["use,A,1", "hold,A,1"]].concat();
    assert_eq!(recorded.lines(), expected);
}

#[test]
fn moves_and_waits_are_recorded_until_the_allocation_is_gone() {
    let mut recorded = Recorded::new(100, Kind::Movable);
    let tenant: Arc<str> = "team-a".into();
    recorded.notice(moved(Tier::Host, Tier::Device, true));
    recorded.notice(moved(Tier::Device, Tier::Host, false));
    recorded.notice(moved(Tier::Host, Tier::Disk, true));
    recorded.notice(Notice::PinWaited {
        tenant: Arc::clone(&tenant),
        session: session(1),
        call: 1,
        since: Time::START,
        end: WaitEnd::Served,
    });
    recorded.notice(Notice::AllocationGone { allocation: id(), tenant });
    recorded.notice(moved(Tier::Host, Tier::Device, true));
    recorded.pin(1, &[0], None);
    recorded.harvest(session(1), 0, true, true);
    let expected = ["fetch,A,1,2097152", "evict,A,1,2097152,,,demand clean", "wait,,,,team-a,,4", "free,A"];
    assert_eq!(recorded.lines(), expected);
}

#[test]
fn call_of_an_ended_channel_is_forgotten() {
    let mut recorded = Recorded::new(100, Kind::Movable);
    let frame = ClientFrame::Pin { call: 7, parts: vec![part(0)], write: false, wait: None };
    recorded.event(&Event::Frame { channel: CHANNEL, frame });
    recorded.event(&Event::ChannelEnded { channel: CHANNEL });
    let frame = DaemonFrame::PinAnswer { call: 7, refusal: None };
    recorded.command(Command::Send { channel: CHANNEL, frame });
    assert_eq!(recorded.lines(), [""; 0]);
}

#[test]
fn ended_call_is_a_use_if_granted_and_forgotten_otherwise() {
    let mut recorded = Recorded::new(100, Kind::Movable);
    let granted = DaemonFrame::PinAnswer { call: 7, refusal: None };
    for call in [7, 8] {
        let frame = ClientFrame::Pin { call, parts: vec![part(0)], write: false, wait: None };
        recorded.event(&Event::Frame { channel: CHANNEL, frame });
        recorded.event(&Event::Frame { channel: CHANNEL, frame: ClientFrame::PinEnded { call } });
    }
    recorded.command(Command::Send { channel: CHANNEL, frame: granted });
    assert_eq!(recorded.recording.calls.len(), 1);
    for _ in 0..2 {
        recorded.event(&Event::PartsUsed(Vec::new()));
    }
    assert!(recorded.recording.calls.is_empty());
    assert_eq!(recorded.lines(), ["use,A,0"]);
}

#[test]
fn recording_whose_start_is_abandoned_or_fails_is_none() {
    let recorder = Recorder::new(Clock::start(), 3);
    let limits =
        crate::reactor::InboxLimits { client_requests_max: 1, operator_requests_max: 1, reads_max: 1 };
    let (inbox, queue) = crate::reactor::inbox(limits);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let abandoned = tokio::time::timeout(Duration::from_millis(1), recorder.start(&inbox, None));
        assert!(abandoned.await.is_err());
        assert_eq!(recorder.stop().unwrap_err(), TraceRefusal::NotFound);
        drop(queue);
        assert_eq!(recorder.start(&inbox, None).await, Err(TraceRefusal::Ended));
    });
    assert_eq!(recorder.finished().unwrap_err(), TraceRefusal::NotFound);
    assert!(!recorder.is_recording());
}

#[test]
fn recorder_ends_at_its_bound_and_says_so() {
    let recorder = Recorder::new(Clock::start(), 3);
    let (inbox, _queue) = crate::reactor::inbox(crate::reactor::InboxLimits {
        client_requests_max: 1,
        operator_requests_max: 1,
        reads_max: 1,
    });
    assert_eq!(recorder.finished().unwrap_err(), TraceRefusal::NotFound);
    assert_eq!(recorder.stop().unwrap_err(), TraceRefusal::NotFound);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for bound in [0, 4, u64::MAX] {
        let refused = runtime.block_on(recorder.start(&inbox, Some(bound)));
        assert_eq!(refused, Err(TraceRefusal::Bound { limit: 3 }), "{bound}");
    }
    *recorder.state() = State::Recording(Box::new(Recording::new(Time::START, 3)));
    recorder.0.is_recording.store(true, Ordering::Relaxed);
    assert_eq!(recorder.finished().unwrap_err(), TraceRefusal::Running);
    assert_eq!(runtime.block_on(recorder.start(&inbox, None)), Err(TraceRefusal::Running));
    recorder.with(|recording, now| recording.add_allocation(now, &view(Kind::Movable)));
    assert!(recorder.is_recording());
    let used = PartUse { session: session(1), part: part(0), pinned: true, written: true };
    recorder.note_event(&Event::PartsUsed(vec![used]));
    assert!(!recorder.is_recording());
    let trace = recorder.stop().unwrap();
    assert_eq!((trace.record_count(), trace.is_full()), (3, true));
    assert!(trace.duration() < Duration::from_secs(60));
    let file: String = trace.pieces().collect();
    assert!(file.starts_with("# vramd-trace 1 records=3 end=full\n"), "{file}");
    assert_eq!(broker_replay::read(file.as_bytes()).unwrap().records.len(), 3);
}
