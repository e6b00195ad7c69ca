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
use facts::{Call, Facts, book_of};
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
    broken: Vec<Violation>,
}

/// The event that is being handled, and what came of it so far.
#[derive(Debug, Default)]
struct Step {
    call: Option<(broker_core::CallId, Call)>,
    expected: Option<Refusal>,
    repeat: requests::repeats::Expected,
    /// A session whose answer did not fit.
    liar: Option<vramd_types::SessionId>,
    by_client: bool,
    /// What a session that asks to part from memory was to be sent of it.
    owed_before: Vec<(vramd_types::SessionId, broker_core::PartRef)>,
    /// What it kept of it, and was never sent.
    away_before: Vec<(vramd_types::SessionId, broker_core::PartRef)>,
    answer: Option<Outcome>,
    /// Extents that were ordered, and how many of these for new memory.
    ordered: usize,
    created: usize,
    touched: Vec<(facts::Tenant, usize)>,
    /// Held parts of a batch that is being ordered, with whose and how large they are on which device.
    to_set_aside: Vec<(broker_core::PartRef, (facts::Tenant, usize, u64))>,
    /// For whom something is being made, and where.
    admitted: Vec<(facts::Tenant, usize)>,
    committed: Vec<u128>,
    gone: Vec<vramd_types::SessionId>,
    /// An allocation that the driver has read.
    digested: Option<vramd_types::AllocationId>,
    /// Of whose parts on which device some began to leave: how large each is, and what its tenant wanted there.
    departed: std::collections::BTreeMap<(facts::Tenant, usize), Vec<(u64, u64)>>,
    /// Of whose parts some go on leaving that were chosen before, or have left at once.
    chosen_before: std::collections::BTreeSet<(facts::Tenant, usize)>,
    /// What an operator's request changed, should it be refused.
    before: Option<Before>,
    /// Whose batch was made without waiting, and where; and what its tenant had in use there with it.
    made_at_once: std::collections::BTreeMap<(facts::Tenant, usize), u64>,
    /// The driver has made something, or could not.
    made: bool,
    /// The tenant whose batch waited for room and is looked at again.
    room_for: Option<facts::Tenant>,
    /// Evicted by these, whose words are to be collected now.
    to_collect: std::collections::BTreeSet<(vramd_types::SessionId, broker_core::PartRef)>,
    /// What these could not map, and may ask for again.
    unmappable: std::collections::BTreeSet<(vramd_types::SessionId, broker_core::PartRef)>,
    /// The words of this part have just been looked at.
    words_revoked: Option<broker_core::PartRef>,
    /// The part in whose word WRITTEN has just been cleared, since nobody pinned it.
    cleared: Option<broker_core::PartRef>,
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
    failure_told: bool,
}

