//! Tables of the live view: columns that fit any width, bars, and notes below rows. Pure: rows and a width become lines.

use std::{borrow::Cow, cmp::Ordering, fmt};

use ratatui::{
    style::{Color, Modifier, Style},
    text::{Line, Span},
};

use crate::output::text::{plain, size, size_or_dash};

/// Spaces between two columns.
const GAP: usize = 2;
/// A bar that is narrower shows nothing.
const BAR_MIN: usize = 8;
const BAR_MAX: usize = 40;
/// Fewest characters of a text that is cut.
const TEXT_MIN: usize = 8;
/// Spaces before a note.
const INDENT: usize = 2;

/// A column: its heading, and when a narrow table leaves it out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) heading: &'static str,
    is_number: bool,
    /// A narrow table leaves out the columns of the highest rank first, and those of rank 0 never.
    rank: u8,
}

impl Column {
    pub(super) const fn text(heading: &'static str, rank: u8) -> Self {
        Self { heading, is_number: false, rank }
    }

    /// A column that is aligned to the right.
    pub(super) const fn number(heading: &'static str, rank: u8) -> Self {
        Self { heading, is_number: true, rank }
    }

    pub(super) const fn is_number(&self) -> bool {
        self.is_number
    }
}

/// How a text is emphasised. Meaning never depends on colour alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Dim,
    Strong,
    Good,
    Warning,
    Alarm,
}

impl Tone {
    pub(super) fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Dim => Style::new().add_modifier(Modifier::DIM),
            Self::Strong => Style::new().add_modifier(Modifier::BOLD),
            Self::Good => Style::new().fg(Color::Green),
            Self::Warning => Style::new().fg(Color::Yellow),
            Self::Alarm => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// A share of a whole in two steps: what is there, and what is beyond that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) whole: u64,
    /// Drawn solid.
    pub(super) there: u64,
    /// Drawn light after it.
    pub(super) beyond: u64,
}

/// The characters of bars and cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Glyphs {
    there: char,
    beyond: char,
    free: char,
    pub(super) cut: char,
    pub(super) up: char,
    pub(super) down: char,
}

impl Glyphs {
    /// For every terminal, and for scripts.
    pub(super) const ASCII: Self = Self { there: '#', beyond: '+', free: '.', cut: '~', up: '^', down: 'v' };
    /// For terminals whose locale is UTF-8.
    pub(super) const BLOCKS: Self =
        Self { there: '█', beyond: '▒', free: '·', cut: '…', up: '▲', down: '▼' };
}

#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    text: String,
    /// The number by which the cell sorts; its text if absent.
    number: Option<u64>,
    tone: Tone,
    bar: Option<Bar>,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: plain(&text.into()), ..Self::default() }
    }

    pub(super) fn number(number: u64) -> Self {
        Self { text: number.to_string(), number: Some(number), ..Self::default() }
    }

    /// A number that is shown otherwise, and sorted by its value.
    pub(super) fn named_number(number: u64, shown: impl fmt::Display) -> Self {
        Self { text: shown.to_string(), number: Some(number), ..Self::default() }
    }

    /// A count, or a dash for 0.
    pub(super) fn count(count: u64) -> Self {
        let text = if count == 0 { "-".to_owned() } else { count.to_string() };
        Self { text, number: Some(count), ..Self::default() }
    }

    pub(super) fn size(bytes: u64) -> Self {
        Self { text: size(bytes), number: Some(bytes), ..Self::default() }
    }

    /// A size, or a dash for 0.
    pub(super) fn size_or_dash(bytes: u64) -> Self {
        Self { text: size_or_dash(bytes), number: Some(bytes), ..Self::default() }
    }

    /// A text that sorts by a number, such as an age.
    pub(super) fn ranked(text: impl Into<String>, number: u64) -> Self {
        Self { text: plain(&text.into()), number: Some(number), ..Self::default() }
    }

    pub(super) fn bar(bar: Bar) -> Self {
        let percent = percent(bar.there.saturating_add(bar.beyond), bar.whole);
        Self { number: Some(percent), bar: Some(bar), ..Self::default() }
    }

    pub(super) fn tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }

    fn width(&self) -> usize {
        if self.bar.is_some() { BAR_MIN } else { width(&self.text) }
    }

    fn is_empty(&self) -> bool {
        self.bar.is_none() && matches!(self.text.as_str(), "" | "-")
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number).then_with(|| self.text.cmp(&other.text))
    }
}

