//! An observer that sees the broker's events and commands, and states what must be true of them.
//!
//! `facts.rs` is what it has seen; `observe.rs` learns it from events. One invariant is one file, in a folder by subject:
//! each judges an event, a command, or what the core shows. Nothing here calls the core's ledger or tables: the getters of
//! [`Broker`] are what the oracle judges.

mod accounting;
mod facts;
mod line;
mod links;
mod mappings;
mod moves;
mod node;
mod observe;
mod pins;
mod prefetch;
mod pressure;
mod requests;
mod sessions;
mod turns;

use broker_core::{
    Advice, Adviser, Broker, Cause, Command, Config, DaemonFrame, Event, Limits, Notice, Refusal, Reply,
    Retention, StoredQuotas, Tier, Time,
    invariants::{PRESSURE_EVICTIONS, Violation},
};
use vramd_types::Quantity;

use crate::scenario::Lanes;
use accounting::{extents::Ordered, stored::StoredRequests};
use facts::{Call, Facts, quota_table};
use moves::files::Opened;
use node::ids::Ids;
use pressure::settings::SettingsFacts;
pub(crate) use requests::repeats::REMEMBERED;
use requests::repeats::Repeats;

#[derive(Debug)]
pub struct Oracle {
    facts: Facts,
    ids: Ids,
    repeats: Repeats,
    limits: Limits,
    default_limit: Quantity,
    default_host_limit: Quantity,
    default_disk_limit: Quantity,
    /// Classes and weights of the configuration.
    configured_standings: std::collections::BTreeMap<String, broker_core::Standing>,
    settings: SettingsFacts,
    sessions_reserved: u64,
    /// The lanes of this world, if it has any.
    lanes: Option<Lanes>,
    step: Step,
    violations: Vec<Violation>,
}

