//! The state of the view, and how keys and answers change it. Nothing here draws, waits or calls: what a key asks for is
//! returned as a [`Request`].

use std::time::Duration;

use ratatui::crossterm::event::KeyCode;
use vramd_proto::v1::Tier;

use super::{
    action::{Action, Verb},
    grid::{Glyphs, Grid, RowId, Sort},
    grids::Scene,
    rates::{LaneRate, rates},
    snapshot::{Snapshot, Wants},
};
use crate::output::device_names::DeviceNames;

/// Rows that one page key passes.
const PAGE_ROWS: usize = 10;
/// Longest text of a filter.
const FILTER_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Overview,
    Tiers,
    Allocations,
    Moves,
    Line,
    Prefetches,
    Sessions,
    Links,
}

impl Tab {
    pub(super) const ALL: [Self; 8] = [
        Self::Overview,
        Self::Tiers,
        Self::Allocations,
        Self::Moves,
        Self::Line,
        Self::Prefetches,
        Self::Sessions,
        Self::Links,
    ];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Tiers => "Tiers",
            Self::Allocations => "Allocations",
            Self::Moves => "Moves",
            Self::Line => "Line",
            Self::Prefetches => "Prefetches",
            Self::Sessions => "Sessions",
            Self::Links => "Links",
        }
    }

    fn index(self) -> usize {
        Self::ALL.iter().position(|tab| *tab == self).unwrap_or(0)
    }
}

/// The meaning of keys now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Browse,
    /// The filter is being typed. Escape brings the earlier one back.
    Filter {
        before: String,
    },
    Confirm(Action),
    Help,
}

/// The daemon's last answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Done(String),
    Failed(String),
}

/// Whether the figures are of now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Up,
    /// The daemon cannot be asked, since this time after the epoch.
    Lost {
        since: Duration,
        problem: String,
    },
}

/// The request of a key to the loop around the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Quit,
    /// A new snapshot at once.
    Refresh,
    Act(Action),
}

/// Which row of a tab is selected, and how its rows are sorted.
#[derive(Clone, Debug, Default)]
struct Place {
    /// The selected row; the first if absent or gone.
    row: Option<RowId>,
    /// Where that row was last.
    index: usize,
    sort: Option<Sort>,
}

#[derive(Debug)]
pub(super) struct View {
    pub(super) snapshot: Snapshot,
    pub(super) names: DeviceNames,
    /// When the snapshot was taken, and what time it is: both after the epoch.
    pub(super) taken: Duration,
    pub(super) now: Duration,
    pub(super) tab: Tab,
    pub(super) mode: Mode,
    pub(super) filter: String,
    /// The tenant whose allocations are shown; all if absent.
    pub(super) tenant: Option<String>,
    pub(super) message: Option<Message>,
    /// The action that the daemon has not answered.
    pub(super) busy: Option<String>,
    pub(super) connection: Connection,
    pub(super) is_paused: bool,
    pub(super) glyphs: Glyphs,
    pub(super) interval: Duration,
    rates: Vec<LaneRate>,
    places: [Place; Tab::ALL.len()],
}

impl View {
    pub(super) fn new(snapshot: Snapshot, names: DeviceNames, taken: Duration) -> Self {
        let mut places: [Place; Tab::ALL.len()] = std::array::from_fn(|_| Place::default());
        // The largest first.
        let by = |column| Some(Sort { column, is_descending: true });
        places[Tab::Overview.index()].sort = by(3);
        places[Tab::Allocations.index()].sort = by(8);
        Self {
            snapshot,
            names,
            taken,
            now: taken,
            tab: Tab::Overview,
            mode: Mode::Browse,
            filter: String::new(),
            tenant: None,
            message: None,
            busy: None,
            connection: Connection::Up,
            is_paused: false,
            glyphs: Glyphs::ASCII,
            interval: Duration::from_secs(2),
            rates: Vec::new(),
            places,
        }
    }

    /// The lists that this view shows beside those that every view needs.
    pub(super) fn wants(&self) -> Wants {
        Wants {
            allocations: self.tab == Tab::Allocations,
            sessions: self.tab == Tab::Sessions,
            links: self.tab == Tab::Links,
        }
    }