/// A share in percent, rounded down; 0 of nothing.
pub(super) fn percent(part: u64, whole: u64) -> u64 {
    let percent = (u128::from(part) * 100).checked_div(whole.into()).unwrap_or(0);
    u64::try_from(percent).unwrap_or(u64::MAX)
}

/// The object that a row stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowId {
    /// A row that only shows figures.
    Figures(String),
    Tenant(String),
    Allocation {
        id: u64,
        name: String,
    },
    Part {
        id: u64,
        index: u32,
    },
    Wait(u64),
    Prefetch {
        session: u64,
        prefetch: u64,
    },
    Session(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) id: RowId,
    pub(super) cells: Vec<Cell>,
    /// A sentence below the row; empty for none.
    pub(super) note: String,
}

impl Row {
    pub(super) fn new(id: RowId, cells: Vec<Cell>) -> Self {
        Self { id, cells, note: String::new() }
    }

    pub(super) fn note(self, note: &str) -> Self {
        Self { note: plain(note), ..self }
    }

    fn contains(&self, lower_case: &str) -> bool {
        let mut texts = self.cells.iter().map(|cell| &cell.text).chain([&self.note]);
        texts.any(|text| text.to_lowercase().contains(lower_case))
    }
}

/// The column by which rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) is_descending: bool,
}

/// A table with its title.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub(super) title: &'static str,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
}

/// How a table is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableLayout {
    pub(super) width: usize,
    /// Most lines of a table, its headings included; `None` for all.
    pub(super) height: Option<usize>,
    pub(super) glyphs: Glyphs,
    pub(super) sort: Option<Sort>,
    /// The row that is drawn as selected, and stays in sight.
    pub(super) selected: Option<usize>,
    pub(super) has_headings: bool,
}

impl Grid {
    /// Keeps the rows that contain a text in any cell, whatever its case.
    pub(super) fn filter(&mut self, text: &str) {
        if !text.is_empty() {
            let text = text.to_lowercase();
            self.rows.retain(|row| row.contains(&text));
        }
    }

    /// Sorts rows; equal ones keep their order.
    pub(super) fn sort(&mut self, sort: Option<Sort>) {
        let Some(Sort { column, is_descending }) = sort.filter(|sort| sort.column < self.columns.len())
        else {
            return;
        };
        self.rows.sort_by(|one, other| {
            let order = one.cells[column].compare(&other.cells[column]);
            if is_descending { order.reverse() } else { order }
        });
    }

