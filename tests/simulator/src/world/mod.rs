//! The world around one broker: virtual time, a driver, a disk, client processes and operators.
//!
//! ```text
//!   queue ──► an actor acts ──► event ──► oracle ──► broker ──► commands ──► oracle ──► driver, disk, inboxes ──► queue
//!                                                       └─► invariants of what it touched; every 256 events all
//! ```
//! One thread, one seed: a run is a function of its [`Plan`].

mod act;
mod advice;
mod channel;
mod content;
mod copy;
mod drain;
mod driver;
mod files;
mod harvest;
mod insist;
mod lanes;
mod lie;
mod managed;
mod operator;
mod pin;
mod prefetch;
mod process;
mod queue;
mod request;
mod sequence;
mod stroll;
mod words;
mod worker;
mod working_sets;
mod write_back;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use broker_core::{Broker, CallId, ChannelId, Command, Event, Notice, StoredQuotas, Tier, Time};
use vramd_types::{AllocationId, Bytes};

use crate::{
    coverage::{Coverage, LevelStep, LineStep, SettingStep, TurnStep},
    dice::Dice,
    failure::Failure,
    oracle::Oracle,
    scenario::{Plan, Scenario},
    story::Story,
};
pub(crate) use content::Content;
use content::Contents;
pub(crate) use driver::digest_of;
use driver::{Job, Make, SimDriver};
use lanes::Lanes;
pub(crate) use lanes::{ChunkStart, LaneId};
use process::{Channel, Process};
use queue::{Action, Queue};

/// Events between two checks of all invariants and of the whole ledger against the oracle.
const CHECK_ALL_EVERY: u64 = 256;

/// For how many waiters of a device the core makes room at a time.
const LOOKAHEAD: usize = 32;

/// A run that cannot come to its end is stopped by this many events beyond its plan.
const DRAIN_EVENTS_MAX: u64 = 200_000;

#[derive(Debug)]
pub struct World {
    plan: Plan,
    scenario: Scenario,
    broker: Broker,
    oracle: Oracle,
    pub coverage: Coverage,
    pub story: Story,
    now: Time,
    /// Events that the broker has handled.
    pub events: u64,
    /// Numbers of the acts that were done: shrinking leaves some out.
    pub acts: Vec<u64>,
    failure: Option<Failure>,
    /// The faults have stopped, and no actor begins anything.
    calm: bool,
    /// How often the daemon has started.
    life: u64,
    queue: Queue,
    driver: SimDriver,
    disk: StoredQuotas,
    links: Dice,
    processes: BTreeMap<u32, Process>,
    seats: Vec<Option<u32>>,
    channels: BTreeMap<ChannelId, Channel>,
    /// The process of each unanswered call; `None` for operators.
    calls: BTreeMap<CallId, Option<u32>>,
    /// Of these calls, the attaches without a handle pin.
    attaching_unpinned: BTreeSet<CallId>,
    operator_acts: u64,
    operator_asked: Vec<(broker_core::RequestKey, broker_core::OperatorRequest)>,
    /// Recently made allocations, for processes that guess.
    recent: VecDeque<AllocationId>,
    /// Of these, the loaded ones.
    loaded: VecDeque<AllocationId>,
    /// How many turns each seat has had.
    turns: Vec<u64>,
    last_key: u64,
    last_call: u64,
    last_channel: u64,
    last_pid: u32,
}

