//! Draws the view: a function of its state and of the room, at any width and height.

use ratatui::{
    Frame,
    buffer::Buffer,
    layout::Rect,
    style::{Modifier, Style},
    text::{Line, Span},
};

use super::{
    grid::{Glyphs, Grid, TableLayout, Tone, shortened, width, wrap},
    view::{Connection, Message, Mode, Tab, View},
};
use crate::{
    commands::node,
    output::text::{plain, span},
};

/// Fewest lines of a table below another: its title, a row and the reason below that.
const LINES_MIN: usize = 3;
/// A lower table has no headings.
const LINES_WITH_HEADINGS: usize = 5;

const HELP: &[(&str, &str)] = &[
    ("q", "quit"),
    ("1-8, Tab", "choose what is shown"),
    ("up, down, PgUp, PgDn, Home, End", "select a row"),
    ("s, S", "sort by the next column; turn the order round"),
    ("/", "show the rows that contain a text"),
    ("Enter", "show the allocations of the selected tenant"),
    ("Esc", "show all again"),
    ("e, E", "evict the selected allocation or part to host, to disk"),
    ("h, u", "hold it on its device; let it go"),
    ("p, r", "pause; refresh now"),
];

pub(super) fn render(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    draw(view, area, frame.buffer_mut());
}

/// Draws everything into an area, which may have any size.
pub(super) fn draw(view: &View, area: Rect, buffer: &mut Buffer) {
    let (columns, rows) = (usize::from(area.width), usize::from(area.height));
    if columns == 0 || rows == 0 {
        return;
    }
    let mut lines = vec![heading(view, columns)];
    lines.extend(problem(view, columns));
    let footer = footer(view, columns);
    let room = rows.saturating_sub(lines.len() + 1);
    lines.extend(body(view, columns, room));
    lines.truncate(rows.saturating_sub(1).max(1));
    for (line, y) in lines.iter().zip(area.y..) {
        buffer.set_line(area.x, y, line, area.width);
    }
    if rows > 1 {
        buffer.set_line(area.x, area.bottom() - 1, &footer, area.width);
    }
    match &view.mode {
        Mode::Help => draw_box("KEYS", &help_lines(columns), area, buffer),
        Mode::Confirm(action) => {
            let question = wrap(&action.question(), columns.saturating_sub(4).min(70));
            let lines: Vec<String> =
                question.into_iter().chain([String::new(), "y: yes   n: no".to_owned()]).collect();
            draw_box("CONFIRM", &lines, area, buffer);
        }
        Mode::Browse | Mode::Filter { .. } => {}
    }
}

/// The whole overview as text, for scripts: every row, no colours and no control codes.
pub(super) fn page(view: &View, columns: usize) -> String {
    let look = look(columns, Glyphs::ASCII);
    let mut text = vec![heading_text(view, columns)];
    let scene = view.scene();
    for grid in [scene.tiers(), view.grid(), scene.moves(), scene.line(), scene.prefetches()] {
        text.push(String::new());
        if grid.rows.is_empty() {
            text.push(format!("{}: none", grid.title));
            continue;
        }
        text.push(grid.title.to_owned());
        text.extend(grid.lines(&look).iter().map(|line| line.to_string().trim_end().to_owned()));
    }
    text.join("\n")
}

/// A table without a selected row, and with all its rows.
fn look(width: usize, glyphs: Glyphs) -> TableLayout {
    TableLayout { width, height: None, glyphs, sort: None, selected: None, has_headings: true }
}

fn heading(view: &View, columns: usize) -> Line<'static> {
    Line::from(Span::styled(heading_text(view, columns), Tone::Strong.style()))
}

/// The node in one line: as many of these facts as fit, in this order.
fn heading_text(view: &View, columns: usize) -> String {
    let node = &view.snapshot.node;
    let mut facts = vec![
        format!("vramd {}", node.version),
        node::service(node.draining).to_owned(),
        format!("driver {}", node.driver),
    ];
    if node.invariant_violations > 0 {
        facts.insert(1, format!("{} BROKEN INVARIANTS", node.invariant_violations));
    }
    facts.extend([
        counted(node.session_count.into(), "session"),
        counted(node.allocation_count.into(), "allocation"),
        counted(view.snapshot.tenants.len() as u64, "tenant"),
        format!("boot epoch {}", node.boot_epoch),
    ]);
    let mut text = String::new();
    for fact in facts {
        let fact = plain(&fact);
        let blank = if text.is_empty() { "" } else { ", " };
        if !text.is_empty() && width(&text) + blank.len() + width(&fact) > columns {
            break;
        }
        text.push_str(blank);
        text.push_str(&fact);
    }
    shortened(&text, columns, view.glyphs.cut)
}

fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Why the figures are old, if they are: at most two lines.
fn problem(view: &View, columns: usize) -> Vec<Line<'static>> {
    let text = match (&view.connection, view.stale()) {
        (Connection::Lost { since, problem }, _) => {
            let seconds = view.now.saturating_sub(*since).as_secs();
            format!("NO DAEMON for {seconds} s, trying again: {}", plain(problem))
        }
        (Connection::Up, Some(age)) => format!("NO ANSWER: these figures are {} old", span(age)),
        (Connection::Up, None) => return Vec::new(),
    };
    let lines = wrap(&text, columns).into_iter().take(2);
    lines.map(|text| Line::from(Span::styled(text, Tone::Alarm.style()))).collect()
}

/// The tiers, the tabs, and the tables of the tab.
fn body(view: &View, columns: usize, rows: usize) -> Vec<Line<'static>> {
    let look = look(columns, view.glyphs);
    let mut lines = Vec::new();
    if view.tab != Tab::Tiers {
        lines.extend(tiers(view, &look, (rows / 3).max(2)));
    }
    lines.push(tabs(view, columns));
    let room = rows.saturating_sub(lines.len());
    let grid = view.grid();
    let below = match view.tab {
        Tab::Overview => vec![view.scene().moves(), view.scene().line(), view.scene().prefetches()],
        Tab::Moves => vec![view.scene().ended_moves()],
        _ => Vec::new(),
    };
    // A table of the overview is named by its title, and the table of another tab by the tab.
    let share = (room / (below.len() + 2)).max(LINES_MIN);
    let mut others: Vec<Line<'static>> = Vec::new();
    for mut other in below {
        other.filter(&view.filter);
        if room > others.len() + share {
            others.extend(titled(&other, &look, share));
        }
    }
    let own = room.saturating_sub(others.len());
    lines.extend(main_table(view, &grid, look, own));
    lines.extend(others);
    lines
}

/// The table whose rows can be selected.
fn main_table(view: &View, grid: &Grid, look: TableLayout, rows: usize) -> Vec<Line<'static>> {
    if grid.rows.is_empty() {
        let text = if view.filter.is_empty() {
            "none".to_owned()
        } else {
            format!("none contains `{}`", view.filter)
        };
        return vec![dim(text)];
    }
    let look = TableLayout { height: Some(rows), sort: view.sort(), selected: view.selected(grid), ..look };
    let mut lines = grid.lines(&look);
    if grid.page(&look) != (0, grid.rows.len()) && rows > 2 {
        // The place in a long table takes the last line.
        let look = TableLayout { height: Some(rows - 1), ..look };
        lines = grid.lines(&look);
        let (first, last) = grid.page(&look);
        lines.push(dim(format!("rows {}-{last} of {}", first + 1, grid.rows.len())));
    }
    lines
}

/// A table under its title, in at most so many lines.
fn titled(grid: &Grid, look: &TableLayout, rows_max: usize) -> Vec<Line<'static>> {
    if grid.rows.is_empty() {
        return vec![dim(format!("{}: none", grid.title))];
    }
    let title = format!("{}: {}", grid.title, grid.rows.len());
    let mut lines = vec![Line::from(Span::styled(title, Tone::Strong.style()))];
    lines.extend(grid.lines(&TableLayout { has_headings: rows_max >= LINES_WITH_HEADINGS, ..*look }));
    lines.truncate(rows_max);
    lines
}

/// The tiers with the least room first if not all fit.
fn tiers(view: &View, look: &TableLayout, rows_max: usize) -> Vec<Line<'static>> {
    let mut grid = view.scene().tiers();
    let all = grid.rows.len();
    if all < rows_max {
        return grid.lines(look);
    }
    // The column of the bar sorts by how full a tier is.
    grid.sort(Some(super::grid::Sort { column: 2, is_descending: true }));
    let shown = rows_max.saturating_sub(2).max(1);
    grid.rows.truncate(shown);
    let mut lines = grid.lines(look);
    lines.push(dim(format!("{} more tiers, less full: key 2", all - shown.min(all))));
    lines.truncate(rows_max);
    lines
}

