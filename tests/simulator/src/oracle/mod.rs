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
mod pressure;
mod requests;
mod sessions;

use broker_core::{
    Broker, Cause, Command, Config, DaemonFrame, Event, Limits, Notice, Refusal, Reply, StoredQuotas, Tier,
    Time,
    invariants::{PRESSED, Violation},
};
use vramd_types::Quantity;

use crate::scenario::Lanes;
use accounting::extents::Ordered;
use facts::{Call, Facts, quota_table};
use moves::files::Opened;
use node::ids::Ids;
use pressure::settings::SettingsFacts;
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
    settings: SettingsFacts,
    sessions_reserved: u64,
    /// As the world has them, if it does.
    lanes: Option<Lanes>,
    step: Step,
    violations: Vec<Violation>,
}

/// The event that is being handled, and what came of it so far.
#[derive(Debug, Default)]
struct Step {
    call: Option<(broker_core::CallId, Call)>,
    expected: Option<Refusal>,
    repeat: requests::repeats::Expected,
    /// A session whose answer did not fit.
    offender: Option<vramd_types::SessionId>,
    by_client: bool,
    /// What a session that asks to part from memory was to be sent of it.
    owed_before: Vec<(vramd_types::SessionId, broker_core::PartRef)>,
    /// What it kept of it, and was never sent.
    away_before: Vec<(vramd_types::SessionId, broker_core::PartRef)>,
    answer: Option<Outcome>,
    /// Extents that were ordered, and how many of these for new memory.
    ordered_count: usize,
    created_count: usize,
    changed_accounts: Vec<(facts::Tenant, usize)>,
    /// Held parts of a batch that is being ordered, with whose and how large they are on which device.
    to_back: Vec<(broker_core::PartRef, (facts::Tenant, usize, u64))>,
    /// For whom something is being made, and where.
    admitted: Vec<(facts::Tenant, usize)>,
    committed: Vec<u128>,
    gone: Vec<vramd_types::SessionId>,
    /// An allocation that the driver has read.
    digested: Option<vramd_types::AllocationId>,
    /// Of whose parts on which device some began to leave: how large each is, and what its tenant wanted there.
    departures: std::collections::BTreeMap<(facts::Tenant, usize), Vec<(u64, u64)>>,
    /// Of whose parts some go on leaving that were chosen before, or have left at once.
    chosen_before: std::collections::BTreeSet<(facts::Tenant, usize)>,
    /// What an operator's request changed, should it be refused.
    undo: Option<Undo>,
    /// Whose batch was made without waiting, and where; and what its tenant had in use there with it.
    made_at_once: std::collections::BTreeMap<(facts::Tenant, usize), u64>,
    /// The driver has made something, or could not.
    create_ended: bool,
    /// The tenant whose batch waited for room and is looked at again.
    retried_tenant: Option<facts::Tenant>,
    /// Evicted by these, whose words are to be collected now.
    to_collect: std::collections::BTreeSet<(vramd_types::SessionId, broker_core::PartRef)>,
    /// What these could not map, and may ask for again.
    unmappable: std::collections::BTreeSet<(vramd_types::SessionId, broker_core::PartRef)>,
    /// The words of this part have just been looked at.
    words_revoked: Option<broker_core::PartRef>,
    /// The part in whose word WRITTEN has just been cleared, since nobody pinned it.
    cleared_word: Option<broker_core::PartRef>,
    /// What was just written back, and not given up.
    written_back: Option<broker_core::PartRef>,
    /// A change of quotas has just been stored.
    quotas_changed: bool,
    /// Settings have just been changed.
    settings_changed: bool,
    /// What has just been copied from one tier below its device to another.
    moved_below: Option<broker_core::PartRef>,
    /// What the disk has just not had as it was written there.
    damaged: Option<broker_core::PartRef>,
    /// The driver or the disk has just said that it failed.
    failure_reported: bool,
}

