//! Tables as people read them: no borders, numbers to the right.

use std::time::{SystemTime, UNIX_EPOCH};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use vramd_client::Bytes;

/// A table of these columns; those that begin with `>` are aligned to the right.
pub(crate) fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(columns.iter().map(|column| column.trim_start_matches('>')));
    let mut is_empty = true;
    for row in rows {
        is_empty = false;
        table.add_row(row.iter().map(|cell| plain(cell)));
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if columns.get(at).is_some_and(|name| name.starts_with('>')) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if is_empty {
        return "(none)".to_owned();
    }
    let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// A text without what would move the cursor or colour the terminal. The daemon shows none either, but a table must
/// not depend on that: who writes into one could write over it.
pub(crate) fn plain(text: &str) -> String {
    let is_hidden = |char: char| {
        char.is_control()
            || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    };
    text.chars().map(|char| if is_hidden(char) { char::REPLACEMENT_CHARACTER } else { char }).collect()
}

/// One line for each fact of one thing.
pub(crate) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let lines: Vec<_> =
        facts.iter().map(|(name, value)| format!("{name:<width$} {}", plain(value))).collect();
    lines.join("\n")
}

pub(crate) fn size(bytes: u64) -> String {
    Bytes::new(bytes).to_string()
}

/// Nothing reads better as a dash.
pub(crate) fn size_or_dash(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { size(bytes) }
}

pub(crate) fn text_or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// How long ago that was.
pub(crate) fn age(since: &prost_types::Timestamp) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seconds = now.saturating_sub(u64::try_from(since.seconds).unwrap_or(0));
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_their_names() {
        let text = table(
            &["TENANT", ">HELD"],
            [vec!["a".to_owned(), size(1 << 30)], vec!["team-b".to_owned(), size(512 << 20)]],
        );
        assert_eq!(text, "TENANT     HELD\na         1 GiB\nteam-b  512 MiB");
        assert_eq!(table(&["TENANT"], []), "(none)");
    }
    #[test]
    fn a_cell_stays_in_its_place() {
        let text = table(&["CLIENT", "X"], [vec!["a\u{1b}[2J\nuid-9\u{202e}".to_owned(), "b".to_owned()]]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.ends_with("a\u{fffd}[2J\u{fffd}uid-9\u{fffd}  b"), "{text:?}");
    }
}
