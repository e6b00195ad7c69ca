//! Tables for a terminal: no borders, numbers to the right, at most [`WIDTH_MAX`] columns of text.
//!
//! A table leaves out columns that are empty in every row. One that is still too wide continues below itself, with its
//! key columns repeated.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::text::plain;

/// How wide a table may be. Only a single cell that is wider by itself exceeds it.
pub(crate) const WIDTH_MAX: usize = 120;

/// Spaces between two columns.
const GAP: usize = 2;

/// A column's heading, its alignment, and when it is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    heading: &'static str,
    is_number: bool,
    is_key: bool,
    is_always_shown: bool,
}

impl Column {
    /// A column that is aligned to the left, and left out when it is empty in every row.
    pub(crate) const fn text(heading: &'static str) -> Self {
        Self { heading, is_number: false, is_key: false, is_always_shown: false }
    }

    /// A column that is aligned to the right, and left out when it is empty in every row.
    pub(crate) const fn number(heading: &'static str) -> Self {
        Self { is_number: true, ..Self::text(heading) }
    }

    /// Marks a column as part of what identifies a row: always shown, and repeated where a wide table continues. Key
    /// columns come first.
    pub(crate) const fn key(self) -> Self {
        Self { is_key: true, is_always_shown: true, ..self }
    }

    /// Shows the column even if every row is empty there.
    pub(crate) const fn always(self) -> Self {
        Self { is_always_shown: true, ..self }
    }
}

/// Renders the rows below the headings, `(none)` without rows. Each row has one cell for each column; a cell is empty
/// if its text is empty or `-`.
pub(crate) fn table(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    if rows.is_empty() {
        return "(none)".to_owned();
    }
    let shown = shown_columns(columns, &rows);
    let blocks = blocks(columns, &shown, &rows);
    blocks.iter().map(|block| render(columns, block, &rows)).collect::<Vec<_>>().join("\n\n")
}

/// The indexes of the columns that some row fills, and of those that are always shown.
fn shown_columns(columns: &[Column], rows: &[Vec<String>]) -> Vec<usize> {
    let is_filled = |index: usize| rows.iter().any(|row| !matches!(row[index].as_str(), "" | "-"));
    (0..columns.len()).filter(|index| columns[*index].is_always_shown || is_filled(*index)).collect()
}

/// Splits columns into blocks that fit [`WIDTH_MAX`], each with the key columns first.
fn blocks(columns: &[Column], shown: &[usize], rows: &[Vec<String>]) -> Vec<Vec<usize>> {
    let width = |index: usize| {
        let cells = rows.iter().map(|row| row[index].chars().count());
        GAP + cells.max().unwrap_or(0).max(columns[index].heading.len())
    };
    let (keys, others): (Vec<_>, Vec<_>) = shown.iter().partition(|index| columns[**index].is_key);
    let keys_width: usize = keys.iter().map(|index| width(*index)).sum();
    let mut blocks = vec![keys.clone()];
    let mut used = keys_width;
    for index in others {
        let is_first = blocks.last().is_some_and(|block| block.len() == keys.len());
        if used + width(index) > WIDTH_MAX + GAP && !is_first {
            blocks.push(keys.clone());
            used = keys_width;
        }
        used += width(index);
        blocks.last_mut().expect("there is a first block").push(index);
    }
    blocks
}

fn render(columns: &[Column], block: &[usize], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(block.iter().map(|index| columns[*index].heading));
    for row in rows {
        table.add_row(block.iter().map(|index| &row[*index]));
    }
    for (column, index) in table.column_iter_mut().zip(block) {
        column.set_padding((0, 2));
        if columns[*index].is_number {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn columns_stand_below_their_headings() {
        let columns = [Column::text("TENANT").key(), Column::number("CHARGED")];
        let text = table(&columns, [cells(&["a", "1 GiB"]), cells(&["team-b", "512 MiB"])]);
        assert_eq!(text, "TENANT  CHARGED\na         1 GiB\nteam-b  512 MiB");
        assert_eq!(table(&columns, []), "(none)");
    }

    #[test]
    fn a_column_that_every_row_leaves_empty_is_left_out() {
        let columns = [
            Column::text("TENANT").key(),
            Column::number("CACHED"),
            Column::text("NOTE"),
            Column::number("LIMIT").always(),
            Column::number("CHARGED"),
        ];
        let text = table(&columns, [cells(&["a", "-", "", "-", "-"]), cells(&["b", "-", "", "-", "2 MiB"])]);
        assert_eq!(text.lines().next(), Some("TENANT  LIMIT  CHARGED"));
    }

    #[test]
    fn a_wide_table_continues_below_with_its_key_columns() {
        let columns =
            [Column::text("DEVICE").key(), Column::text("LEFT"), Column::text("RIGHT"), Column::text("END")];
        let wide = "x".repeat(70);
        let text = table(&columns, [cells(&["0", &wide, &wide, "e"]), cells(&["1", "l", "r", "-"])]);
        let blocks: Vec<_> = text.split("\n\n").collect();
        assert!(blocks[0].starts_with("DEVICE  LEFT") && blocks[0].lines().count() == 3, "{text}");
        assert!(blocks[1].starts_with("DEVICE  RIGHT") && blocks[1].contains("END"), "{text}");
        assert!(text.lines().all(|line| line.len() <= WIDTH_MAX), "{text}");
    }

    #[test]
    fn a_cell_cannot_leave_its_place() {
        let columns = [Column::text("CLIENT"), Column::text("X")];
        let text = table(&columns, [cells(&["a\u{1b}[2J\nuid-9\u{202e}", "b"])]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.ends_with("a\u{fffd}[2J\u{fffd}uid-9\u{fffd}  b"), "{text:?}");
    }
}