    /// Takes a new snapshot, and says so if the daemon was away.
    pub(super) fn accept(&mut self, snapshot: Snapshot, names: DeviceNames, taken: Duration) {
        let is_restarted = snapshot.node.boot_epoch != self.snapshot.node.boot_epoch;
        if let Connection::Lost { since, .. } = &self.connection {
            let seconds = taken.saturating_sub(*since).as_secs();
            let what = if is_restarted { "a new daemon answers" } else { "the daemon answers again" };
            self.message = Some(Message::Done(format!("{what}, after {seconds} s")));
        }
        self.connection = Connection::Up;
        let before = Some(&self.snapshot.links).filter(|links| !is_restarted && !links.traffic.is_empty());
        self.rates = rates(before, &snapshot.links, taken.saturating_sub(self.taken));
        (self.snapshot, self.names, self.taken, self.now) = (snapshot, names, taken, taken);
        self.remember_row();
    }

    /// Notes that the daemon could not be asked. The last figures stay, marked as old.
    pub(super) fn lose(&mut self, problem: String, now: Duration) {
        self.now = now;
        let since = match &self.connection {
            Connection::Lost { since, .. } => *since,
            Connection::Up => now,
        };
        self.connection = Connection::Lost { since, problem };
    }

    /// Takes the daemon's answer to an action.
    pub(super) fn answer(&mut self, answer: Message) {
        self.busy = None;
        self.message = Some(answer);
    }

    /// How old the figures are, if they are older than the interval explains.
    pub(super) fn stale(&self) -> Option<Duration> {
        let age = self.now.saturating_sub(self.taken);
        (!self.is_paused && age > self.interval * 2 + Duration::from_secs(2)).then_some(age)
    }

