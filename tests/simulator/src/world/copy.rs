//! Copies of the simulated driver, and what processes and the driver read of what they carry. A failed copy
//! spoils its target.

use broker_core::{ChannelId, Completion, DigestSpan, Event, PartRef, Tier};
use vramd_types::{AllocationId, Bytes, CopyClass, ExtentId};

use super::{
    World,
    content::Content,
    driver::{Job, soon},
    files::Storage,
    queue::Action,
};
use crate::{
    coverage::{DiskStep, FileStep, InPlaceStep},
    scenario::Fault,
};

/// By which factor copies without a waiter fail more often than others, in most worlds.
const USUAL_FACTOR: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Copying {
    pub(super) from: ExtentId,
    /// The content when the copy began: later writes may be missed.
    content: Content,
    /// As it was ordered.
    class: CopyClass,
    cancelled: bool,
}

impl World {
    pub(super) fn copy(&mut self, (from, to): (ExtentId, ExtentId), bytes: Bytes, class: CopyClass) {
        let whole = self.driver.pieces.get(&from).filter(|piece| piece.size == bytes);
        let content = whole.map(|piece| piece.content).unwrap_or_else(|| self.driver.contents.garbage());
        self.driver.copies.insert(to, Copying { from, content, class, cancelled: false });
        match self.driver.lanes.is_some() {
            true => self.queue_copy(from, to, class),
            false => self.submit(Job::Copy { to }),
        }
    }

    /// Cancels a copy: in time, so that it ends soon; or too late, so that it goes on as if uncancelled.
    pub(super) fn cancel_copy(&mut self, to: ExtentId) {
        let in_time = self.driver.dice.chance(600);
        if let Some(copying) = self.driver.copies.get_mut(&to).filter(|_| in_time) {
            copying.cancelled = true;
            if self.driver.lanes.is_some() {
                return self.give_up_copy(to);
            }
            let when = soon(&mut self.driver.dice, self.now, 1, 100);
            self.queue.schedule(when, self.life, Action::Done(Job::Copy { to }));
        }
    }

    /// Ends a copy. One that was cancelled in time has ended before.
    pub(super) fn finish_copy(&mut self, to: ExtentId) {
        let Some(Copying { from, content, class, cancelled }) = self.driver.copies.remove(&to) else {
            return;
        };
        let rate = self.scenario.faults.rate(Fault::CopyFails);
        // Copies without a waiter fail more often, since a backing that was clean is spoiled then.
        let factor = self.scenario.write_backs.map_or(USUAL_FACTOR, |it| it.fail_factor);
        let rate = if class == CopyClass::WriteBack { rate * factor } else { rate };
        let fails = self.driver.dice.chance(rate);
        let how = self.driver.dice.roll(3);
        let (result, content) = match (cancelled, fails, how) {
            (true, _, 0) => (Err("cancelled before it began"), None),
            (true, ..) => (Err("cancelled"), Some(self.driver.contents.garbage())),
            (false, true, 0) => (Err("the link is down"), None),
            (false, true, 1) => (Err("short"), Some(self.driver.contents.garbage())),
            (false, true, _) => (Err("the checksum is another"), Some(self.driver.contents.garbage())),
            (false, false, _) => (Ok(()), Some(content)),
        };
        if let (Some(piece), Some(content)) = (self.driver.pieces.get_mut(&to), content) {
            piece.content = content;
            self.driver.damaged.remove(&to);
        }
        // The disk or the file may give other content than was written, or none, this time.
        let source = self.driver.pieces.get(&from).map(|piece| (piece.tier, piece.storage));
        let from_disk = source == Some((Tier::Disk, Storage::Own));
        let to_disk = self.driver.pieces.get(&to).is_some_and(|piece| piece.tier == Tier::Disk);
        if fails && !cancelled && (from_disk || to_disk) {
            self.coverage.count_step(if how == 1 { DiskStep::Short } else { DiskStep::Failed });
        }
        let damaged = match from_disk {
            true => self.draw_damage(from),
            false => self.draw_file_change(from),
        };
        if damaged && !cancelled {
            let content = self.driver.contents.garbage();
            self.driver.pieces.get_mut(&to).into_iter().for_each(|piece| piece.content = content);
            match from_disk {
                true => self.coverage.count_step(DiskStep::Damaged),
                false => self.coverage.count_step(FileStep::Lost),
            }
            let problem = format!("{from} is damaged");
            return self.handle_event(Event::Completion(Completion::Damaged { to, problem }));
        }
        if result.is_ok() && source.is_some_and(|(_, lies)| lies != Storage::Own) {
            self.coverage.count_step(FileStep::Read);
        }
        if result.is_ok() {
            self.record_left_host(from);
        }
        let result = result.map_err(|problem| format!("{problem}, from {from}"));
        self.handle_event(Event::Completion(Completion::Copied { to, result }));
    }

    /// A process reads a part that it maps, and then writes it if it wants to and may.
    pub(super) fn touch(&mut self, id: ChannelId, part: PartRef, writes: bool) {
        let Some(channel) = self.channels.get(&id).filter(|channel| channel.client_open && !channel.lied)
        else {
            return;
        };
        let Some(mapping) = channel.mapped.get(&part).copied() else { return };
        let Some(tenant) = self.processes.get(&channel.pid).map(|it| self.scenario.seats[it.seat].tenant)
        else {
            return;
        };
        let Some(piece) = self.driver.pieces.get(&mapping.extent) else { return };
        self.oracle.check_read(part, piece.content);
        if writes && mapping.writable {
            let content = self.driver.contents.written_by(tenant);
            if let Some(piece) = self.driver.pieces.get_mut(&mapping.extent) {
                piece.content = content;
            }
            self.oracle.record_write(part, content);
            self.record_in_place_use(mapping.extent, InPlaceStep::Written);
        }
    }

    /// The driver has read these spans of an allocation.
    pub(super) fn check_hashed(&mut self, id: AllocationId, spans: &[DigestSpan]) {
        let content = |span: &DigestSpan| Some(self.driver.pieces.get(&span.extent)?.content);
        if let Some(read) = spans.iter().map(content).collect::<Option<Vec<_>>>() {
            self.oracle.check_hashed(id, &read);
        }
    }
}
