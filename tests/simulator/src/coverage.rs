//! Which transitions of which table were taken, which illegal ones were tried and refused, and how often; and whether
//! each illegal one is refused when it is forced.

use std::collections::BTreeMap;

use broker_core::{
    AllocationEvent, AllocationState, MapEvent, MapState, MigrationEvent, MigrationState, SessionEvent,
    SessionState, Transition, WriteBackEvent, WriteBackState,
};

use crate::forced;

/// One cell of a table: state and event.
pub type Cell = (&'static str, String);

/// What becomes of what is loaded: worlds without it would prove nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileStep {
    /// It was read, and is sealed.
    Loaded,
    /// A part of it was copied out of its file.
    Read,
    /// Its file has changed.
    Lost,
    /// A part of it has left its device without a copy.
    Left,
}

impl FileStep {
    const ALL: [Self; 4] = [Self::Loaded, Self::Read, Self::Lost, Self::Left];
}

/// One of either kind.
#[derive(Clone, Debug)]
pub struct Step {
    table: &'static str,
    cell: String,
    key: (u8, u8, u8),
}

/// What becomes of what is accessed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceStep {
    /// A client mapped it in the host's memory.
    Mapped,
    /// And wrote it there.
    Written,
    /// It left the host's memory after somebody had mapped it there.
    Left,
}

impl PlaceStep {
    const ALL: [Self; 3] = [Self::Mapped, Self::Written, Self::Left];
}

/// Counts by cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<(u8, u8, u8), u64>,
}

/// A cell with what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub table: &'static str,
    /// `State + Event`.
    pub cell: String,
    pub legal: bool,
    pub count: u64,
    /// Of an illegal one: whether it is refused when it is forced, see [`crate::forced`].
    pub refused: bool,
}

impl Coverage {
    pub fn count(&mut self, transitions: &[Transition]) {
        for transition in transitions {
            *self.counts.entry(key(*transition)).or_default() += 1;
        }
    }

    pub fn saw(&mut self, step: impl Into<Step>) {
        *self.counts.entry(step.into().key).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (key, count) in &other.counts {
            *self.counts.entry(*key).or_default() += count;
        }
    }

    /// Every cell of every table, taken or not.
    pub fn rows(&self) -> Vec<Row> {
        let of_files = FileStep::ALL.into_iter().map(|step| self.row_of(step));
        let in_place = PlaceStep::ALL.into_iter().map(|step| self.row_of(step));
        cells().into_iter().map(|transition| self.row(transition)).chain(of_files).chain(in_place).collect()
    }

    fn row_of(&self, step: impl Into<Step>) -> Row {
        let Step { table, cell, key } = step.into();
        let count = self.counts.get(&key).copied().unwrap_or_default();
        Row { table, cell, legal: true, count, refused: false }
    }

    fn row(&self, transition: Transition) -> Row {
        let (table, cell, legal) = match transition {
            Transition::Allocation { from, event, legal } => {
                ("allocation", format!("{from:?} + {event:?}"), legal)
            }
            Transition::Session { from, event, legal } => ("session", format!("{from:?} + {event:?}"), legal),
            Transition::Mapping { from, event, legal } => ("mapping", format!("{from:?} + {event:?}"), legal),
            Transition::Migration { from, event, legal } => {
                ("migration", format!("{from:?} + {event:?}"), legal)
            }
            Transition::WriteBack { from, event, legal } => {
                ("write-back", format!("{from:?} + {event:?}"), legal)
            }
        };
        let count = self.counts.get(&key(transition)).copied().unwrap_or_default();
        Row { table, cell, legal, count, refused: !legal && forced::is_refused(transition) }
    }

    /// Illegal transitions that are not refused.
    pub fn not_refused(&self) -> Vec<Row> {
        self.rows().into_iter().filter(|row| !row.legal && !row.refused).collect()
    }

    /// Legal transitions that never happened.
    pub fn never_taken(&self) -> Vec<Row> {
        self.rows().into_iter().filter(|row| row.legal && row.count == 0).collect()
    }
}

/// Every cell, legal or not by its table; the tables themselves are literals in the tests of the core.
fn cells() -> Vec<Transition> {
    let mut all = Vec::new();
    for from in AllocationState::ALL {
        for event in AllocationEvent::ALL {
            all.push(Transition::Allocation { from, event, legal: from.on(event).is_some() });
        }
    }
    for from in SessionState::ALL {
        for event in SessionEvent::ALL {
            all.push(Transition::Session { from, event, legal: from.on(event).is_some() });
        }
    }
    for from in MapState::ALL {
        for event in MapEvent::ALL {
            all.push(Transition::Mapping { from, event, legal: from.allows(event) });
        }
    }
    for from in MigrationState::ALL {
        for event in MigrationEvent::ALL {
            all.push(Transition::Migration { from, event, legal: from.allows(event) });
        }
    }
    for from in WriteBackState::ALL {
        for event in WriteBackEvent::ALL {
            all.push(Transition::WriteBack { from, event, legal: from.allows(event) });
        }
    }
    all
}

impl From<FileStep> for Step {
    fn from(step: FileStep) -> Self {
        Self { table: "file", cell: format!("{step:?}"), key: (5, step as u8, 0) }
    }
}

impl From<PlaceStep> for Step {
    fn from(step: PlaceStep) -> Self {
        Self { table: "place", cell: format!("{step:?}"), key: (6, step as u8, 0) }
    }
}

const fn key(transition: Transition) -> (u8, u8, u8) {
    match transition {
        Transition::Allocation { from, event, .. } => (0, from as u8, event as u8),
        Transition::Session { from, event, .. } => (1, from as u8, event as u8),
        Transition::Mapping { from, event, .. } => (2, from as u8, event as u8),
        Transition::Migration { from, event, .. } => (3, from as u8, event as u8),
        Transition::WriteBack { from, event, .. } => (4, from as u8, event as u8),
    }
}
