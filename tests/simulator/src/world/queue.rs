//! Virtual time: future actions by time, and in the order of scheduling where the time is the same.

use std::collections::BTreeMap;

use broker_core::{ChannelId, ClientFrame, Event, PartRef, StoredQuotas, Time};

use super::driver::Job;

#[derive(Debug)]
pub(super) enum Action {
    /// A process at this seat does its next act.
    Act(usize),
    /// Operators do their next act.
    Operate,
    /// The daemon reads the words of its sessions.
    Harvest,
    /// The worker of a client takes its next frame.
    Work(ChannelId),
    /// Another thread of a client than its worker sends a frame.
    Say(ChannelId, ClientFrame),
    /// An event reaches the broker.
    Arrive(Event),
    /// A process writes a part at once, if it is mapped by this channel.
    Write(ChannelId, PartRef),
    /// The driver has finished a job.
    Done(Job),
    /// The disk has stored the quotas, or failed to.
    Stored(StoredQuotas),
    /// Other programs take or give back memory.
    OtherPrograms,
    /// A session makes as many requests as the daemon remembers.
    Insist,
    Resume(u32),
    Die(u32),
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    items: BTreeMap<(Time, u64), (u64, Action)>,
    last: u64,
}

impl Queue {
    /// Schedules an action. `life` is the daemon's: actions of a daemon that has ended never run.
    pub(super) fn schedule(&mut self, time: Time, life: u64, action: Action) {
        self.last += 1;
        self.items.insert((time, self.last), (life, action));
    }

    pub(super) fn next_time(&self) -> Option<Time> {
        self.items.first_key_value().map(|((time, _), _)| *time)
    }

    pub(super) fn pop(&mut self) -> Option<(Time, u64, Action)> {
        self.items.pop_first().map(|((time, _), (life, action))| (time, life, action))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}