impl World {
    pub fn new(plan: Plan, story: Story) -> Self {
        let scenario = Scenario::of(&plan);
        let disk = scenario.stored.clone();
        let broker = Broker::new(scenario.config.clone(), disk.clone(), Time::START);
        let driver = SimDriver {
            dice: Dice::new(plan.seed, 1),
            pieces: BTreeMap::new(),
            copies: BTreeMap::new(),
            lanes: Lanes::of(&scenario, &plan),
            contents: Contents::default(),
            awaited: Default::default(),
            put_off: Default::default(),
            in_place: Default::default(),
            other_programs: vec![Bytes::ZERO; scenario.config.devices.len()],
            other_programs_in_host: vec![Bytes::ZERO; scenario.config.devices.len()],
            filled: Default::default(),
            damaged: Default::default(),
        };
        let mut world = Self {
            oracle: Oracle::new(&scenario.config, &disk),
            broker,
            coverage: Coverage::default(),
            story,
            now: Time::START,
            events: 0,
            acts: Vec::new(),
            failure: None,
            calm: false,
            life: 0,
            queue: Queue::default(),
            driver,
            disk,
            links: Dice::new(plan.seed, 2),
            processes: BTreeMap::new(),
            seats: vec![None; scenario.seats.len()],
            channels: BTreeMap::new(),
            calls: BTreeMap::new(),
            attaching_unpinned: BTreeSet::new(),
            operator_acts: 0,
            operator_asked: Vec::new(),
            recent: VecDeque::new(),
            loaded: VecDeque::new(),
            turns: vec![0; scenario.seats.len()],
            last_key: 0,
            last_call: 0,
            last_channel: 0,
            last_pid: 100,
            scenario,
            plan,
        };
        world.oracle.set_lanes(world.scenario.lanes);
        world.boot();
        for seat in 0..world.seats.len() {
            world.queue.schedule(Time::from_micros(u64::try_from(seat).unwrap_or(0)), 0, Action::Act(seat));
        }
        world.queue.schedule(Time::from_micros(500), 0, Action::Operate);
        world.queue.schedule(Time::from_micros(700), 0, Action::Harvest);
        world.queue.schedule(Time::from_micros(900), 0, Action::OtherPrograms);
        if let Some(insistence) = world.scenario.insistence {
            world.queue.schedule(Time::from_micros(insistence.begins_micros), 0, Action::Insist);
        }
        world
    }

    /// Starts a daemon, with what is on disk.
    fn boot(&mut self) {
        let config = self.scenario.config.clone();
        self.story.add_line(self.now, || format!("the daemon starts, epoch {}", config.boot_epoch));
        self.broker = Broker::new(config.clone(), self.disk.clone(), self.now);
        self.broker.plant(self.plan.bug);
        self.oracle.restart(&config, &self.disk);
        self.take_commands();
    }

    /// Runs the plan: trouble for as many events as planned, then quiet until nothing is left.
    pub fn run(&mut self) -> Result<(), Failure> {
        while self.events < self.plan.events {
            self.step()?;
        }
        self.drain()
    }

    fn take_failure(&mut self) -> Result<(), Failure> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Runs the next action, or the broker's own deadline.
    fn step(&mut self) -> Result<(), Failure> {
        let (next, deadline) = (self.queue.next_time(), self.broker.next_deadline());
        if let Some(deadline) = deadline
            && next.is_none_or(|next| deadline < next)
        {
            self.now = self.now.max(deadline);
            self.handle_event(Event::Tick);
            return self.take_failure();
        }
        if let Some((time, life, happening)) = self.queue.pop() {
            self.now = self.now.max(time);
            self.run_action(life, happening);
        }
        self.take_failure()
    }

    fn run_action(&mut self, life: u64, happening: Action) {
        let of_this_life = life == self.life;
        match happening {
            Action::Act(seat) => self.act(seat),
            Action::Operate => self.operate(),
            Action::Harvest => self.harvest_again(),
            Action::Work(channel) => self.work(channel),
            Action::Say(channel, frame) => self.say(channel, frame),
            Action::Write(channel, part) => self.write_at_once(channel, part),
            Action::OtherPrograms => self.change_other_programs(),
            Action::Insist => self.insist(),
            Action::Resume(pid) => self.resume(pid),
            Action::Die(pid) => self.die(pid),
            Action::Arrive(event) if of_this_life => self.arrive_event(event),
            Action::Done(job) if of_this_life => self.complete_job(job),
            Action::Stored(content) if of_this_life => self.finish_store(content),
            Action::Arrive(_) | Action::Done(_) | Action::Stored(_) => {}
        }
    }

    /// Gives the broker one event, and checks all that it did.
    fn handle_event(&mut self, event: Event) {
        if self.failure.is_some() {
            return;
        }
        self.events += 1;
        self.now = self.now.after(Duration::from_micros(1));
        self.story.add_event(self.now, self.events, &event);
        self.oracle.begin_event(self.now, &event);
        self.broker.handle(self.now, event);
        self.coverage.count_transitions(self.broker.transitions());
        self.take_commands();
        self.oracle.end_event(&self.broker);
        self.check();
    }