/// The event that is being handled, and what the oracle has seen of its effects so far.
#[derive(Debug, Default)]
struct Step {
    /// Managed memory whose orders the client has answered.
    answered_orders: Vec<vramd_types::AllocationId>,
    call: Option<(broker_core::CallId, Call)>,
    expected: Option<Refusal>,
    repeat: requests::repeats::Expected,
    /// A session whose frame broke the protocol.
    offender: Option<vramd_types::SessionId>,
    by_client: bool,
    /// The session that has just sent a frame.
    heard_from: Option<vramd_types::SessionId>,
    /// It has unmapped what it was told to.
    has_unmapped: bool,
    /// It was late until then.
    heard_late: bool,
    /// Parts of an allocation that a session detaches: those that it was to be sent.
    owed_before: Vec<(vramd_types::SessionId, broker_core::PartRef)>,
    /// Parts of that allocation that were away in the session and were never sent.
    away_before: Vec<(vramd_types::SessionId, broker_core::PartRef)>,
    answer: Option<Outcome>,
    /// Extents whose creation was ordered, and how many of these are for new memory.
    ordered_count: usize,
    created_count: usize,
    changed_accounts: Vec<(facts::Tenant, usize)>,
    /// A device whose driver ran out of memory, until the core reports it.
    ran_out: Option<usize>,
    /// Parts with a handle pin of a batch that is being ordered, with tenant, device and size. Their backing
    /// is reserved once the whole batch is ordered.
    to_back: Vec<(broker_core::PartRef, (facts::Tenant, usize, u64))>,
    /// Tenants and places for which the event creates memory.
    admitted: Vec<(facts::Tenant, usize)>,
    committed: Vec<u128>,
    gone: Vec<vramd_types::SessionId>,
    /// An allocation that the driver has hashed, until the oracle has learned whether it is sealed.
    digested: Option<vramd_types::AllocationId>,
    hashed: Option<vramd_types::AllocationId>,
    /// Allocations that the event has freed, and the names that they had.
    freed: Vec<vramd_types::AllocationId>,
    names_freed: Vec<(String, vramd_types::AllocationId)>,
    /// An allocation whose name another one has just taken.
    replaced: Option<vramd_types::AllocationId>,
    /// By tenant and device: size of each part that began to leave, and what its tenant wanted there.
    departures: std::collections::BTreeMap<(facts::Tenant, usize), Vec<(u64, u64)>>,
    /// Tenants and devices of which parts leave that were chosen by an earlier event, or have left at once.
    chosen_before: std::collections::BTreeSet<(facts::Tenant, usize)>,
    /// How to undo what an operator's request changed, in case it is refused.
    undo: Option<Undo>,
    /// By tenant and device: what the tenant has in use, with a batch that did not have to wait.
    made_at_once: std::collections::BTreeMap<(facts::Tenant, usize), u64>,
    /// The event is the end of a creation, good or bad.
    create_ended: bool,
    /// The tenant whose waiting batch is tried again.
    retried_tenant: Option<facts::Tenant>,
    /// All such tenants.
    retried: std::collections::BTreeSet<facts::Tenant>,
    /// Parts that began to move to their device.
    fetched: Vec<broker_core::PartRef>,
    /// The charge of their device with each of them, before anything began that came after it.
    charged_with: std::collections::BTreeMap<broker_core::PartRef, u64>,
    /// Parts that an operator had fetched and that arrived.
    arrived_for_operator: Vec<broker_core::PartRef>,
    /// Packets of descriptors, while sessions wait for budget.
    packets: Vec<mappings::turns::Packet>,
    /// A part began to move, or was asked to be unmapped for that.
    began_to_move: bool,
    /// Parts that began to leave and have left.
    left_at_once: Vec<moves::effort::Victim>,
    /// A part left at once, from where is unknown.
    left_from_unknown: bool,
    /// Parts that were to leave for a waiter and could not begin to, since too many extents exist.
    refused_victims: Vec<broker_core::PartRef>,
    /// Parts that left their device in this event.
    left_device: Vec<broker_core::PartRef>,
    /// Extents that the driver was told to release.
    released: std::collections::BTreeSet<vramd_types::ExtentId>,
    /// Copies that were ordered as demand, or raised to it.
    urgent: Vec<vramd_types::ExtentId>,
    /// By tenant and device: bytes that were created or reused.
    taken: std::collections::BTreeMap<(facts::Tenant, usize), u64>,
    /// Evicted parts whose words the daemon must collect within this event.
    to_collect: std::collections::BTreeSet<(vramd_types::SessionId, broker_core::PartRef)>,
    /// Parts that a session failed to map and may pin again.
    unmappable: std::collections::BTreeSet<(vramd_types::SessionId, broker_core::PartRef)>,
    /// The part whose words the daemon has just revoked.
    words_revoked: Option<broker_core::PartRef>,
    /// Orders of operators for single parts that have just been answered.
    ended_orders: std::collections::BTreeMap<broker_core::CallId, facts::RevocationFacts>,
    /// The part in whose word the daemon has just cleared WRITTEN, since no session pinned it.
    cleared_word: Option<broker_core::PartRef>,
    /// A part whose write-back has just ended well and was not cancelled.
    written_back: Option<broker_core::PartRef>,
    /// A request was refused because too many allocations or extents exist.
    too_many_refused: bool,
    /// A batch that arrived in this event and was refused for want of room.
    refused_batch: Option<line::needs::WaiterNeeds>,
    /// The event stored a change of quotas, or of the class or weight of a tenant.
    quotas_changed: bool,
    /// A change of quotas began to be stored, so its guarantees count from some moment of the event on.
    quotas_staged: bool,
    /// Quotas are others than before the event.
    limits_changed: bool,
    /// The event changed settings.
    settings_changed: bool,
    /// A part that was just copied between two tiers below its device.
    moved_below: Option<broker_core::PartRef>,
    /// A part whose content on disk was just found damaged.
    damaged: Option<broker_core::PartRef>,
    /// A move was stopped or has failed.
    prefetch_stopped: bool,
    /// Destinations of copies of class prefetch.
    prefetch_copies: std::collections::BTreeSet<vramd_types::ExtentId>,
    /// The event reports a failure of the driver or the disk.
    failure_reported: bool,
    /// Pressure of each place before the event, and the places whose pressure has changed in it.
    pressure_before: std::collections::BTreeMap<usize, broker_core::Pressure>,
    pressure_changed: std::collections::BTreeSet<usize>,
    /// The event tells of memory that other programs hold.
    surveyed: bool,
}

/// State that an operator's request changes at once, as it was before.
#[derive(Clone, Copy, Debug)]
enum Undo {
    Ending { session: vramd_types::SessionId, ending: bool, kill_asked: bool },
    Draining(bool),
}

impl Oracle {
    pub fn new(config: &Config, stored: &StoredQuotas) -> Self {
        let mut oracle = Self {
            facts: Facts::default(),
            ids: Ids::default(),
            repeats: Repeats::default(),
            limits: config.limits.clone(),
            default_limit: config.default_limit,
            default_host_limit: config.default_host_limit,
            default_disk_limit: config.default_disk_limit,
            configured_standings: config.tenants.clone(),
            settings: SettingsFacts::new(config),
            sessions_reserved: u64::from(config.sessions_reserved),
            lanes: None,
            step: Step::default(),
            violations: Vec::new(),
        };
        oracle.restart(config, stored);
        oracle
    }

