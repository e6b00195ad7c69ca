//! The broker: all state, and the methods that drive it.
//!
//! The effects of events are in `handler`, in one folder per subject. The tables that the handlers call
//! (`ledger`, `residency`, `migration`, `pool`, `tenancy`) are the only writers of their own rows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, IdSource, SessionId};

use crate::{
    command::{Command, Notice},
    config::Config,
    event::{Event, PartRef, Tier},
    eviction::{EvictionPolicy, Residents},
    follow_up::FollowUps,
    handler::{AwaitedRoom, FdBudget, QuotaQueue, Surveys, Timer},
    invariants,
    ledger::{Ledger, Place, Quota, QuotaDevice, QuotaTable},
    migration::{Backings, Line, Migrations, WriteBacks},
    observed::Transitions,
    pool::Pool,
    pressure::PressureState,
    residency::{AllocationTable, Revocations},
    settings::Settings,
    tenancy::{OpTable, PinTable, RequestLog, SessionTable, TenantId, Tenants},
    time::Time,
    view::StoredQuotas,
};

/// The state machine. The crate's documentation says how to drive it.
#[derive(Debug)]
pub struct Broker {
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) draining: bool,
    pub(crate) tenants: Tenants,
    pub(crate) ledger: Ledger,
    pub(crate) sessions: SessionTable,
    pub(crate) allocations: AllocationTable,
    pub(crate) pool: Pool,
    pub(crate) ops: OpTable,
    pub(crate) pins: PinTable,
    pub(crate) revocations: Revocations,
    pub(crate) migrations: Migrations,
    pub(crate) write_backs: WriteBacks,
    /// Parts and batches that wait for room on devices.
    pub(crate) line: Line,
    /// The backing of each part that lies on its device.
    pub(crate) backings: Backings,
    pub(crate) residents: Residents,
    /// Parts in host memory, in the order of their last use.
    pub(crate) idle_on_host: Residents,
    pub(crate) pressure_state: PressureState,
    /// The settings in force.
    pub(crate) settings: Settings,
    /// When the cache is scanned next for extents to release.
    pub(crate) cache_scan_at: Option<Time>,
    /// How often each discardable part was dropped.
    pub(crate) drop_counts: BTreeMap<PartRef, u64>,
    /// Parts under an operator hold: they stay on their devices.
    pub(crate) operator_holds: BTreeSet<PartRef>,
    /// Tenants whose charge on a device exceeds their limit there.
    pub(crate) over_limit: BTreeSet<(TenantId, DeviceIndex)>,
    /// Sessions that wait for a part that they attached to arrive on its device.
    pub(crate) attach_waiters: BTreeMap<PartRef, BTreeSet<SessionId>>,
    /// Parts that a device must no longer access in host memory, and that may still be mapped there.
    pub(crate) in_place_to_unmap: BTreeSet<PartRef>,
    /// Extents of an allocation that none of its parts lies in: destinations of moves, backings, and extents
    /// that parts have left.
    pub(crate) detached_extents: BTreeMap<AllocationId, BTreeSet<ExtentId>>,
    pub(crate) follow_ups: FollowUps,
    /// How many mappings are in the state `Evicting`.
    pub(crate) evicting: usize,
    /// Requests of operators, by uid.
    pub(crate) operators: BTreeMap<u32, RequestLog>,
    pub(crate) quota_queue: QuotaQueue,
    pub(crate) awaited_room: AwaitedRoom,
    pub(crate) fds: FdBudget,
    pub(crate) timers: BTreeSet<(Time, Timer)>,
    pub(crate) surveys: Surveys,
    pub(crate) ids: Ids,
    pub(crate) violations: u64,
    pub(crate) transitions: Transitions,
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<crate::Bug>,
    pub(crate) outbox: VecDeque<Command>,
}

/// The sources of ids. Each kind has its own counter.
#[derive(Debug)]
pub(crate) struct Ids {
    pub(crate) allocations: IdSource,
    pub(crate) sessions: IdSource,
    pub(crate) last_session: Option<SessionId>,
    pub(crate) extents: IdSource,
}

