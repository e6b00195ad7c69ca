//! Virtual time: what is to happen, by when, and in the order in which it was decided where the time is the same.

use std::collections::BTreeMap;

use broker_core::{ChannelId, Event, PartRef, StoredQuotas, Time};

use super::driver::Job;

#[derive(Debug)]
pub(super) enum Action {
    /// A process of this seat does its next thing.
    Act(usize),
    /// Operators do their next thing.
    Operate,
    /// The daemon reads the words of its sessions.
    Harvest,
    /// The worker of a client takes its next frame.
    Work(ChannelId),
    /// An event reaches the broker.
    Arrive(Event),
    /// A process writes a part at once, if it is mapped by this channel.
    Write(ChannelId, PartRef),
    /// The driver has done something.
    Done(Job),
    /// The disk has written, or not.
    Stored(StoredQuotas),
    /// Processes that the broker does not know take or give back memory.
    OtherPrograms,
    Resume(u32),
    Die(u32),
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    items: BTreeMap<(Time, u64), (u64, Action)>,
    last: u64,
}

impl Queue {
    /// `life` is the daemon's: what a daemon that is gone had under way never comes.
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
