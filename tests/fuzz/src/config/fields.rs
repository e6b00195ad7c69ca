//! The field that an error names is in the text, at or before the line that it names.

use std::collections::BTreeSet;

use toml::{Table, Value};
use vramd::config::Place;

pub(super) fn check(place: &Place, tables: &Table, text: &str) {
    let mut paths = BTreeSet::new();
    let mut todo: Vec<_> = tables.iter().map(|(key, value)| (key.clone(), value)).collect();
    while let Some((path, value)) = todo.pop() {
        match value {
            Value::Table(table) => {
                todo.extend(table.iter().map(|(key, value)| (format!("{path}.{key}"), value)));
            }
            Value::Array(array) => {
                todo.extend(
                    array.iter().enumerate().map(|(index, value)| (format!("{path}[{index}]"), value)),
                );
            }
            _ => {}
        }
        paths.insert(path);
    }
    assert!(paths.contains(&place.field), "{place}: no such field in {paths:?}");
    stands_before(place, text);
}

/// Checks that the last key of the field is written by the end of that line. A key with an escape is written
/// otherwise.
fn stands_before(place: &Place, text: &str) {
    let last = place.field.rsplit('.').next().unwrap_or_default();
    let key = last.split('[').next().unwrap_or_default();
    let until: String = text.split_inclusive('\n').take(place.line).collect();
    assert!(text.contains('\\') || until.contains(key), "{place}: `{key}` stands nowhere above");
}