/// The tabs with their counts: the names of all, closer together if need be, or else of the present one alone.
fn tabs(view: &View, columns: usize) -> Line<'static> {
    let label = |tab: Tab, number: usize, blank: &str, has_title: bool| {
        let count = match tab {
            Tab::Moves => view.snapshot.moves.moving.len(),
            Tab::Line => view.snapshot.waits.len(),
            Tab::Prefetches => view.snapshot.prefetches.len(),
            _ => 0,
        };
        let count = if count > 0 { format!(":{count}") } else { String::new() };
        let title = if has_title || tab == view.tab { tab.title() } else { "" };
        format!("{number}{}{title}{count}", if title.is_empty() { "" } else { blank })
    };
    let labels = |blank: &str, has_titles: bool| -> Vec<String> {
        Tab::ALL.into_iter().zip(1..).map(|(tab, number)| label(tab, number, blank, has_titles)).collect()
    };
    let fits = |labels: &[String], gap: usize| {
        labels.iter().map(|label| width(label) + gap).sum::<usize>() <= columns + gap
    };
    let (wide, tight) = (labels(" ", true), labels("", true));
    let (labels, gap) = match (fits(&wide, 2), fits(&tight, 1)) {
        (true, _) => (wide, "  "),
        (false, true) => (tight, " "),
        (false, false) => (labels(" ", false), "  "),
    };
    let mut spans = Vec::new();
    for (tab, label) in Tab::ALL.into_iter().zip(labels) {
        let style = match tab == view.tab {
            true => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            false => Tone::Dim.style(),
        };
        spans.extend([Span::styled(label, style), Span::raw(gap)]);
    }
    Line::from(spans)
}

/// The prompt, the answer, or the keys.
fn footer(view: &View, columns: usize) -> Line<'static> {
    let (text, tone) = match (&view.mode, &view.message, &view.busy) {
        (Mode::Filter { .. }, ..) => (format!("filter: {}_", view.filter), Tone::Strong),
        (_, Some(Message::Done(text)), _) => (text.clone(), Tone::Good),
        (_, Some(Message::Failed(text)), _) => (text.clone(), Tone::Alarm),
        (_, None, Some(busy)) => (format!("{busy} {}", view.glyphs.cut), Tone::Warning),
        (_, None, None) => (hints(view, columns), Tone::Dim),
    };
    Line::from(Span::styled(shortened(&plain(&text), columns, view.glyphs.cut), tone.style()))
}

fn hints(view: &View, columns: usize) -> String {
    let mut hints = vec!["q quit".to_owned(), "? help".to_owned()];
    if view.is_paused {
        hints.insert(0, "PAUSED".to_owned());
    }
    if let Some(tenant) = view.tenant.as_ref().filter(|_| view.tab == Tab::Allocations) {
        hints.insert(0, format!("tenant {tenant}"));
    }
    if !view.filter.is_empty() {
        hints.insert(0, format!("filter `{}`", view.filter));
    }
    let more = ["s sort", "/ filter", "e evict", "h hold", "u let go", "Enter open", "p pause"];
    hints.extend(more.map(str::to_owned));
    let mut text = String::new();
    for hint in hints {
        let blank = if text.is_empty() { "" } else { "  " };
        if !text.is_empty() && width(&text) + blank.len() + width(&hint) > columns {
            break;
        }
        text.push_str(blank);
        text.push_str(&hint);
    }
    text
}

fn help_lines(columns: usize) -> Vec<String> {
    let keys = HELP.iter().map(|(keys, _)| keys.len()).max().unwrap_or(0);
    let room = columns.saturating_sub(4);
    let is_wide = HELP.iter().all(|(_, meaning)| keys + 2 + meaning.len() <= room);
    let line = |(key, meaning): &(&str, &str)| match is_wide {
        true => vec![format!("{key:keys$}  {meaning}")],
        false => wrap(&format!("{key}: {meaning}"), room),
    };
    HELP.iter().flat_map(line).collect()
}

/// Draws a box with a frame in the middle of an area, over what is there.
fn draw_box(title: &str, lines: &[String], area: Rect, buffer: &mut Buffer) {
    let inner = lines.iter().map(|line| width(line)).max().unwrap_or(0).max(title.len() + 2);
    let wide = u16::try_from(inner + 4).unwrap_or(u16::MAX).min(area.width);
    let high = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let (x, y) = (area.x + (area.width - wide) / 2, area.y + (area.height - high) / 2);
    let inner = usize::from(wide).saturating_sub(4);
    let edge = |text: &str| {
        let text = shortened(text, inner, '~');
        format!("+-{text}{}-+", "-".repeat(inner - width(&text)))
    };
    let row = |text: &String| {
        let text = shortened(text, inner, '~');
        format!("| {text}{} |", " ".repeat(inner - width(&text)))
    };
    let shown = lines.iter().take(usize::from(high).saturating_sub(2)).map(row);
    let all = [edge(title)].into_iter().chain(shown).chain([edge("")]);
    for (text, y) in all.take(usize::from(high)).zip(y..) {
        let line = Line::from(Span::styled(text, Style::new().add_modifier(Modifier::BOLD)));
        // The styles of the lines below must not show through.
        buffer.set_style(Rect { x, y, width: wide, height: 1 }, Style::reset());
        buffer.set_line(x, y, &line, wide);
    }
}

fn dim(text: String) -> Line<'static> {
    Line::from(Span::styled(text, Tone::Dim.style()))
}
