//! How a client's worker thread handles frames.

use broker_core::{ChannelId, ClientFrame, DaemonFrame, Event, MapPart, PartRef, UnmappedPart};

use super::{World, process::Mapping, queue::Action};
use crate::{
    coverage::{InPlaceStep, OwnerStep},
    scenario::{Fault, Script},
};

impl World {
    pub(super) fn work(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        channel.working = false;
        let pid = channel.pid;
        let Some(process) = self.processes.get(&pid) else { return };
        if process.stopped || !channel.client_open {
            return;
        }
        let script = self.scenario.seats[process.seat].script;
        if !self.calm && self.links.chance(self.scenario.faults.rate(Fault::SlowAnswers)) {
            channel.working = true;
            let when = super::driver::soon(&mut self.links, self.now, 2_000, 30_000);
            return self.queue.schedule(when, 0, Action::Work(id));
        }
        let Some(frame) = channel.inbox.pop_front() else { return };
        match frame {
            DaemonFrame::Welcome { session, slots, .. } => {
                if slots > 0 {
                    self.map_words(id);
                }
                if let Some(process) = self.processes.get_mut(&pid)
                    && process.channel == Some(id)
                {
                    process.session = Some(session);
                }
            }
            DaemonFrame::Refused(_) => {
                if let Some(process) = self.processes.get_mut(&pid)
                    && process.channel == Some(id)
                {
                    process.lose_session();
                }
            }
            DaemonFrame::Map(parts) => self.map(id, pid, parts),
            DaemonFrame::Revoke { parts, reason } => self.handle_revoke(id, pid, script, &parts, reason),
            DaemonFrame::PinAnswer { call, refusal } => self.handle_pin_answer(id, pid, call, refusal),
            DaemonFrame::Lost(_)
            | DaemonFrame::Drain { .. }
            | DaemonFrame::Pressure(_)
            | DaemonFrame::Prefetch { .. } => {}
            DaemonFrame::Sequence { number, state } => self.hear_of_sequence(pid, number, &state),
            DaemonFrame::WorkingSet { number, refusal } => self.hear_of_set(pid, number, refusal.is_some()),
            DaemonFrame::ManagedOrders { number, orders } => self.execute_orders(id, pid, number, &orders),
            DaemonFrame::Turn { turn, state } => self.hear_of_turn(pid, turn, &state),
        }
        self.wake_worker(id);
    }

    /// Maps the word table and reports it, before all else; some clients never do.
    fn map_words(&mut self, id: ChannelId) {
        let rate = self.scenario.faults.rate(Fault::Lies) / 4;
        let forgets = !self.calm && self.links.chance(rate);
        if let Some(channel) = self.channels.get_mut(&id).filter(|_| forgets) {
            return channel.lied = true;
        }
        self.send_up(id, Event::Frame { channel: id, frame: ClientFrame::WordsMapped });
    }

    /// Maps the parts that were sent and reports it, sometimes in several frames; sometimes mapping fails.
    fn map(&mut self, id: ChannelId, pid: u32, parts: Vec<MapPart>) {
        let rate = self.scenario.faults.rate(Fault::MapFails);
        let (mut mapped, mut failed) = (Vec::new(), Vec::new());
        for part in parts {
            // Mapping fails more often where it matters most: where a thread waits for the part.
            let waits = self.processes.get(&pid).is_some_and(|process| process.waits_for(part.part));
            if self.links.chance(if waits { 6 * rate } else { rate }) {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.drop_reference(part.extent);
                }
                // Some processes do not want it any longer; the others may pin it again.
                let failure = (!part.extent.get().is_multiple_of(4)).then(|| "no room".to_owned());
                if let Some(channel) = self.channels.get_mut(&id) {
                    match failure {
                        Some(_) => channel.learn_slot(&part),
                        None => _ = channel.slots.remove(&part.part),
                    }
                }
                failed.push(UnmappedPart { part: part.part, failure, written: false });
                continue;
            }
            if let Some(channel) = self.channels.get_mut(&id) {
                let mapping = Mapping { extent: part.extent, writable: part.writable };
                channel.mapped.insert(part.part, mapping);
                channel.map_word(&part);
            }
            self.record_in_place_use(part.extent, InPlaceStep::Mapped);
            // A process without pins uses a part for as long as it maps it.
            if part.slot.is_none() && part.writable {
                self.record_returned(pid, &part);
            }
            let writes = part.slot.is_none() && self.links.chance(500);
            self.touch(id, part.part, writes);
            mapped.push(part.part);
        }
        let pieces = if self.links.chance(300) { 1 } else { mapped.len().max(1) };
        for piece in mapped.chunks(pieces) {
            let frame = ClientFrame::Mapped(piece.to_vec());
            self.send_up(id, Event::Frame { channel: id, frame });
        }
        if !failed.is_empty() {
            let frame = ClientFrame::Unmapped(failed);
            self.send_up(id, Event::Frame { channel: id, frame });
        }
    }

    /// Counts that an owner without pins has mapped a part that was elsewhere since.
    fn record_returned(&mut self, pid: u32, part: &MapPart) {
        let process = self.processes.get_mut(&pid);
        let before = process.and_then(|process| process.mapped_in.insert(part.part, part.extent));
        if before.is_some_and(|extent| extent != part.extent) {
            self.coverage.count_step(OwnerStep::Returned);
        }
    }

    /// Unmaps those of the parts that it maps, and reports it. A process that leaks keeps a descriptor.
    pub(super) fn unmap(&mut self, id: ChannelId, pid: u32, script: Script, parts: &[PartRef]) {
        let rate = self.scenario.faults.rate(Fault::Clung) * script.factor(Script::Leaking);
        let mut unmapped = Vec::new();
        for part in parts {
            let Some(channel) = self.channels.get_mut(&id) else { continue };
            let Some(Mapping { extent, .. }) = channel.mapped.remove(part) else { continue };
            let written = channel.unmap_word(*part);
            let leaks = self.links.chance(rate);
            if let Some(process) = self.processes.get_mut(&pid)
                && !leaks
            {
                process.drop_reference(extent);
            }
            unmapped.push(UnmappedPart { part: *part, failure: None, written });
        }
        if !unmapped.is_empty() {
            let frame = ClientFrame::Unmapped(unmapped);
            self.send_up(id, Event::Frame { channel: id, frame });
        }
    }
}
