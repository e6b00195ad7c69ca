//! The broker: all state, and the methods that drive it.
//!
//! The effects of events are in `handler`, in one folder per subject. The tables that the handlers call
//! (`ledger`, `residency`, `line`, `moves`, `pool`, `tenancy`) are the only writers of their own rows.

use vramd_types::Bytes;

use crate::{
    command::Command,
    config::{Config, devices_of},
    event::{Event, PartRef},
    eviction::{Residents, Usage},
    follow_up::FollowUps,
    handler::{NodeState, Requests},
    invariants,
    ledger::{Ledger, Place, Quota, QuotaDevice, QuotaTable},
    line::Line,
    moves::Moves,
    pool::Pool,
    residency::{AllocationTable, Mappings},
    settings::Settings,
    shell::Shell,
    tenancy::{PinTable, SessionTable, Tenants},
    time::Time,
    view::StoredQuotas,
};

/// The state machine. The crate's documentation says how to drive it.
///
/// `line` and `moves` group the state of waiters and of moves. The other tables are shared by all handlers.
#[derive(Debug)]
pub struct Broker {
    pub(crate) config: Config,
    pub(crate) shell: Shell,
    pub(crate) follow_ups: FollowUps,
    pub(crate) tenants: Tenants,
    pub(crate) ledger: Ledger,
    pub(crate) sessions: SessionTable,
    pub(crate) allocations: AllocationTable,
    pub(crate) pool: Pool,
    pub(crate) pins: PinTable,
    pub(crate) requests: Requests,
    pub(crate) mapping: Mappings,
    /// Parts and batches that wait for room on devices.
    pub(crate) line: Line,
    /// Parts that move between tiers, and their backing.
    pub(crate) moves: Moves,
    pub(crate) usage: Usage,
    pub(crate) node: NodeState,
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<crate::Bug>,
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
        for (name, standing) in &config.tenants {
            let tenant = tenants.intern(name);
            tenants.configure(tenant, *standing);
        }
        for row in &stored.tenants {
            let tenant = tenants.intern(&row.tenant);
            tenants.store(tenant, Some(row.standing));
        }
        let on_device = devices_of(&config).map(|(index, device)| (Place::device(index), device.share));
        let below = devices_of(&config)
            .flat_map(|(index, device)| Place::below(index).into_iter().zip([device.host, device.disk]));
        let below = below.filter(|(_, share)| !share.is_zero());
        let ledger = Ledger::new(on_device.chain(below).collect::<Vec<_>>(), book);
        let epoch = config.boot_epoch;
        let mut broker = Self {
            shell: Shell::new(now),
            follow_ups: FollowUps::default(),
            tenants,
            ledger,
            sessions: SessionTable::new(epoch),
            allocations: AllocationTable::new(epoch),
            pool: Pool::new(epoch),
            pins: PinTable::default(),
            requests: Requests::default(),
            mapping: Mappings::default(),
            line: Line::default(),
            moves: Moves::default(),
            usage: Usage::new(config.eviction, &config.victim_script),
            node: NodeState::new(Settings::of(&config)),
            #[cfg(feature = "planted")]
            planted: None,
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

    /// Creates a broker that evicts the part which is needed furthest ahead, for replays of a trace. It knows of each
    /// part what [`Self::foretell`] says, and takes other parts as never used again.
    pub fn knowing_the_future(config: Config, stored: StoredQuotas, now: Time) -> Self {
        let mut broker = Self::new(config, stored, now);
        broker.usage.residents = Residents::knowing_the_future();
        broker
    }

    /// Tells when a part will be used: `uses` ascend. A broker that does not know the future ignores it.
    pub fn foretell(&mut self, part: PartRef, uses: Vec<Time>) {
        self.usage.residents.foretell(part, uses);
    }

    /// Applies one event. [`Self::poll_command`] then returns the commands that follow.
    pub fn handle(&mut self, now: Time, event: Event) {
        #[cfg(feature = "observed")]
        self.forget_observed();
        self.shell.now = self.shell.now.max(now);
        self.run_timers();
        match event {
            Event::Hello { channel, hello } => self.on_hello(channel, hello),
            Event::Frame { channel, frame } => self.on_frame(channel, frame),
            Event::Malformed { channel, problem } => self.on_malformed(channel, problem),
            Event::ChannelEnded { channel } => self.on_channel_ended(channel),
            Event::ProcessEnded { channel } => self.on_process_ended(channel),
            Event::ProcessStays { channel, why } => self.on_process_stays(channel, why),
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
        if self.ledger.is_broken() {
            for detail in self.ledger.take_broken() {
                self.report_violation(invariants::LEDGER_BALANCES, detail);
            }
        }
    }

    /// Returns the next command, in order. It is inlined, since a command is large to hand on.
    #[inline]
    pub fn poll_command(&mut self) -> Option<Command> {
        self.shell.outbox.pop_front()
    }

    /// Returns when to call [`Self::handle`] with [`Event::Tick`] if no event comes before.
    pub fn next_deadline(&self) -> Option<Time> {
        self.shell.timers.first().map(|(deadline, _)| *deadline)
    }
}

/// The device that a stored row or a stored request names: a UUID, or `*` for all devices.
pub(crate) fn quota_device(config: &Config, text: &str) -> QuotaDevice {
    if text == "*" {
        return QuotaDevice::All;
    }
    devices_of(config)
        .find(|(_, device)| device.uuid == text)
        .map_or_else(|| QuotaDevice::Absent(text.to_owned()), |(index, _)| QuotaDevice::Present(index))
}