/// What an operator's request is taken to change at once.
#[derive(Clone, Copy, Debug)]
enum Before {
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
            broken: Vec::new(),
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
            book: book_of(stored),
            ..Facts::default()
        };
        self.repeats.restart(stored);
        self.settings = SettingsFacts::new(config);
        self.learn_tenants();
        self.step = Step::default();
    }

    /// Before the broker hears of it.
    pub fn event(&mut self, now: Time, event: &Event) {
        self.facts.now = now;
        self.facts.clock += 1;
        self.step = Step::default();
        self.observe_event(event);
        // What nobody gives back is owed by others from now on, whatever is admitted.
        self.step.committed = self.committed_all();
    }

    pub fn command(&mut self, command: &Command, broker: &Broker) {
        self.learn_sealed(broker);
        if !matches!(command, Command::CreateExtent { .. } | Command::Notice(Notice::Reused { .. })) {
            self.batch_is_ordered();
        }
        match command {
            Command::Reply { call, outcome } => self.replied(*call, outcome, broker),
            Command::Send { channel, frame } => match frame {
                DaemonFrame::Welcome { session, devices, .. } => self.welcomed(*channel, *session, devices),
                DaemonFrame::Map(parts) => {
                    self.packet_sent(*channel, parts);
                    self.parts_sent(*channel, parts);
                }
                DaemonFrame::Revoke { parts, reason } => self.revoked(*channel, parts, *reason),
                DaemonFrame::Lost(part) => self.is_told_of_loss(*channel, *part),
                DaemonFrame::PinAnswer { call, refusal } => {
                    self.pin_answered(*channel, *call, refusal.as_ref());
                }
                DaemonFrame::Pressure(note) => self.pressure_told(*channel, note),
                DaemonFrame::Refused(_) | DaemonFrame::Drain { .. } => {}
            },
            Command::CloseChannel { channel } => _ = self.facts.open_channels.remove(channel),
            Command::ForgetProcess { channel } => self.process_forgotten(*channel),
            Command::KillProcess { channel } => self.killed(*channel),
            Command::CreateExtent { extent, device, tier, size, kind, .. } => {
                self.forget_unmade(broker);
                let ordered = Ordered {
                    id: *extent,
                    device: usize::from(device.0),
                    tier: *tier,
                    size: size.get(),
                    kind: *kind,
                };
                self.extent_ordered(ordered, broker);
            }
            Command::OpenExtent { extent, file, offset, bytes, size } => {
                self.forget_unmade(broker);
                let (offset, bytes, size) = (offset.get(), bytes.get(), size.get());
                self.file_opened(Opened { id: *extent, file: *file, offset, bytes, size }, broker);
            }
            Command::Copy { from, to, class, .. } if Self::is_written_back(*to, broker) => {
                self.write_back_begun(*from, *to);
                self.copy_ordered(*to, *class);
            }
            Command::Copy { from, to, compare_first, class, .. } => {
                self.copy_begun((*from, *to), *compare_first, broker);
                self.copy_ordered(*to, *class);
            }
            Command::CancelCopy { to } => self.copy_cancelled(*to),
            Command::ShareLinks(shares) => {
                self.shares_told(*shares);
                self.shares_changed(*shares);
            }
            Command::HastenCopy { to } => self.copy_hastened(*to),
            Command::ReleaseExtent { extent } => self.extent_released(*extent),
            Command::Digest { allocation, spans } => self.digest_ordered(*allocation, spans),
            Command::StoreQuotas(stored) => self.quotas_staged(stored),
            Command::Notice(Notice::Cached { extent, .. }) => self.extent_cached(*extent),
            Command::Notice(Notice::Reused { extent, part }) => {
                self.forget_unmade(broker);
                self.extent_reused(*extent, *part, broker);
            }
            Command::Notice(Notice::Advised { allocation, advice, .. }) => self.advised(*allocation, *advice),
            Command::Notice(Notice::AllocationFreed { allocation, .. }) => self.begins_to_leave(*allocation),
            Command::Notice(Notice::PressureChanged { device, tier, from, to, charged, capacity }) => {
                self.pressure_changed(
                    (usize::from(device.0), *tier),
                    *from,
                    *to,
                    (charged.get(), capacity.get()),
                );
            }
            Command::Notice(Notice::SettingsChanged { before, after, .. }) => {
                self.settings_changed(before, after);
            }
            Command::Notice(Notice::Moved { part, tier, cause, began, copied, .. }) => {
                self.leaves_for_its_file(*part, *tier, *copied);
                self.leaves_by_pressure(*part, *tier, *cause, *began);
                if *tier != Tier::Device && !self.moves_below(*part, *tier) {
                    self.nobody_held(*part);
                    self.leaves_its_device(*part, false, broker);
                }
                self.has_moved(*part, *tier);
            }
            Command::Notice(Notice::Backed { part, tier, .. }) => {
                self.forget_unmade(broker);
                self.backed_late(*part, *tier);
            }
            Command::Notice(Notice::WrittenBack { part, .. }) => self.was_written_back(*part),
            // It stays where it is either way.
            Command::Notice(
                Notice::MoveStopped { cause: Cause::WriteBack, .. }
                | Notice::MoveFailed { cause: Cause::WriteBack, .. },
            ) => {}
            Command::Notice(Notice::Dropped { part, bytes, tier, cause, .. }) => {
                self.expect(PRESSED, *cause != Cause::Pressure, || {
                    format!("{part:?} is given up for pressure alone")
                });
                self.nobody_held(*part);
                self.leaves_its_device(*part, false, broker);
                self.was_dropped(*part, bytes.get(), *tier);
            }
            Command::Notice(
                notice @ (Notice::MoveStopped { part, tier, .. } | Notice::MoveFailed { part, tier, .. }),
            ) => {
                if *tier != Tier::Device && matches!(notice, Notice::MoveFailed { .. }) {
                    self.facts.unlucky.insert(*part);
                }
                self.stays(*part, *tier);
            }
            Command::RevokeWords { part, words } => self.words_asked(*part, words, broker),
            Command::ForgetWord { channel, slot } => self.word_forgotten(*channel, *slot),
            Command::Notice(Notice::SessionSilent { session, .. }) => self.is_silent(*session, true),
            Command::Notice(Notice::SessionAnswered { session, .. }) => self.is_silent(*session, false),
            Command::Notice(Notice::RoomMade { tenant }) => self.room_made(tenant.as_deref()),
            Command::Notice(Notice::InvariantBroken { invariant, detail }) => {
                self.broken.push(Violation { invariant, detail: detail.clone() });
            }
            Command::Survey { device, .. } => self.facts.places[usize::from(device.0)].looking = true,
            Command::ReleaseNow { .. } | Command::ClearWritten { .. } | Command::Notice(_) => {}
        }
    }

    /// After the broker has done all that the event caused.
    pub fn after(&mut self, broker: &Broker) {
        self.learn_sealed(broker);
        self.batch_is_ordered();
        self.forget_unmade(broker);
        self.words_are_collected();
        self.unmappable_is_told();
        self.loss_is_told(broker);
        self.leaves_once_written_back(broker);
        self.guarantees_are_kept();
        self.liar_is_quarantined();
        self.answers_are_in_time();
        self.admitted();
        self.nobody_lacks_for_nothing();
        self.counts_are_bounded(broker);
        self.repeated_without_effect();
        self.queue_is_bounded();
        self.refused_as_expected();
        self.what_lived_by_sessions_ends(broker);
        self.fences_last();
        self.nobody_keeps_its_place();
        self.nobody_stalls();
        self.nobody_starves(broker);
        self.learn_failed_batches(broker);
        self.nobody_is_kept_waiting(broker);
        self.nobody_waits_for_ever();
        self.no_batch_waits_for_ever(broker);
        self.settings_are_as_shown(broker);
        self.pressure_is_as_shown(broker);
        self.pressure_is_relieved(broker);
        self.what_is_awaited_is_demand(broker);
        self.facts.waits = broker.waits().into_iter().map(|wait| (wait.id, wait)).collect();
        for (tenant, place) in std::mem::take(&mut self.step.touched) {
            self.compare_account(tenant, place, broker);
        }
    }

    pub fn take_broken(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.broken)
    }

    fn expect(&mut self, invariant: &'static str, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(Violation { invariant, detail: what() });
        }
    }
}

/// What came of a call.
type Outcome = Result<Reply, Refusal>;