impl Broker {
    /// Creates a broker with the stored quotas. Quotas of absent devices are kept.
    pub fn new(config: Config, stored: StoredQuotas, now: Time) -> Self {
        let mut tenants = Tenants::default();
        let mut book =
            QuotaTable::new(config.default_limit, config.default_host_limit, config.default_disk_limit);
        for row in &stored.quotas {
            let device = quota_device(&config, &row.device);
            let quota = Quota { guarantee: row.guarantee, limit: row.limit };
            book.set(tenants.intern(&row.tenant), device, row.tier, Some(quota));
        }
        let on_device = devices_of(&config).map(|(index, device)| (Place::device(index), device.share));
        let below = devices_of(&config)
            .flat_map(|(index, device)| Place::below(index).into_iter().zip([device.host, device.disk]));
        let below = below.filter(|(_, share)| !share.is_zero());
        let ledger = Ledger::new(on_device.chain(below).collect::<Vec<_>>(), book);
        let epoch = config.boot_epoch;
        let mut broker = Self {
            ledger,
            tenants,
            now,
            draining: false,
            sessions: SessionTable::default(),
            allocations: AllocationTable::default(),
            pool: Pool::default(),
            ops: OpTable::default(),
            pins: PinTable::default(),
            revocations: Revocations::new(),
            migrations: Migrations::new(),
            write_backs: WriteBacks::new(),
            line: Line::default(),
            backings: Backings::default(),
            residents: Residents::new(&config.eviction),
            idle_on_host: Residents::new(&EvictionPolicy::Lru),
            pressure_state: PressureState::default(),
            settings: Settings::of(&config),
            cache_scan_at: None,
            drop_counts: BTreeMap::new(),
            operator_holds: BTreeSet::new(),
            over_limit: BTreeSet::new(),
            attach_waiters: BTreeMap::new(),
            in_place_to_unmap: BTreeSet::new(),
            detached_extents: BTreeMap::new(),
            follow_ups: FollowUps::default(),
            evicting: 0,
            operators: BTreeMap::new(),
            quota_queue: QuotaQueue::default(),
            awaited_room: AwaitedRoom::default(),
            fds: FdBudget::default(),
            timers: BTreeSet::new(),
            surveys: Surveys::default(),
            ids: Ids {
                allocations: IdSource::new(epoch),
                sessions: IdSource::new(epoch),
                last_session: None,
                extents: IdSource::new(epoch),
            },
            violations: 0,
            transitions: Transitions::default(),
            #[cfg(feature = "planted")]
            planted: None,
            outbox: VecDeque::new(),
            config,
        };
        for device in broker.device_indices() {
            let reserved = broker.context_reserve(device, 0);
            broker.ledger.set_withheld(Place::device(device), Bytes::ZERO, reserved);
        }
        broker.start_gauges();
        broker.recall_stored(stored.requests);
        broker.survey_all();
        broker.arm_survey();
        broker
    }

    /// Applies one event. [`Self::poll_command`] then returns the commands that follow.
    pub fn handle(&mut self, now: Time, event: Event) {
        #[cfg(feature = "observed")]
        self.forget_observed();
        self.now = self.now.max(now);
        self.run_timers();
        match event {
            Event::Hello { channel, hello } => self.on_hello(channel, hello),
            Event::Frame { channel, frame } => self.on_frame(channel, frame),
            Event::Malformed { channel, problem } => self.on_malformed(channel, problem),
            Event::ChannelEnded { channel } => self.on_channel_ended(channel),
            Event::ProcessEnded { channel } => self.on_process_ended(channel),
            Event::Client { call, session, peer, key, request } => {
                self.on_client(call, session, peer, key, request)
            }
            Event::Operator { call, uid, key, request } => self.on_operator(call, uid, key, request),
            Event::Completion(completion) => self.on_completion(completion),
            Event::QuotasStored { result } => self.on_quotas_stored(result),
            Event::PartsUsed(parts) => self.on_touched(&parts),
            Event::Tick => {}
        }
        self.run_follow_ups();
        for detail in self.ledger.take_broken() {
            self.report_violation(invariants::LEDGER_BALANCES, detail);
        }
    }

    /// Returns the next command, in order.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.outbox.pop_front()
    }

    /// Returns when to call [`Self::handle`] with [`Event::Tick`] if no event comes before.
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(deadline, _)| *deadline)
    }

    pub(crate) fn push_command(&mut self, command: Command) {
        self.outbox.push_back(command);
    }

    pub(crate) fn push_notice(&mut self, notice: Notice) {
        self.push_command(Command::Notice(notice));
    }

    /// Counts and logs a violated invariant, and goes on.
    pub(crate) fn report_violation(&mut self, invariant: &'static str, detail: String) {
        self.violations = self.violations.saturating_add(1);
        self.push_notice(Notice::InvariantBroken { invariant, detail });
    }

    /// The UUID of a device.
    pub(crate) fn uuid(&self, device: DeviceIndex) -> &str {
        self.config.devices.get(usize::from(device.0)).map_or("?", |device| &device.uuid)
    }

    /// The device with this UUID or index.
    pub(crate) fn find_device(&self, text: &str) -> Option<DeviceIndex> {
        devices_of(&self.config)
            .find(|(index, device)| device.uuid == text || index_of(text) == Some(*index))
            .map(|(index, _)| index)
    }

    pub(crate) fn device_indices(&self) -> impl Iterator<Item = DeviceIndex> + use<> {
        (0..=u16::MAX).map(DeviceIndex).take(self.config.devices.len())
    }

    /// The tier that memory lies in until it moves.
    pub(crate) const fn tier() -> Tier {
        Tier::Device
    }
}

fn devices_of(config: &Config) -> impl Iterator<Item = (DeviceIndex, &crate::config::DeviceConfig)> {
    (0..=u16::MAX).map(DeviceIndex).zip(&config.devices)
}

/// Parses an index in its canonical form, without sign or leading zeros.
fn index_of(text: &str) -> Option<DeviceIndex> {
    let canonical = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| canonical).map(DeviceIndex)
}

/// The device that a stored row names.
fn quota_device(config: &Config, text: &str) -> QuotaDevice {
    if text == "*" {
        return QuotaDevice::All;
    }
    devices_of(config)
        .find(|(_, device)| device.uuid == text)
        .map_or_else(|| QuotaDevice::Absent(text.to_owned()), |(index, _)| QuotaDevice::Present(index))
}
