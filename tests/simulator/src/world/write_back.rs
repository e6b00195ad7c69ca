//! Write-backs of parts in use: within the time of a copy or two, their processes write them, and operators
//! move them or leave them.

use std::time::Duration;

use broker_core::{ChannelId, Event, OperatorRequest, PartRef, Target, Tier, Time};
use vramd_words::{Access, Unpinned};

use super::{World, process::Channel, queue::Action};
use crate::dice::Dice;

impl World {
    pub(super) fn write_back_some(&mut self, dice: &mut Dice) {
        let known = self.some_writable(dice).filter(|_| dice.chance(750));
        let Some((id, part)) = known else {
            let (target, parts) = self.some_parts(dice);
            let key = dice.chance(200).then(|| self.new_key());
            return self.operator_call(key, OperatorRequest::WriteBackParts { target, parts });
        };
        if self.scenario.write_backs.is_some_and(|it| dice.chance(it.twice)) {
            return self.write_back_twice(part, dice);
        }
        let mut when = self.now;
        for step in 0..dice.between(2, 7) {
            when = when.after(Duration::from_micros(dice.between(20, 1_000)));
            let (target, parts) = (Target::Id(part.allocation), vec![part.part]);
            let request = match dice.roll(10) {
                _ if step == 0 => OperatorRequest::WriteBackParts { target, parts },
                0..3 => OperatorRequest::WriteBackParts { target, parts },
                3..7 => {
                    self.queue.schedule(when, self.life, Action::Write(id, part));
                    continue;
                }
                7 => OperatorRequest::MoveParts { target, parts, tier: Tier::Host },
                8 => OperatorRequest::MoveParts { target, parts, tier: Tier::Disk },
                _ => OperatorRequest::MoveParts { target, parts, tier: Tier::Device },
            };
            self.order_at(when, request);
        }
    }

    /// Writes a part back when its backing is clean already, moves it out, and fetches it: a copy that failed
    /// meanwhile shows in its content.
    fn write_back_twice(&mut self, part: PartRef, dice: &mut Dice) {
        let has_host = self.scenario.config.devices.iter().any(|device| !device.host.is_zero());
        let below = if has_host { Tier::Host } else { Tier::Disk };
        let mut when = self.now;
        for step in 0..4 {
            // A copy takes three milliseconds at most, unless a fault delays it.
            let pause = if step == 0 { 1 } else { dice.between(1_500, 3_200) };
            when = when.after(Duration::from_micros(pause));
            let (target, parts) = (Target::Id(part.allocation), vec![part.part]);
            self.order_at(
                when,
                match step {
                    0 | 1 => OperatorRequest::WriteBackParts { target, parts },
                    2 => OperatorRequest::MoveParts { target, parts, tier: below },
                    _ => OperatorRequest::MoveParts { target, parts, tier: Tier::Device },
                },
            );
        }
    }

    fn order_at(&mut self, when: Time, request: OperatorRequest) {
        let call = self.new_call(None);
        let event = Event::Operator { call, uid: 0, key: None, request };
        self.queue.schedule(when, self.life, Action::Arrive(event));
    }

    /// A part that its process may write and has not pinned now, if there is any.
    fn some_writable(&self, dice: &mut Dice) -> Option<(ChannelId, PartRef)> {
        let honest = |channel: &Channel| channel.broker_open && channel.client_open && !channel.lied;
        let open = self.channels.iter().filter(|(_, it)| it.words.is_some() && honest(it));
        let written: Vec<_> = open
            .flat_map(|(id, channel)| {
                let free = |part: &PartRef| channel.mapped[part].writable && !channel.is_pinned(*part);
                channel.mapped.keys().filter(|part| free(part)).map(|part| (*id, *part)).collect::<Vec<_>>()
            })
            .collect();
        dice.pick(&written).copied()
    }

    /// A process pins a part that it maps, writes it, and unpins.
    pub(super) fn write_at_once(&mut self, id: ChannelId, part: PartRef) {
        let Some(channel) = self.channels.get(&id).filter(|channel| channel.client_open) else { return };
        let pid = channel.pid;
        let awake = |process: &super::Process| !process.stopped && process.channel == Some(id);
        if !self.processes.get(&pid).is_some_and(awake) {
            return;
        }
        match channel.pin_words(&[part], Access::Write, self.now) {
            Ok(()) => {
                self.touch(id, part, true);
                self.unpin(pid, &[part]);
            }
            Err(Unpinned::WakeWorker) => self.unmap_revoked(pid, id),
            Err(Unpinned::Done) => {}
        }
    }
}
