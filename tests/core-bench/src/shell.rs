//! Stands in for everything around the core: the driver, the disk and the clients answer at once and without
//! fault. Exceptions are a few clients that answer nothing and, on request, memory that returns late and copies that
//! take as long as the caller says. So the time measured is that of the core.

use std::collections::{BTreeSet, VecDeque};

use broker_core::{
    Broker, CallId, ChannelId, ClientFrame, Command, Completion, Config, DaemonFrame, DeviceConfig, Event,
    Limits, Notice, PartRef, PrefetchState, Refusal, Reply, StoredQuotas, Tier, Time, UnmappedPart,
    WordsOutcome,
};
use vramd_types::{Bytes, ExtentId, Quantity, SessionId};

use crate::meter::{Meter, Pace};

pub const UUIDS: [&str; 2] =
    ["GPU-00000000-0000-0000-0000-000000000000", "GPU-00000000-0000-0000-0000-000000000001"];

/// One extent in this many is not returned at its release, but with the next survey.
const LATE_ONE_IN: u64 = 509;

/// A copy that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct HeldCopy {
    pub to: ExtentId,
    pub bytes: Bytes,
}

#[derive(Debug)]
pub struct Shell {
    pub broker: Broker,
    pub meter: Meter,
    pub replies: Vec<(CallId, Result<Reply, Refusal>)>,
    pub welcomes: Vec<(ChannelId, SessionId)>,
    /// Clients that answer nothing.
    pub silent: BTreeSet<ChannelId>,
    /// Pin calls that were granted.
    pub pinned: Vec<(ChannelId, u64)>,
    /// Parts that have moved to another tier.
    pub moved: Vec<(PartRef, Tier)>,
    /// Everything that clients were told of their prefetch requests.
    pub prefetches: Vec<(ChannelId, u64, PrefetchState)>,
    /// With `Some`, copies wait here in their order until the caller completes them. Otherwise they end at once.
    pub copies: Option<VecDeque<HeldCopy>>,
    /// One extent in this many is returned late.
    late_one_in: Option<u64>,
    now: Time,
    ready: VecDeque<Event>,
    commands: Vec<Command>,
    late: Vec<Event>,
}

impl Shell {
    pub fn new(pace: Pace) -> Self {
        Self { late_one_in: Some(LATE_ONE_IN), ..Self::with(config(), pace) }
    }

    /// A broker of that configuration, in a world without faults.
    pub fn with(config: Config, pace: Pace) -> Self {
        let mut shell = Self {
            broker: Broker::new(config, StoredQuotas::default(), Time::START),
            meter: Meter::new(pace),
            replies: Vec::new(),
            welcomes: Vec::new(),
            silent: BTreeSet::new(),
            pinned: Vec::new(),
            moved: Vec::new(),
            prefetches: Vec::new(),
            copies: None,
            late_one_in: None,
            now: Time::START,
            ready: VecDeque::new(),
            commands: Vec::new(),
            late: Vec::new(),
        };
        shell.send(Event::Tick);
        shell.drain();
        shell
    }

    pub fn send(&mut self, event: Event) {
        self.ready.push_back(event);
    }

    pub const fn now(&self) -> Time {
        self.now
    }

    /// Ends a copy that was held.
    pub fn end_copy(&mut self, copy: HeldCopy) {
        self.complete(Completion::Copied { to: copy.to, result: Ok(()) });
    }