    pub(super) fn scene(&self) -> Scene<'_> {
        Scene { snapshot: &self.snapshot, names: &self.names, now: self.taken }
    }

    /// The table whose rows the keys move through, filtered and sorted.
    pub(super) fn grid(&self) -> Grid {
        let scene = self.scene();
        let mut grid = match self.tab {
            Tab::Overview => scene.tenants(),
            Tab::Tiers => scene.tiers(),
            Tab::Allocations => scene.allocations(self.tenant.as_deref()),
            Tab::Moves => scene.moves(),
            Tab::Line => scene.line(),
            Tab::Prefetches => scene.prefetches(),
            Tab::Sessions => scene.sessions(),
            Tab::Links => scene.links(&self.rates),
        };
        grid.filter(&self.filter);
        grid.sort(self.sort());
        grid
    }

    pub(super) fn sort(&self) -> Option<Sort> {
        self.place().sort
    }

    /// The selected row of this table.
    pub(super) fn selected(&self, grid: &Grid) -> Option<usize> {
        let place = self.place();
        let found = place.row.as_ref().and_then(|id| grid.rows.iter().position(|row| row.id == *id));
        found.or(Some(place.index)).map(|at| at.min(grid.rows.len().saturating_sub(1)))
    }

    fn place(&self) -> &Place {
        &self.places[self.tab.index()]
    }

    fn place_mut(&mut self) -> &mut Place {
        &mut self.places[self.tab.index()]
    }

    /// Keeps where the selected row is, so that its neighbour is selected once it is gone.
    fn remember_row(&mut self) {
        let grid = self.grid();
        self.select(&grid, self.selected(&grid).unwrap_or(0));
    }

    fn select(&mut self, grid: &Grid, index: usize) {
        let index = index.min(grid.rows.len().saturating_sub(1));
        let place = self.place_mut();
        place.index = index;
        place.row = grid.rows.get(index).map(|row| row.id.clone());
    }

    /// Acts on a key.
    pub(super) fn update(&mut self, key: KeyCode) -> Option<Request> {
        match self.mode.clone() {
            Mode::Browse => self.browse(key),
            Mode::Filter { before } => {
                self.edit_filter(key, before);
                None
            }
            Mode::Confirm(action) => self.confirm(key, action),
            Mode::Help => {
                self.mode = Mode::Browse;
                (key == KeyCode::Char('q')).then_some(Request::Quit)
            }
        }
    }

    fn browse(&mut self, key: KeyCode) -> Option<Request> {
        self.message = None;
        match key {
            KeyCode::Char('q') => return Some(Request::Quit),
            KeyCode::Char('?') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filter { before: self.filter.clone() },
            KeyCode::Esc => {
                self.filter.clear();
                self.tenant = None;
            }
            KeyCode::Char('p') => {
                self.is_paused = !self.is_paused;
                return (!self.is_paused).then_some(Request::Refresh);
            }
            KeyCode::Char('r') => return Some(Request::Refresh),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('S') => {
                if let Some(sort) = &mut self.place_mut().sort {
                    sort.is_descending = !sort.is_descending;
                }
            }
            KeyCode::Tab => return self.open((self.tab.index() + 1) % Tab::ALL.len()),
            KeyCode::BackTab => return self.open((self.tab.index() + Tab::ALL.len() - 1) % Tab::ALL.len()),
            KeyCode::Char(digit @ '1'..='8') => {
                return self.open(digit.to_digit(10).map_or(0, |digit| digit as usize - 1));
            }
            KeyCode::Enter => return self.enter(),
            KeyCode::Char('e') => self.ask(Verb::Evict(Tier::Host)),
            KeyCode::Char('E') => self.ask(Verb::Evict(Tier::Disk)),
            KeyCode::Char('h') => self.ask(Verb::Hold),
            KeyCode::Char('u') => self.ask(Verb::LetGo),
            key => self.go(key),
        }
        None
    }

    fn go(&mut self, key: KeyCode) {
        let grid = self.grid();
        let at = self.selected(&grid).unwrap_or(0);
        let to = match key {
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => at + 1,
            KeyCode::PageUp => at.saturating_sub(PAGE_ROWS),
            KeyCode::PageDown => at + PAGE_ROWS,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => usize::MAX,
            _ => return,
        };
        self.select(&grid, to);
    }

    fn open(&mut self, tab: usize) -> Option<Request> {
        let before = self.wants();
        self.tab = Tab::ALL[tab];
        let wants = self.wants();
        (wants != before && wants != Wants::default()).then_some(Request::Refresh)
    }

    /// Shows the allocations of the selected tenant.
    fn enter(&mut self) -> Option<Request> {
        let RowId::Tenant(tenant) = self.selected_row()? else { return None };
        self.tenant = Some(tenant);
        self.filter.clear();
        self.open(Tab::Allocations.index())
    }

    fn selected_row(&self) -> Option<RowId> {
        let grid = self.grid();
        let at = self.selected(&grid)?;
        grid.rows.get(at).map(|row| row.id.clone())
    }

    /// Sorts by the column after the present one; after the last, as the daemon lists.
    fn sort_by_next(&mut self) {
        let grid = self.grid();
        let next = self.sort().map_or(0, |sort| sort.column + 1);
        let is_descending = grid.columns.get(next).is_some_and(|column| column.is_number());
        self.place_mut().sort = (next < grid.columns.len()).then_some(Sort { column: next, is_descending });
    }

    fn ask(&mut self, verb: Verb) {
        if let Some(busy) = &self.busy {
            self.message = Some(Message::Failed(format!("{busy}: the daemon has not answered yet")));
            return;
        }
        let action = self.selected_row().and_then(|row| Action::on(&row, verb));
        match action {
            Some(action) => self.mode = Mode::Confirm(action),
            None => {
                let text = "select an allocation (key 3) or a part that moves (key 4) first";
                self.message = Some(Message::Failed(text.to_owned()));
            }
        }
    }

    fn confirm(&mut self, key: KeyCode, action: Action) -> Option<Request> {
        match key {
            KeyCode::Char('y' | 'Y') => {
                self.mode = Mode::Browse;
                self.busy = Some(action.progress());
                Some(Request::Act(action))
            }
            KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => {
                self.mode = Mode::Browse;
                self.message = Some(Message::Done("nothing was done".to_owned()));
                None
            }
            // Any other key could be a mistake, Enter too.
            _ => None,
        }
    }

    fn edit_filter(&mut self, key: KeyCode, before: String) {
        match key {
            KeyCode::Enter => self.mode = Mode::Browse,
            KeyCode::Esc => {
                self.filter = before;
                self.mode = Mode::Browse;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if !letter.is_control() && self.filter.len() < FILTER_MAX => {
                self.filter.push(letter);
            }
            _ => {}
        }
    }
}
