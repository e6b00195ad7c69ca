//! Times from the daemon's log: when a batch was decoded, and when each packet of descriptors was handed to the socket. Only the daemon
//! knows them. Both are events at the level `debug`, stamped in microseconds.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Returns the time from the last decoded batch in this piece of a log to the last packet sent after it.
pub(crate) fn batch_to_last_packet(log: &str) -> Result<Duration> {
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (mut decoded, mut sent) = (None, None);
    for event in events {
        let at = event["timestamp"].as_str().and_then(micros_of_day);
        match event["message"].as_str() {
            Some("batch decoded") => (decoded, sent) = (at, None),
            Some("packet sent") if event["fds"].as_u64().is_some_and(|fds| fds > 0) => sent = at,
            _ => {}
        }
    }
    let decoded = decoded.context("the log tells of no batch")?;
    let sent = sent.context("the log tells of no packet after the batch")?;
    // At midnight the clock starts again.
    Ok(Duration::from_micros((sent + MICROS_A_DAY - decoded) % MICROS_A_DAY))
}

const MICROS_A_DAY: u64 = 24 * 3600 * 1_000_000;

/// Parses the time of day of `2026-11-20T12:34:56.123456Z`.
fn micros_of_day(timestamp: &str) -> Option<u64> {
    let (_, time) = timestamp.trim_end_matches('Z').split_once('T')?;
    let (whole, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let seconds = whole.split(':').try_fold(0, |sum, part| Some(sum * 60 + part.parse::<u64>().ok()?))?;
    let micros: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    Some(seconds * 1_000_000 + micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batch_and_its_last_packet_count() {
        let log = r#"
            no JSON
            {"timestamp":"2026-11-20T10:00:00.000001Z","level":"DEBUG","message":"batch decoded","items":1}
            {"timestamp":"2026-11-20T10:00:00.5Z","level":"DEBUG","message":"packet sent","fds":1}
            {"timestamp":"2026-11-20T23:59:59.999000Z","level":"DEBUG","message":"batch decoded","items":1000}
            {"timestamp":"2026-11-21T00:00:00.010000Z","level":"DEBUG","message":"packet sent","fds":128}
            {"timestamp":"2026-11-21T00:00:00.024000Z","level":"DEBUG","message":"packet sent","fds":104}
            {"timestamp":"2026-11-21T00:00:00.030000Z","level":"DEBUG","message":"packet sent","fds":0}
        "#;
        assert_eq!(batch_to_last_packet(log).unwrap(), Duration::from_millis(25));
        assert!(batch_to_last_packet("").is_err());
    }
}