/// What an operator's request is taken to change at once.
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
            settings: SettingsFacts::new(config),
            sessions_reserved: u64::from(config.sessions_reserved),
            lanes: None,
            step: Step::default(),
            violations: Vec::new(),
        };
        oracle.restart(config, stored);
        oracle
    }

    /// A new life of the daemon: all is forgotten but what is on disk, and which ids were given out.
    pub fn restart(&mut self, config: &Config, stored: &StoredQuotas) {
        self.facts = Facts {
            now: self.facts.now,
            clock: self.facts.clock,
            answer_timeout: config.limits.map_answer_timeout,
            places: accounting::places::of(config),
            quotas_in_force: quota_table(stored),
            ..Facts::default()
        };
        self.repeats.restart(stored);
        self.settings = SettingsFacts::new(config);
        self.learn_tenants();
        self.step = Step::default();
    }

    /// Before the broker hears of it.
    pub fn begin_event(&mut self, now: Time, event: &Event) {
        self.facts.now = now;
        self.facts.clock += 1;
        self.step = Step::default();
        self.observe_event(event);
        // What nobody gives back is owed by others from now on, whatever is admitted.
        self.step.committed = self.committed_all();
    }

    pub fn observe_command(&mut self, command: &Command, broker: &Broker) {
        self.learn_sealed(broker);
        if !matches!(command, Command::CreateExtent { .. } | Command::Notice(Notice::Reused { .. })) {
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
                DaemonFrame::Pressure(note) => self.check_pressure_frame(*channel, note),
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
            Command::Notice(Notice::Cached { extent, .. }) => self.check_cached(*extent),
            Command::Notice(Notice::Reused { extent, part }) => {
                self.forget_unmade(broker);
                self.check_reuse(*extent, *part, broker);
            }
            Command::Notice(Notice::Advised { allocation, advice, .. }) => {
                self.record_advice(*allocation, *advice)
            }
            Command::Notice(Notice::AllocationFreed { allocation, .. }) => self.mark_leaving(*allocation),
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
                self.check_departure_to_file(*part, *tier, *copied);
                self.check_departure_for_pressure(*part, *tier, *cause, *began);
                if *tier != Tier::Device && !self.is_moving_below(*part, *tier) {
                    self.expect_no_operator_hold(*part);
                    self.record_departure(*part, false, broker);
                }
                self.record_move(*part, *tier);
            }
            Command::Notice(Notice::Backed { part, tier, .. }) => {
                self.forget_unmade(broker);
                self.record_late_backing(*part, *tier);
            }
            Command::Notice(Notice::WrittenBack { part, .. }) => self.check_written_back(*part),
            // It stays where it is either way.
            Command::Notice(
                Notice::MoveStopped { cause: Cause::WriteBack, .. }
                | Notice::MoveFailed { cause: Cause::WriteBack, .. },
            ) => {}
            Command::Notice(Notice::Dropped { part, bytes, tier, cause, .. }) => {
                self.expect(PRESSED, *cause != Cause::Pressure, || {
                    format!("{part:?} is given up for pressure alone")
                });
                self.expect_no_operator_hold(*part);
                self.record_departure(*part, false, broker);
                self.record_drop(*part, bytes.get(), *tier);
            }
            Command::Notice(
                notice @ (Notice::MoveStopped { part, tier, .. } | Notice::MoveFailed { part, tier, .. }),
            ) => {
                if *tier != Tier::Device && matches!(notice, Notice::MoveFailed { .. }) {
                    self.facts.failed_parts.insert(*part);
                }
                self.record_stay(*part, *tier);
            }
            Command::RevokeWords { part, words } => self.check_word_revocation(*part, words, broker),
            Command::ForgetWord { channel, slot } => self.check_forgotten_word(*channel, *slot),
            Command::Notice(Notice::SessionSilent { session, .. }) => self.set_silent(*session, true),
            Command::Notice(Notice::SessionAnswered { session, .. }) => self.set_silent(*session, false),
            Command::Notice(Notice::RoomMade { tenant }) => self.record_room_made(tenant.as_deref()),
            Command::Notice(Notice::InvariantBroken { invariant, detail }) => {
                self.violations.push(Violation { invariant, detail: detail.clone() });
            }
            Command::Survey { device, .. } => self.facts.places[usize::from(device.0)].surveying = true,
            Command::ReleaseNow { .. } | Command::ClearWritten { .. } | Command::Notice(_) => {}
        }
    }

    /// After the broker has done all that the event caused.
    pub fn end_event(&mut self, broker: &Broker) {
        self.learn_sealed(broker);
        self.reserve_batch_backing();
        self.forget_unmade(broker);
        self.expect_words_collected();
        self.expect_map_failures_reported();
        self.expect_loss_reported(broker);
        self.record_departures_after_write_back(broker);
        self.check_guarantees();
        self.expect_quarantine();
        self.check_answer_deadlines();
        self.check_admissions();
        self.check_missing_backing();
        self.check_counts(broker);
        self.check_repeat();
        self.check_queue_length();
        self.check_expected_refusal();
        self.expect_session_memory_freed(broker);
        self.forget_uncertain_fences();
        self.check_in_place_unmaps();
        self.check_stalls();
        self.check_deliveries(broker);
        self.learn_failed_batches(broker);
        self.check_waiters(broker);
        self.check_pin_feasibility();
        self.check_batch_feasibility(broker);
        self.check_settings(broker);
        self.check_pressure_levels(broker);
        self.check_relief(broker);
        self.check_awaited_copies(broker);
        self.facts.waits = broker.waits().into_iter().map(|wait| (wait.id, wait)).collect();
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

/// What came of a call.
type Outcome = Result<Reply, Refusal>;
