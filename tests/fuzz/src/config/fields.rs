//! The field that an error names is in the text, at or before the line that it names.

use std::collections::BTreeSet;

use toml::{Table, Value};
use vramd::config::ErrorLocation;

pub(super) fn check(location: &ErrorLocation, tables: &Table, text: &str) {
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
    assert!(paths.contains(&location.field), "{location}: no such field in {paths:?}");
    stands_before(location, text);
}

/// Checks that the last key of the field is written by the end of that line. A key with an escape is written
/// otherwise.
fn stands_before(location: &ErrorLocation, text: &str) {
    let last = location.field.rsplit('.').next().unwrap_or_default();
    let key = last.split('[').next().unwrap_or_default();
    let until: String = text.split_inclusive('\n').take(location.line).collect();
    assert!(text.contains('\\') || until.contains(key), "{location}: `{key}` stands nowhere above");
}
