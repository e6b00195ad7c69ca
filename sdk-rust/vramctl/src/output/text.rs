//! How single values read: sizes, ages, counts, and text from elsewhere.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost_types::Timestamp;
use vramd_client::Bytes;

/// Replaces characters that would move the cursor or colour the terminal. The daemon shows none either, but output
/// must not depend on that: a client's text could overwrite the rows around it.
pub(crate) use vramd_types::printable as plain;

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
pub(crate) fn age(since: Option<&Timestamp>) -> String {
    age_at(now(), since)
}

/// The same at another time than now, which is given as the time since the epoch.
pub(crate) fn age_at(now: Duration, since: Option<&Timestamp>) -> String {
    since.map_or_else(|| "-".to_owned(), |since| span(now.saturating_sub(after_epoch(since))))
}

/// The time until then; a dash without a time.
pub(crate) fn until(end: Option<&Timestamp>) -> String {
    until_at(now(), end)
}

/// The same at another time than now.
pub(crate) fn until_at(now: Duration, end: Option<&Timestamp>) -> String {
    end.map_or_else(|| "-".to_owned(), |end| format!("in {}", span(after_epoch(end).saturating_sub(now))))
}

/// The time since the epoch.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub(crate) fn after_epoch(time: &Timestamp) -> Duration {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.nanos).unwrap_or(0))
}

/// A time in its largest sensible unit, rounded down.
pub(crate) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
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
    fn an_age_is_rounded_after_the_subtraction() {
        let ago = |age: Duration| {
            let then = now().saturating_sub(age);
            let seconds = i64::try_from(then.as_secs()).unwrap();
            Timestamp { seconds, nanos: i32::try_from(then.subsec_nanos()).unwrap() }
        };
        // The fraction of the present second does not matter: 900 ms are never a second.
        assert_eq!(age(Some(&ago(Duration::from_millis(900)))), "0 s");
        assert_eq!(age(Some(&ago(Duration::from_millis(119_500)))), "119 s");
        assert_eq!(age(Some(&ago(Duration::from_secs(120)))), "2 min");
        assert_eq!(age(None), "-");
        assert_eq!(until(Some(&ago(Duration::from_secs(5)))), "in 0 s", "it is over");
    }
}
