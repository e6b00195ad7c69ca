//! Breaches of the protocol that a process commits.

use broker_core::{ClientFrame, ClientRequest, Event, PartRef, Peer, Target, UnmappedPart};
use vramd_types::{AllocationId, PartIndex, SessionId};

use super::{World, driver::soon, process::UID, queue::Action};
use crate::dice::Dice;

impl World {
    pub(super) fn lie(&mut self, pid: u32, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        let Some(channel) = process.channel else { return };
        let known: Vec<_> = process.known.iter().map(|known| known.id).collect();
        let id = dice.pick(&known).copied().unwrap_or_else(|| self.guess(dice));
        let mapped: Vec<_> = self
            .channels
            .get(&channel)
            .map(|channel| channel.mapped.keys().copied().collect())
            .unwrap_or_default();
        let part = match dice.pick(&mapped) {
            Some(part) if dice.chance(500) => *part,
            _ => PartRef { allocation: id, part: PartIndex(dice.small(3)) },
        };
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.lied = true;
        }
        let lie = dice.roll(9);
        match lie {
            6 | 7 => self.lie_about_pins(pid, channel, part, dice),
            8 => self.spoil_word(channel, part, dice),
            // It reports as mapped what it was not sent, or twice.
            0 | 1 => {
                let frame = ClientFrame::Mapped(vec![part]);
                self.send_up(channel, Event::Frame { channel, frame });
            }
            // It reports as unmapped what it still maps or never mapped, or that it failed to map it.
            2 | 3 => {
                if let Some(channel) = self.channels.get_mut(&channel) {
                    channel.mapped.remove(&part);
                }
                // A write that it denies would be its own loss.
                let failure = (lie == 3).then(|| "no room".to_owned());
                let frame = ClientFrame::Unmapped(vec![UnmappedPart { part, failure, written: true }]);
                self.send_up(channel, Event::Frame { channel, frame });
            }
            // It poses as another process, or names a session that is not its own.
            _ => self.call_as_another(pid, id, dice),
        }
    }

    fn call_as_another(&mut self, pid: u32, id: AllocationId, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        let others: Vec<_> = self
            .processes
            .values()
            .filter(|other| other.pid != pid)
            .filter_map(|other| other.session)
            .collect();
        let own = process.session.unwrap_or(SessionId::from_raw(0));
        let (session, peer) = match dice.roll(5) {
            0 => (SessionId::from_raw(0), process.peer()),
            1 => (SessionId::from_raw(own.get() + 1_000_000), process.peer()),
            2 => (process.past.last().copied().unwrap_or(own), process.peer()),
            3 => (own, Peer { pid, uid: UID + 1 }),
            _ => (dice.pick(&others).copied().unwrap_or(own), process.peer()),
        };
        let request = match dice.roll(3) {
            0 => ClientRequest::FreeBatch(vec![id]),
            1 => ClientRequest::Attach(Target::Id(id)),
            _ => ClientRequest::Detach(vec![id]),
        };
        let call = self.new_call(None);
        let when = soon(&mut self.links, self.now, 5, 250);
        let event = Event::Client { call, session, peer, key: None, request };
        self.queue.schedule(when, self.life, Action::Arrive(event));
    }
}