    /// Restarts the oracle with the daemon: it forgets all but what is on disk and which ids were given out.
    pub fn restart(&mut self, config: &Config, stored: &StoredQuotas) {
        self.facts = Facts {
            now: self.facts.now,
            clock: self.facts.clock,
            answer_timeout: config.limits.map_answer_timeout,
            places: accounting::places::of(config),
            quotas_in_force: quota_table(stored),
            standings: accounting::stored::standings(&stored.tenants),
            stored_requests: StoredRequests::of(stored),
            ..Facts::default()
        };
        self.repeats.restart(stored);
        self.settings = SettingsFacts::new(config);
        self.learn_tenants();
        self.step = Step::default();
    }

    /// Learns from the event, before the broker handles it.
    pub fn begin_event(&mut self, now: Time, event: &Event) {
        self.facts.before = self.facts.now;
        self.facts.now = now;
        self.facts.clock += 1;
        self.step = Step { pressure_before: self.facts.pressure.clone(), ..Step::default() };
        self.observe_event(event);
        // Memory that was not returned is charged to others from now on, whatever is admitted.
        self.step.committed = self.committed_all();
    }

    pub fn observe_command(&mut self, command: &Command, broker: &Broker) {
        self.learn_sealed(broker);
        let makes_batch = matches!(
            command,
            Command::CreateExtent { .. }
                | Command::Notice(Notice::Reused { .. } | Notice::ManagedCharged { .. })
        );
        if !makes_batch {
            self.reserve_batch_backing();
        }
        match command {
            Command::Reply { call, outcome } => self.check_reply(*call, outcome, broker),
            Command::Send { channel, frame } => match frame {
                DaemonFrame::Welcome { session, devices, .. } => {
                    self.record_welcome(*channel, *session, devices)
                }
                DaemonFrame::Map(parts) => {
                    self.check_packet(*channel, parts);
                    self.check_map_frame(*channel, parts);
                }
                DaemonFrame::Revoke { parts, reason } => self.check_revoke_frame(*channel, parts, *reason),
                DaemonFrame::Lost(part) => self.check_loss_frame(*channel, *part),
                DaemonFrame::PinAnswer { call, refusal } => {
                    self.check_pin_answer(*channel, *call, refusal.as_ref());
                }
                DaemonFrame::Prefetch { number, state } => {
                    self.check_prefetch_frame(*channel, *number, state);
                }
                DaemonFrame::Pressure(note) => self.check_pressure_frame(*channel, note),
                DaemonFrame::Sequence { number, state } => {
                    self.check_sequence_frame(*channel, *number, state);
                }
                DaemonFrame::WorkingSet { number, refusal } => {
                    self.check_set_answer(*channel, *number, refusal.as_ref());
                }
                DaemonFrame::ManagedOrders { number, orders } => {
                    self.check_orders_frame(*channel, *number, orders);
                }
                DaemonFrame::Turn { turn, state } => self.check_turn_frame(*channel, *turn, state),
                DaemonFrame::Refused(_) | DaemonFrame::Drain { .. } => {}
            },
            Command::CloseChannel { channel } => _ = self.facts.open_channels.remove(channel),
            Command::ForgetProcess { channel } => self.record_forgotten_process(*channel),
            Command::KillProcess { channel } => self.check_kill(*channel),
            Command::CreateExtent { extent, device, tier, size, kind, .. } => {
                self.forget_unmade(broker);
                let ordered = Ordered {
                    id: *extent,
                    device: usize::from(device.0),
                    tier: *tier,
                    size: size.get(),
                    kind: *kind,
                };
                self.record_create(ordered, broker);
            }
            Command::OpenExtent { extent, file, offset, bytes, size } => {
                self.forget_unmade(broker);
                let (offset, bytes, size) = (offset.get(), bytes.get(), size.get());
                self.record_open(Opened { id: *extent, file: *file, offset, bytes, size }, broker);
            }
            Command::Copy { from, to, class, .. } if Self::is_written_back(*to, broker) => {
                self.check_write_back_start(*from, *to);
                self.record_copy_class(*to, *class);
            }
            Command::Copy { from, to, compare_first, class, .. } => {
                self.check_copy_start((*from, *to), *compare_first, broker);
                self.record_link_copy(*from, *to);
                self.record_prefetch_copy(*to, *class);
                self.record_copy_class(*to, *class);
            }
            Command::CancelCopy { to } => self.check_cancel(*to),
            Command::ShareLinks(shares) => {
                self.record_driver_shares(*shares);
                self.restart_shares(*shares);
            }
            Command::HastenCopy { to } => self.check_hasten(*to),
            Command::ReleaseExtent { extent } => self.check_release(*extent),
            Command::Digest { allocation, spans } => self.check_digest(*allocation, spans),
            Command::StoreQuotas(stored) => self.stage_quotas(stored),
            Command::Notice(Notice::ManagedCharged { allocation, session, device, bytes }) => {
                self.record_managed(*allocation, *session, *device, *bytes);
            }
            Command::Notice(Notice::ManagedOrdered { allocation, session, to }) => {
                self.record_managed_order(*allocation, *session, *to);
            }
            Command::Notice(Notice::AllocationGone { allocation, .. }) => {
                self.record_managed_end(*allocation)
            }
            Command::Notice(Notice::Cached { extent, .. }) => self.check_cached(*extent),
            Command::Notice(Notice::Reused { extent, part }) => {
                self.forget_unmade(broker);
                self.check_reuse(*extent, *part, broker);
            }
            Command::Notice(Notice::Advised { allocation, advice, .. }) => {
                self.record_advice(*allocation, *advice);
                if let Advice::Retain { parts, change } = *advice {
                    if matches!(change, Retention::Pattern(_) | Retention::Preset(_)) {
                        self.restart_speculation(*allocation);
                    }
                    self.record_retention(*allocation, parts, (Adviser::Owner, Some(change)));
                }
                if *advice == Advice::UnsetAccessedBy {
                    let parts: Vec<_> = self.facts.parts_of(*allocation).collect();
                    self.record_prefetched_in_place(parts);
                }
            }
            Command::Notice(Notice::OperatorAdvised { allocation, parts, change, .. }) => {
                self.record_retention(*allocation, Some(*parts), (Adviser::Operator, *change));
            }
            Command::Notice(Notice::AllocationFreed { allocation, .. }) => {
                self.step.freed.push(*allocation);
                self.mark_leaving(*allocation);
            }
            Command::Notice(Notice::AllocationSealed { allocation, .. }) => self.record_sealed(*allocation),
            Command::Notice(Notice::PressureChanged { device, tier, from, to, charged, capacity }) => {
                self.check_pressure_change(
                    (usize::from(device.0), *tier),
                    *from,
                    *to,
                    (charged.get(), capacity.get()),
                );
            }
            Command::Notice(Notice::SettingsChanged { before, after, .. }) => {
                self.check_settings_change(before, after);
            }
            Command::Notice(Notice::Moved { part, tier, cause, began, copied, .. }) => {
                self.record_left_at_once(*part, *tier, *cause, *began == self.facts.now);
                self.check_departure_to_file(*part, *tier, *copied);
                self.check_departure_for_pressure(*part, *tier, *cause, *began);
                if *tier != Tier::Device && !self.is_moving_below(*part, *tier) {
                    self.expect_no_operator_hold(*part);
                    self.record_departure(*part, false, broker);
                }
                if *tier != Tier::Device && !self.is_moving_below(*part, *tier) {
                    self.step.left_device.push(*part);
                }
                if (*tier, *cause) == (Tier::Device, Cause::Operator) {
                    self.step.arrived_for_operator.push(*part);
                }
                if *tier != Tier::Host {
                    self.facts.read_in_place.remove(part);
                }
                self.record_move(*part, *tier);
            }
            Command::Notice(Notice::Backed { part, tier, .. }) => {
                self.forget_unmade(broker);
                self.record_late_backing(*part, *tier);
                self.facts.backed.insert(*part, self.facts.now);
            }
            Command::Notice(Notice::WrittenBack { part, .. }) => self.check_written_back(*part),
            // The part stays where it is either way.
            Command::Notice(
                Notice::MoveStopped { cause: Cause::WriteBack, .. }
                | Notice::MoveFailed { cause: Cause::WriteBack, .. },
            ) => {}
            Command::Notice(Notice::Dropped { part, bytes, tier, cause, began, .. }) => {
                self.record_left_at_once(*part, *tier, *cause, *began == self.facts.now);
                self.expect(PRESSURE_EVICTIONS, *cause != Cause::Pressure, || {
                    format!("{part:?} was dropped although only pressure asked for it")
                });
                self.expect_no_operator_hold(*part);
                self.record_departure(*part, false, broker);
                self.step.left_device.push(*part);
                self.record_drop(*part, bytes.get(), *tier);
            }
            Command::Notice(
                notice @ (Notice::MoveStopped { part, tier, .. } | Notice::MoveFailed { part, tier, .. }),
            ) => {
                if let Notice::MoveFailed { cause, began, .. } = notice
                    && *tier != Tier::Device
                {
                    self.facts.failed_parts.insert(*part);
                    if *cause == Cause::Demand && *began == self.facts.now {
                        self.step.refused_victims.push(*part);
                    }
                }
                self.step.prefetch_stopped = true;
                // A part that stays after all may count as used now.
                if *tier != Tier::Device {
                    self.facts.backed.insert(*part, self.facts.now);
                }
                self.record_stay(*part, *tier);
            }
            Command::RevokeWords { part, words } => self.check_word_revocation(*part, words, broker),
            Command::ForgetWord { channel, slot } => self.check_forgotten_word(*channel, *slot),
            Command::Notice(Notice::SessionSilent { session, reason, .. }) => {
                self.check_silent(*session);
                self.record_silence(*session, reason);
                self.set_silent(*session, true);
            }
            Command::Notice(Notice::SessionAnswered { session, .. }) => {
                self.check_answered(*session);
                self.set_silent(*session, false);
            }
            Command::Notice(Notice::SpeculationEnded { part, tenant, bytes, end }) => {
                self.record_speculation_end(*part, tenant, (bytes.get(), *end));
            }
            Command::Notice(Notice::PlacementChosen { part, sum, in_place, .. }) => {
                self.record_placement(*part, sum, *in_place);
            }
            Command::Notice(Notice::ReadInPlaceEnded { part }) => self.record_read_in_place_end(*part),
            Command::Notice(Notice::TurnAdmitted { session, turn, .. }) => {
                self.record_admitted_turn(*session, *turn);
            }
            Command::Notice(Notice::WaitEnded { .. }) => self.record_ended_wait(),
            Command::Notice(Notice::RoomMade { tenant }) => self.record_room_made(tenant.as_deref()),
            Command::Notice(Notice::InvariantBroken { invariant, detail }) => {
                self.violations.push(Violation { invariant, detail: detail.clone() });
            }
            Command::Notice(Notice::CreateFailed { .. }) => self.step.ran_out = None,
            Command::Survey { device, .. } => self.record_survey(usize::from(device.0)),
            Command::ClearWritten { part, .. } => _ = self.facts.words_checked.insert(*part),
            Command::ReleaseNow { .. } | Command::Notice(_) => {}
        }
    }