    /// Advances time. A deadline that is reached is an event.
    pub fn advance(&mut self, micros: u64) {
        self.now = Time::from_micros(self.now.as_micros() + micros);
        if self.broker.next_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.send(Event::Tick);
        }
    }

    /// Hands over ready events and answers the commands, until nothing is left to do.
    pub fn drain(&mut self) {
        while self.step() {}
    }

    /// Hands over one burst. Returns whether there was anything to do.
    pub fn step(&mut self) -> bool {
        let count = self.ready.len().min(self.meter.burst());
        let events: Vec<_> = self.ready.drain(..count).collect();
        let mut commands = std::mem::take(&mut self.commands);
        self.meter.handle(&mut self.broker, self.now, events, &mut commands);
        for command in commands.drain(..) {
            self.execute(command);
        }
        self.commands = commands;
        count > 0
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Reply { call, outcome } => self.replies.push((call, outcome)),
            Command::Send { channel, frame } => self.deliver_frame(channel, frame),
            Command::CreateExtent { extent, .. } | Command::OpenExtent { extent, .. } => {
                self.complete(Completion::Created { extent, result: Ok(()) })
            }
            Command::ReleaseExtent { extent } => {
                let returned = self.late_one_in.is_none_or(|every| extent.get() % every != 0);
                self.complete(Completion::Released { extent, returned });
                if !returned {
                    self.late.push(Event::Completion(Completion::Returned { extent }));
                }
            }
            Command::Digest { allocation, .. } => {
                self.complete(Completion::Digested { allocation, result: Ok([7; 32]) });
            }
            Command::Survey { device, .. } => {
                self.complete(Completion::Surveyed {
                    device,
                    unbrokered: Bytes::ZERO,
                    contexts: 0,
                    host_missing: Bytes::ZERO,
                });
                self.ready.extend(self.late.drain(..));
            }
            Command::StoreQuotas(_) => self.send(Event::QuotasStored { result: Ok(()) }),
            Command::CloseChannel { channel } | Command::ForgetProcess { channel } => {
                _ = self.silent.remove(&channel)
            }
            Command::RevokeWords { part, .. } => {
                self.complete(Completion::WordsRevoked { part, outcome: WordsOutcome::Revoked });
            }
            Command::Copy { to, bytes, .. } => match &mut self.copies {
                Some(held) => held.push_back(HeldCopy { to, bytes }),
                None => self.complete(Completion::Copied { to, result: Ok(()) }),
            },
            Command::Notice(Notice::Moved { part, tier, .. }) => self.moved.push((part, tier)),
            // No operator writes back or cancels here.
            Command::ClearWritten { .. } | Command::ForgetWord { .. } => {}
            Command::CancelCopy { .. }
            | Command::HastenCopy { .. }
            | Command::ShareLinks(_)
            | Command::ReleaseNow { .. } => {}
            Command::KillProcess { .. } | Command::Notice(_) => {}
        }
    }

    fn complete(&mut self, completion: Completion) {
        self.send(Event::Completion(completion));
    }

    fn deliver_frame(&mut self, channel: ChannelId, frame: DaemonFrame) {
        if self.silent.contains(&channel) {
            return;
        }
        let frame = match frame {
            DaemonFrame::Welcome { session, .. } => return self.welcomes.push((channel, session)),
            DaemonFrame::Map(parts) => ClientFrame::Mapped(parts.iter().map(|part| part.part).collect()),
            DaemonFrame::Revoke { parts, .. } => ClientFrame::Unmapped(
                parts
                    .into_iter()
                    .map(|told| UnmappedPart { part: told.part, failure: None, written: true })
                    .collect(),
            ),
            DaemonFrame::Prefetch { number, state } => return self.prefetches.push((channel, number, state)),
            DaemonFrame::PinAnswer { call, refusal: None } => return self.pinned.push((channel, call)),
            DaemonFrame::PinAnswer { .. }
            | DaemonFrame::Lost(_)
            | DaemonFrame::Refused(_)
            | DaemonFrame::Drain { .. }
            | DaemonFrame::Pressure(_)
            | DaemonFrame::Sequence { .. }
            | DaemonFrame::WorkingSet { .. }
            | DaemonFrame::Turn { .. }
            | DaemonFrame::ManagedOrders { .. } => return,
        };
        self.send(Event::Frame { channel, frame });
    }
}

/// The default limits, except the number of extents, so that a million fit, and the times, which are a
/// thousandth so that they are reached.
pub fn config() -> Config {
    let usual = Limits::default();
    let limits = Limits {
        extents_max: 4_000_000,
        map_answer_timeout: usual.map_answer_timeout / 1000,
        revoke_answer_timeout: usual.revoke_answer_timeout / 1000,
        unmap_answer_timeout: usual.unmap_answer_timeout / 1000,
        survey_interval: usual.survey_interval / 1000,
        ..usual
    };
    let room = Bytes::new(1 << 50);
    let device = |uuid: &str| DeviceConfig {
        uuid: uuid.to_owned(),
        name: "sim".to_owned(),
        total: room,
        share: room,
        host: Bytes::ZERO,
        disk: Bytes::ZERO,
        context_bytes: Bytes::mib(512),
        maps_host: true,
        makes_fixed: true,
    };
    Config {
        boot_epoch: 1,
        devices: UUIDS.map(device).to_vec(),
        part_size: Bytes::mib(256),
        default_limit: Quantity::Percent(100),
        default_host_limit: Quantity::Percent(100),
        default_disk_limit: Quantity::Percent(100),
        sessions_reserved: 8,
        // Counts of all commits are with it: the policies themselves have the benchmark `order`.
        eviction: broker_core::EvictionPolicy::Lru,
        victim_script: Vec::new(),
        check_clean_backings: false,
        files: false,
        pressure: broker_core::PressureBounds::default(),
        shares: vramd_types::Shares::default(),
        tenants: std::collections::BTreeMap::new(),
        limits,
    }
}
