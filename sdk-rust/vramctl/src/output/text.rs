//! How single values read: sizes, ages, counts, and text from elsewhere.

use std::time::{SystemTime, UNIX_EPOCH};

use vramd_client::Bytes;

/// Replaces characters that would move the cursor or colour the terminal. The daemon shows none either, but output
/// must not depend on that: a client's text could overwrite the rows around it.
pub(crate) fn plain(text: &str) -> String {
    let is_hidden = |char: char| {
        char.is_control()
            || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    };
    text.chars().map(|char| if is_hidden(char) { char::REPLACEMENT_CHARACTER } else { char }).collect()
}

/// One line for each fact of one object.
pub(crate) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let lines: Vec<_> =
        facts.iter().map(|(name, value)| format!("{name:<width$} {}", plain(value))).collect();
    lines.join("\n")
}

pub(crate) fn size(bytes: u64) -> String {
    Bytes::new(bytes).to_string()
}

/// A size, or a dash for 0: an empty cell.
pub(crate) fn size_or_dash(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { size(bytes) }
}

/// A count, or a dash for 0: an empty cell.
pub(crate) fn count_or_dash(count: u64) -> String {
    if count == 0 { "-".to_owned() } else { count.to_string() }
}

pub(crate) fn text_or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// The time since then, in its largest sensible unit; a dash without a time.
pub(crate) fn age(since: Option<&prost_types::Timestamp>) -> String {
    let Some(since) = since else { return "-".to_owned() };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seconds = now.saturating_sub(u64::try_from(since.seconds).unwrap_or(0));
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}