    /// Checks the whole step, after the broker has done all that the event caused.
    pub fn end_event(&mut self, broker: &Broker) {
        self.learn_sealed(broker);
        self.reserve_batch_backing();
        self.forget_unmade(broker);
        self.check_frees();
        self.check_failed_seal(broker);
        self.expect_words_collected();
        self.expect_map_failures_reported();
        self.expect_loss_reported(broker);
        self.record_departures_after_write_back(broker);
        self.check_guarantees();
        self.expect_quarantine();
        self.check_answer_deadlines();
        self.check_unmap_deadlines();
        self.check_admissions();
        self.check_missing_backing();
        self.check_counts(broker);
        self.check_repeat();
        self.check_queue_length();
        self.check_expected_refusal();
        self.expect_session_memory_freed(broker);
        self.check_managed_sessions();
        self.check_managed_orders(broker);
        self.forget_uncertain_fences();
        self.check_in_place_unmaps();
        self.check_stalls();
        self.check_deliveries(broker);
        self.check_turns(broker);
        let line = broker.waits();
        self.learn_needs(&line);
        self.learn_failed_batches(&line);
        self.check_waiters(&line, broker);
        self.check_pin_feasibility();
        self.check_batch_feasibility(&line);
        self.check_settings(broker);
        self.check_pressure_levels(broker);
        self.check_relief(broker);
        self.check_awaited_copies(broker);
        self.learn_answers();
        self.learn_joined_moves(broker);
        self.check_effort(&line, broker);
        self.check_prefetches(broker);
        self.check_sequences(broker);
        self.check_working_sets(broker);
        self.check_speculation(&line, broker);
        self.check_read_in_place();
        self.record_advised_leavable(broker);
        self.record_leavable_by_class(broker);
        self.record_leavable_of_sets(broker);
        self.record_helped(&line, broker);
        self.check_silences(broker);
        self.record_line(line);
        for (tenant, place) in std::mem::take(&mut self.step.changed_accounts) {
            self.compare_account(tenant, place, broker);
        }
    }

    pub fn take_violations(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.violations)
    }

    fn expect(&mut self, invariant: &'static str, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation { invariant, detail: what() });
        }
    }
}

/// The answer to a call.
type Outcome = Result<Reply, Refusal>;