    fn take_commands(&mut self) {
        while let Some(command) = self.broker.poll_command() {
            self.story.add_command(self.now, &command);
            self.oracle.observe_command(&command, &self.broker);
            self.execute(command);
        }
    }

    fn check(&mut self) {
        let mut found = self.broker.check_changed();
        if self.events.is_multiple_of(CHECK_ALL_EVERY) {
            found.extend(self.broker.check());
            self.oracle.compare_all(&self.broker);
            if self.oracle.longest_line() > LOOKAHEAD {
                self.coverage.count_step(LineStep::BeyondLookahead);
            }
        }
        found.extend(self.oracle.take_violations());
        if let Some(first) = found.into_iter().next() {
            self.fail(first.invariant, first.detail);
        }
    }

    fn fail(&mut self, invariant: &str, detail: String) {
        if self.failure.is_none() {
            self.story.add_line(self.now, || format!("*** {invariant} does not hold: {detail}"));
            self.failure = Some(Failure { event: self.events, invariant: invariant.to_owned(), detail });
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Reply { call, outcome } => self.handle_reply(call, outcome),
            Command::Send { channel, frame } => self.deliver_frame(channel, frame),
            Command::CloseChannel { channel } => self.close_by_broker(channel),
            Command::ForgetProcess { channel } => {
                if let Some(channel) = self.channels.get_mut(&channel) {
                    channel.watched = false;
                }
            }
            Command::KillProcess { channel } => {
                if let Some(pid) = self.channels.get(&channel).map(|channel| channel.pid) {
                    let when = driver::soon(&mut self.links, self.now, 50, 2_000);
                    self.queue.schedule(when, 0, Action::Die(pid));
                }
            }
            Command::CreateExtent { extent, device, tier, size, zeroed, .. } => {
                self.submit(Job::Create(Make { extent, device, tier, size, zeroed }));
            }
            Command::OpenExtent { extent, file, offset, size, .. } => {
                self.submit(Job::Open { extent, file, offset, size });
            }
            Command::Copy { from, to, bytes, compare_first: _, class } => self.copy((from, to), bytes, class),
            Command::ShareLinks(shares) => {
                if let Some(lanes) = &mut self.driver.lanes {
                    lanes.share_by(shares);
                    self.coverage.count_step(SettingStep::Shares);
                }
            }
            Command::HastenCopy { to } => self.hasten_copy(to),
            Command::CancelCopy { to } => self.cancel_copy(to),
            Command::ReleaseExtent { extent } => self.release(extent),
            Command::ReleaseNow { device } => self.release_now(device),
            Command::Digest { allocation, spans } => self.submit(Job::Digest { allocation, spans }),
            Command::Survey { device, clients } => {
                self.submit(Job::Survey { device, clients: clients.len() });
            }
            Command::StoreQuotas(content) => self.store(content),
            Command::RevokeWords { part, words } => self.revoke_words(part, &words),
            Command::ClearWritten { part, channel, slot, .. } => self.clear_written(part, channel, slot),
            Command::ForgetWord { channel, slot } => self.forget_word(channel, slot),
            Command::Notice(Notice::Moved { part, tier: Tier::Disk, copied: false, .. }) => {
                self.record_left_for_file(part.allocation);
            }
            Command::Notice(Notice::TurnGranted { since, admitted, .. }) if since != admitted => {
                self.coverage.count_step(TurnStep::HandedOver);
            }
            Command::Notice(Notice::PressureChanged { from, to, .. }) => {
                self.coverage.count_step(LevelStep { from, to });
            }
            Command::Notice(Notice::SettingsChanged { before, after, .. }) => {
                if before.pressure != after.pressure {
                    self.coverage.count_step(SettingStep::Levels);
                }
                if before.tiers != after.tiers {
                    self.coverage.count_step(SettingStep::Sizes);
                }
            }
            Command::Notice(_) => {}
        }
    }
}