    /// Draws headings and rows. A table that is too high shows the page with the selected row.
    pub(super) fn lines(&self, look: &TableLayout) -> Vec<Line<'static>> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let fitted = self.fit(look);
        let headings = look.has_headings.then(|| self.heading_line(&fitted, look));
        let mut lines = Vec::from_iter(headings);
        let (first, last) = self.page(look);
        for (at, row) in self.rows.iter().enumerate().take(last).skip(first) {
            let is_selected = look.selected == Some(at);
            lines.push(row_line(row, &fitted, &self.columns, look, is_selected));
            lines.extend(note_lines(&row.note, look));
        }
        if let Some(height) = look.height {
            lines.truncate(height);
        }
        lines
    }

    /// The rows of one page: the first, and the one after the last.
    pub(super) fn page(&self, look: &TableLayout) -> (usize, usize) {
        let Some(height) = look.height else { return (0, self.rows.len()) };
        let height = height.saturating_sub(usize::from(look.has_headings)).max(1);
        let selected = look.selected.unwrap_or(0);
        let (mut first, mut used) = (0, 0);
        for (at, row) in self.rows.iter().enumerate() {
            let lines = 1 + note_lines(&row.note, look).len();
            if used > 0 && used + lines > height {
                if at > selected {
                    return (first, at);
                }
                (first, used) = (at, 0);
            }
            used += lines;
        }
        (first, self.rows.len())
    }

    /// The columns that fit, with their widths.
    fn fit(&self, look: &TableLayout) -> Vec<Fitted> {
        let width_max = look.width;
        let text_max = (width_max / 3).max(TEXT_MIN);
        let natural = |(index, column): (usize, &Column)| {
            let cells = || self.rows.iter().map(|row| &row.cells[index]);
            let is_bar = cells().any(|cell| cell.bar.is_some());
            let mark = usize::from(look.sort.is_some_and(|sort| sort.column == index));
            let width = cells().map(Cell::width).max().unwrap_or(0).max(column.heading.len() + mark);
            let wanted = width;
            let width = if column.is_number || is_bar { width } else { width.min(text_max) };
            Fitted { index, width, wanted, is_bar }
        };
        let is_shown = |index: usize, column: &Column| {
            column.rank == 0 || self.rows.iter().any(|row| !row.cells[index].is_empty())
        };
        let mut fitted: Vec<Fitted> = self
            .columns
            .iter()
            .enumerate()
            .filter(|(index, column)| is_shown(*index, column))
            .map(natural)
            .collect();
        while total(&fitted) > width_max {
            let rank = |fitted: &Fitted| self.columns[fitted.index].rank;
            let Some(at) =
                (0..fitted.len()).filter(|at| rank(&fitted[*at]) > 0).max_by_key(|at| rank(&fitted[*at]))
            else {
                break;
            };
            fitted.remove(at);
        }
        shrink(&mut fitted, &self.columns, width_max);
        widen(&mut fitted, width_max);
        fitted
    }

    fn heading_line(&self, fitted: &[Fitted], look: &TableLayout) -> Line<'static> {
        let cells = fitted.iter().map(|it| {
            let column = &self.columns[it.index];
            let mut heading = column.heading.to_owned();
            if let Some(sort) = look.sort.filter(|sort| sort.column == it.index) {
                let mark = if sort.is_descending { look.glyphs.down } else { look.glyphs.up };
                heading.push(mark);
            }
            padded(&heading, it.width, column.is_number, look.glyphs.cut)
        });
        let text = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
        Line::from(Span::styled(text.trim_end().to_owned(), Tone::Strong.style()))
    }
}

/// A column that is shown.
#[derive(Clone, Copy, Debug)]
struct Fitted {
    index: usize,
    width: usize,
    /// The width at which nothing is cut.
    wanted: usize,
    is_bar: bool,
}

fn total(fitted: &[Fitted]) -> usize {
    let widths: usize = fitted.iter().map(|it| it.width).sum();
    widths + GAP * fitted.len().saturating_sub(1)
}

/// Cuts the widest texts of a table that is still too wide without them.
fn shrink(fitted: &mut [Fitted], columns: &[Column], width_max: usize) {
    while total(fitted) > width_max {
        let texts = fitted.iter_mut().filter(|it| !columns[it.index].is_number && it.width > TEXT_MIN);
        let Some(widest) = texts.max_by_key(|it| it.width) else { return };
        widest.width -= 1;
    }
}

/// Gives the room that is left to cut texts, and then to bars.
fn widen(fitted: &mut [Fitted], width_max: usize) {
    let mut left = width_max.saturating_sub(total(fitted));
    for it in fitted.iter_mut() {
        let most = if it.is_bar { 0 } else { it.wanted.saturating_sub(it.width) };
        let more = most.min(left);
        it.width += more;
        left -= more;
    }
    for it in fitted.iter_mut().filter(|it| it.is_bar) {
        let more = BAR_MAX.saturating_sub(it.width).min(left);
        it.width += more;
        left -= more;
    }
}

