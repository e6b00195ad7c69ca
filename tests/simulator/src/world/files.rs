//! Files that clients load: the content of each piece follows from its offset, until the file is changed or
//! gone.

use std::sync::Arc;

use broker_core::{
    AllocationView, ClientRequest, Completion, CreateError, Event, FileId, FileSpan, Kind, Target, Tier,
};
use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId};

use super::{World, content::Content, driver::Piece};
use crate::{coverage::FileStep, dice::Dice, scenario::Fault};

/// Number of loaded allocations that attaching processes may pick from.
const LOADED_MAX: usize = 16;

/// Where a piece of memory is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// In memory, or in room on disk, that was made for it.
    Own,
    InFile,
    /// In a file that has changed: it cannot be read any longer.
    Changed,
}

impl World {
    pub(super) fn finish_open(&mut self, extent: ExtentId, file: FileId, offset: Bytes, size: Bytes) {
        let result = match self.driver.dice.chance(self.scenario.faults.rate(Fault::CreateFails)) {
            true => Err(CreateError::Failed("no such file".to_owned())),
            false => {
                let content = Content::File { file, offset };
                let (device, tier, storage) = (DeviceIndex(0), Tier::Disk, Storage::InFile);
                let piece = Piece { device, tier, size, content, daemon_holds: true, orphan: false, storage };
                self.driver.pieces.insert(extent, piece);
                Ok(())
            }
        };
        self.handle_event(Event::Completion(Completion::Created { extent, result }));
    }

    /// Draws whether the piece's file has changed, which is for good.
    pub(super) fn draw_file_change(&mut self, extent: ExtentId) -> bool {
        let Some(piece) = self.driver.pieces.get_mut(&extent) else { return false };
        let changes = self.scenario.faults.rate(Fault::FileChanges);
        if piece.storage == Storage::InFile && self.driver.dice.chance(changes) {
            piece.storage = Storage::Changed;
        }
        piece.storage == Storage::Changed
    }

    /// Whether a process that would allocate loads instead.
    pub(super) fn chooses_load(&self, dice: &mut Dice) -> bool {
        self.scenario.files.is_some_and(|files| dice.chance(files.loads))
    }

    /// A load that mostly makes sense, and now and then does not.
    pub(super) fn some_load(&self, pins: bool, dice: &mut Dice) -> ClientRequest {
        let mut spec = self.some_spec(pins, dice);
        if dice.chance(950) {
            (spec.kind, spec.discardable) = (Kind::Movable, false);
        }
        spec.unpinned &= dice.chance(200);
        if dice.chance(150) {
            (spec.size, spec.part_size) = self.larger_than_device(dice);
        }
        let offset = match dice.roll(30) {
            0 => Bytes::MAX,
            1..16 => Bytes::ZERO,
            16..24 => Bytes::mib(dice.small(16)),
            _ => Bytes::new(dice.between(1, 1 << 24)),
        };
        let file = FileId(dice.between(1, 3));
        ClientRequest::Load { spec, file: FileSpan { file, path: Arc::from("/models/m"), offset } }
    }

    /// A recently loaded allocation of any tenant.
    pub(super) fn some_loaded(&self, dice: &mut Dice) -> Option<Target> {
        self.scenario.files?;
        let picked = dice.index(self.loaded.len());
        self.loaded.get(picked).map(|id| Target::Id(*id)).filter(|_| dice.chance(500))
    }

    /// Counts that a part left for disk without a copy: to its file, if it was loaded.
    pub(super) fn record_left_for_file(&mut self, id: AllocationId) {
        let view = self.broker.show(&Target::Id(id));
        if view.is_ok_and(|view| view.file.is_some()) {
            self.coverage.count_step(FileStep::Left);
        }
    }

    pub(super) fn learn_loaded(&mut self, view: &AllocationView) {
        if view.file.is_none() || self.loaded.contains(&view.id) {
            return;
        }
        self.coverage.count_step(FileStep::Loaded);
        self.recent.push_back(view.id);
        self.loaded.push_back(view.id);
        if self.loaded.len() > LOADED_MAX {
            self.loaded.pop_front();
        }
    }
}
