//! Coverage of transitions: which were taken, which illegal ones were tried and refused, how often, and
//! whether each illegal one is refused when it is forced.

mod steps;

pub use steps::{
    DiskStep, FileStep, InPlaceStep, LevelStep, LineStep, OwnerStep, RepeatStep, SettingStep, Step, TurnStep,
};

use std::collections::BTreeMap;

use broker_core::{
    AllocationEvent, AllocationState, MapEvent, MapState, MigrationEvent, MigrationState, SessionEvent,
    SessionState, Transition, WriteBackEvent, WriteBackState,
};

use crate::forced;

/// One cell of a table: state and event.
pub type Cell = (&'static str, String);

/// Counts by cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<(u8, u8, u8), u64>,
}

/// A cell and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub table: &'static str,
    /// `State + Event`.
    pub cell: String,
    pub legal: bool,
    pub count: u64,
    /// For an illegal cell: whether it is refused when it is forced, see [`crate::forced`].
    pub refused: bool,
}

impl Coverage {
    pub fn count_transitions(&mut self, transitions: &[Transition]) {
        for transition in transitions {
            *self.counts.entry(key(*transition)).or_default() += 1;
        }
    }

    pub fn count_step(&mut self, step: impl Into<Step>) {
        *self.counts.entry(step.into().key).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (key, count) in &other.counts {
            *self.counts.entry(*key).or_default() += count;
        }
    }

    /// Every cell of every table, taken or not, and every other step.
    pub fn rows(&self) -> Vec<Row> {
        let steps = steps::all().into_iter().map(|step| self.row_of(step));
        cells().into_iter().map(|transition| self.row(transition)).chain(steps).collect()
    }

    fn row_of(&self, Step { table, cell, key }: Step) -> Row {
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

const fn key(transition: Transition) -> (u8, u8, u8) {
    match transition {
        Transition::Allocation { from, event, .. } => (0, from as u8, event as u8),
        Transition::Session { from, event, .. } => (1, from as u8, event as u8),
        Transition::Mapping { from, event, .. } => (2, from as u8, event as u8),
        Transition::Migration { from, event, .. } => (3, from as u8, event as u8),
        Transition::WriteBack { from, event, .. } => (4, from as u8, event as u8),
    }
}