fn row_line(
    row: &Row,
    fitted: &[Fitted],
    columns: &[Column],
    look: &TableLayout,
    is_selected: bool,
) -> Line<'static> {
    let mut spans: Vec<Span<'static>> = Vec::new();
    for it in fitted {
        if !spans.is_empty() {
            spans.push(Span::raw(" ".repeat(GAP)));
        }
        let cell = &row.cells[it.index];
        let text = match &cell.bar {
            Some(bar) => draw(bar, it.width, look.glyphs),
            None => padded(&cell.text, it.width, columns[it.index].is_number, look.glyphs.cut),
        };
        spans.push(Span::styled(text, cell.tone.style()));
    }
    let mut line = Line::from(spans);
    if is_selected {
        let rest = look.width.saturating_sub(line.width());
        line.push_span(" ".repeat(rest));
        line = line.patch_style(Style::new().add_modifier(Modifier::REVERSED));
    }
    line
}

fn note_lines(note: &str, look: &TableLayout) -> Vec<Line<'static>> {
    if note.is_empty() {
        return Vec::new();
    }
    let lines = wrap(note, look.width.saturating_sub(INDENT));
    let styled = |text: String| Line::from(Span::styled(" ".repeat(INDENT) + &text, Tone::Dim.style()));
    lines.into_iter().map(styled).collect()
}

/// Draws `[##+..]` in this many columns.
fn draw(bar: &Bar, width: usize, glyphs: Glyphs) -> String {
    let inner = width.saturating_sub(2);
    let columns = |bytes: u64| {
        let bytes = u128::from(bytes.min(bar.whole));
        // Something is never drawn as nothing, and only the whole fills the bar.
        let columns = (bytes * inner as u128).checked_div(bar.whole.into()).unwrap_or(0);
        let columns = usize::try_from(columns).unwrap_or(inner);
        if bytes > 0 { columns.clamp(1, inner.max(1)) } else { 0 }
    };
    let there = columns(bar.there);
    let beyond = columns(bar.there.saturating_add(bar.beyond)).saturating_sub(there);
    let repeat = |glyph: char, count: usize| std::iter::repeat_n(glyph, count);
    let free = inner.saturating_sub(there + beyond);
    let drawn =
        repeat(glyphs.there, there).chain(repeat(glyphs.beyond, beyond)).chain(repeat(glyphs.free, free));
    format!("[{}]", drawn.collect::<String>())
}

/// How many columns of the terminal a text takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(Cow::Borrowed(text)).width()
}

/// Fills a text up to a width, or cuts it.
fn padded(text: &str, to: usize, is_number: bool, cut: char) -> String {
    let text = shortened(text, to, cut);
    let blanks = " ".repeat(to.saturating_sub(width(&text)));
    if is_number { blanks + &text } else { text + &blanks }
}

/// Cuts a text that is wider, and marks the cut.
pub(super) fn shortened(text: &str, to: usize, cut: char) -> String {
    if width(text) <= to {
        return text.to_owned();
    }
    let mut kept = String::new();
    for letter in text.chars() {
        kept.push(letter);
        if width(&kept) >= to {
            kept.pop();
            break;
        }
    }
    if to > 0 {
        kept.push(cut);
    }
    kept
}

/// Breaks a text into lines between words, and within a word that is wider than a line.
pub(super) fn wrap(text: &str, to: usize) -> Vec<String> {
    let to = to.max(1);
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let blank = usize::from(!line.is_empty());
        if width(&line) + blank + width(word) <= to {
            line.push_str(&" ".repeat(blank));
            line.push_str(word);
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        for letter in word.chars() {
            if !line.is_empty() && width(&line) + width(letter.encode_utf8(&mut [0; 4])) > to {
                lines.push(std::mem::take(&mut line));
            }
            line.push(letter);
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}
