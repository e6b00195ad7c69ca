//! How a process pins: its threads pin sets by their words, call for parts that are not mapped, keep pins,
//! ask for more meanwhile, and unpin.

use std::time::Duration;

use broker_core::{ChannelId, ClientFrame, Event, PartRef, Refusal, RevokeReason, RevokedPart};
use vramd_types::PartIndex;
use vramd_words::{Access, Unpinned};

use super::{World, process::WaitingPin};
use crate::{
    dice::Dice,
    scenario::{Fault, Script},
};

impl World {
    pub(super) fn pin_some(&mut self, pid: u32, dice: &mut Dice) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let Some(id) = process.channel else { return };
        let Some(channel) = self.channels.get(&id).filter(|channel| channel.words.is_some()) else { return };
        let at = dice.index(process.threads.len());
        let thread = &mut process.threads[at];
        if let Some(call) = thread.waiting.as_ref().map(|waits| waits.call) {
            if dice.chance(60) {
                thread.waiting = None;
                self.send_frame(id, ClientFrame::PinEnded { call });
            }
            return;
        }
        // Threads of a crowd ask for more only once they have let go, so that none of them stalls.
        let lets_go = dice.chance(450) || self.scenario.crowds.is_some();
        if !thread.pinned.is_empty() && lets_go {
            let writes = thread.writes.clone();
            let parts = thread.take_pins();
            // The thread has written for as long as it had them pinned.
            writes.iter().for_each(|part| self.touch(id, *part, true));
            return self.unpin(pid, &parts);
        }
        let unsent = channel.unpinned.iter().filter(|part| !channel.slots.contains_key(part));
        let known: Vec<_> = channel.slots.keys().chain(unsent).copied().collect();
        let count = dice.between(1, self.scenario.crowds.map_or(3, |crowds| crowds.set_max));
        let mut parts: Vec<PartRef> = (0..count).filter_map(|_| dice.pick(&known).copied()).collect();
        if dice.chance(8) {
            parts.push(PartRef { allocation: self.guess(dice), part: PartIndex(dice.small(3)) });
        }
        parts.sort_unstable();
        parts.dedup();
        if !parts.is_empty() {
            self.pin(pid, at, parts, dice);
        }
    }

    /// Pins the part in a thread that does not wait, if there is any, with another part that is not mapped.
    pub(super) fn pin_with_another(&mut self, pid: u32, part: PartRef, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        let idle = process.threads.iter().position(|thread| thread.waiting.is_none());
        let channel = process.channel.and_then(|id| self.channels.get(&id));
        let Some((at, channel)) = idle.zip(channel) else { return };
        let unmapped = |other: &&PartRef| **other != part && !channel.mapped.contains_key(*other);
        let away: Vec<_> = channel.slots.keys().filter(unmapped).copied().collect();
        let mut parts: Vec<_> = dice.pick(&away).copied().into_iter().chain([part]).collect();
        parts.sort_unstable();
        self.pin(pid, at, parts, dice);
    }

    /// Pins the parts of a step in a thread that does not wait, if there is any.
    pub(super) fn pin_step(&mut self, pid: u32, mut parts: Vec<PartRef>, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        let Some(at) = process.threads.iter().position(|thread| thread.waiting.is_none()) else { return };
        parts.sort_unstable();
        self.pin(pid, at, parts, dice);
    }

    /// Ends all pins of threads that do not wait.
    pub(super) fn let_go_of_all(&mut self, pid: u32, id: ChannelId) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let idle = process.threads.iter_mut().filter(|thread| thread.waiting.is_none());
        let ended: Vec<_> = idle.map(|thread| (thread.writes.clone(), thread.take_pins())).collect();
        for (writes, parts) in ended {
            writes.iter().for_each(|part| self.touch(id, *part, true));
            if !parts.is_empty() {
                self.unpin(pid, &parts);
            }
        }
    }

    /// Pins by the words, or else by a call.
    fn pin(&mut self, pid: u32, at: usize, parts: Vec<PartRef>, dice: &mut Dice) {
        let write = dice.chance(300);
        let access = if write { Access::Write } else { Access::Read };
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let Some(id) = process.channel else { return };
        let Some(channel) = self.channels.get(&id) else { return };
        match channel.pin_words(&parts, access, self.now) {
            Ok(()) => {
                process.threads[at].add_pins(&parts, write);
                parts.iter().for_each(|part| self.touch(id, *part, write));
            }
            Err(then) => {
                process.last_pin += dice.between(1, 2);
                let call = process.last_pin;
                process.threads[at].waiting = Some(WaitingPin { call, parts: parts.clone(), write });
                // One in eight has a deadline.
                let wait = dice.chance(125).then(|| Duration::from_micros(dice.between(500, 150_000)));
                self.send_frame(id, ClientFrame::Pin { call, parts, write, wait });
                if then == Unpinned::WakeWorker {
                    self.unmap_revoked(pid, id);
                }
            }
        }
    }

    pub(super) fn handle_pin_answer(&mut self, id: ChannelId, pid: u32, call: u64, refusal: Option<Refusal>) {
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.channel == Some(id)) else {
            return;
        };
        let waits =
            |thread: &super::process::Thread| thread.waiting.as_ref().is_some_and(|waits| waits.call == call);
        let Some(at) = process.threads.iter().position(waits) else { return };
        let thread = &mut process.threads[at];
        let Some(WaitingPin { parts, write, .. }) = thread.waiting.take() else { return };
        let mut give_back = Vec::new();
        match refusal {
            Some(Refusal::PinStalled { .. }) => give_back = thread.take_pins(),
            Some(Refusal::AllocationNotFound { allocation }) => {
                if let Some(channel) = self.channels.get_mut(&id) {
                    let mapped = &channel.mapped;
                    channel.slots.retain(|part, _| mapped.contains_key(part) || !parts.contains(part));
                    channel.unpinned.retain(|part| part.allocation.to_string() != allocation);
                }
            }
            Some(_) => {}
            None => {
                let access = if write { Access::Write } else { Access::Read };
                let pinned =
                    self.channels.get(&id).map(|channel| channel.pin_words(&parts, access, self.now));
                if pinned == Some(Ok(())) {
                    thread.add_pins(&parts, write);
                    parts.iter().for_each(|part| self.touch(id, *part, write));
                } else if pinned == Some(Err(Unpinned::WakeWorker)) {
                    self.unmap_revoked(pid, id);
                }
                // Some processes never report that they are done.
                if !self.links.chance(self.scenario.faults.rate(Fault::Lies) / 2) {
                    self.send_frame(id, ClientFrame::PinEnded { call });
                }
            }
        }
        self.unpin(pid, &give_back);
        if self.calm {
            self.unpin_all(pid);
        }
    }

    /// Unpins what all threads have pinned, except threads that wait.
    pub(super) fn unpin_all(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let free = process.threads.iter_mut().filter(|thread| thread.waiting.is_none());
        let parts: Vec<_> = free.flat_map(super::process::Thread::take_pins).collect();
        self.unpin(pid, &parts);
    }

    pub(super) fn unpin(&mut self, pid: u32, parts: &[PartRef]) {
        let Some(id) = self.processes.get(&pid).and_then(|process| process.channel) else { return };
        if self.channels.get(&id).is_some_and(|channel| channel.unpin_words(parts)) {
            self.unmap_revoked(pid, id);
        }
    }

    /// Handles a revoke frame in the worker. A pinned part waits for its last unpin.
    pub(super) fn handle_revoke(
        &mut self,
        id: ChannelId,
        pid: u32,
        script: Script,
        parts: &[RevokedPart],
        reason: RevokeReason,
    ) {
        let keeps = reason == RevokeReason::Evicted;
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let (mut free, mut lost) = (Vec::new(), Vec::new());
        for part in parts.iter().map(|told| told.part) {
            if channel.mapped.contains_key(&part) && channel.is_pinned(part) {
                channel.to_unmap.insert(part, keeps);
                continue;
            }
            free.push(part);
            if !keeps {
                lost.push(part);
            }
        }
        self.unmap(id, pid, script, &free);
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.slots.retain(|part, _| !lost.contains(part));
        }
    }

    pub(super) fn unmap_revoked(&mut self, pid: u32, id: ChannelId) {
        let Some(channel) = self.channels.get(&id) else { return };
        let free = channel.to_unmap.iter().filter(|(part, _)| !channel.is_pinned(**part));
        let free: Vec<_> = free.map(|(part, keeps)| (*part, *keeps)).collect();
        let Some(seat) = self.processes.get(&pid).map(|process| process.seat) else { return };
        let script = self.scenario.seats[seat].script;
        for (part, keeps) in free {
            self.unmap(id, pid, script, &[part]);
            if !keeps && let Some(channel) = self.channels.get_mut(&id) {
                channel.slots.remove(&part);
            }
        }
    }

    /// Unmaps a part without being told, unless it is pinned.
    pub(super) fn unmap_own(&mut self, id: ChannelId, pid: u32, script: Script, part: PartRef) {
        if self.channels.get(&id).is_some_and(|channel| channel.is_pinned(part)) {
            return;
        }
        self.unmap(id, pid, script, &[part]);
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.slots.remove(&part);
        }
    }

    /// Sends calls that were made before or never, and sets that are none.
    pub(super) fn lie_about_pins(&mut self, pid: u32, id: ChannelId, part: PartRef, dice: &mut Dice) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let last = process.last_pin;
        process.last_pin += 1;
        let wait = None;
        let frame = match dice.roll(4) {
            0 => ClientFrame::Pin { call: last, parts: vec![part], write: false, wait },
            1 => ClientFrame::Pin { call: last + 1, parts: vec![part, part], write: false, wait },
            2 => ClientFrame::Pin { call: last + 1, parts: Vec::new(), write: true, wait },
            _ => ClientFrame::PinEnded { call: last + 1 },
        };
        self.send_frame(id, frame);
    }

    /// Writes into the table what no honest client does.
    pub(super) fn spoil_word(&mut self, id: ChannelId, part: PartRef, dice: &mut Dice) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.spoil_word(part, dice.one(&[1 << 40, 1 << 63, 1 << 27, 0xff_ffff]));
        }
    }

    fn send_frame(&mut self, channel: ChannelId, frame: ClientFrame) {
        self.send_up(channel, Event::Frame { channel, frame });
    }
}
