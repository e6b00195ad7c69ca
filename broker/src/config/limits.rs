//! `[limits]`: the bounds of the core, and those that only the shell knows.

use std::time::Duration;

use broker_core::limits::PIN_PARTS_MAX;
use broker_replay::RECORDS_MAX;
use serde::{Deserialize, Deserializer, de};
use vramd_types::Bytes;

use super::quantity::bytes;
use crate::platform::descriptors::Descriptors;

/// The table `limits`. The core's bounds are as in [`broker_core::Limits`], with times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    #[serde(deserialize_with = "above_zero")]
    pub sessions_max: usize,
    #[serde(deserialize_with = "above_zero")]
    pub sessions_per_tenant_max: usize,
    #[serde(deserialize_with = "above_zero")]
    pub allocations_per_tenant_max: usize,
    #[serde(deserialize_with = "above_zero")]
    pub parts_per_tenant_max: usize,
    /// 0 means as many as the limit of open files allows.
    pub extents_max: usize,
    #[serde(deserialize_with = "above_zero")]
    pub batch_items_max: usize,
    pub readers_max: usize,
    #[serde(deserialize_with = "above_zero")]
    pub pending_requests_max: usize,
    #[serde(deserialize_with = "above_zero")]
    pub pending_requests_per_tenant_max: usize,
    #[serde(deserialize_with = "above_zero")]
    pub fds_in_flight_max: usize,
    #[serde(deserialize_with = "above_zero")]
    pub fds_in_flight_per_tenant_max: usize,
    #[serde(rename = "map_answer_timeout_ms", deserialize_with = "millis")]
    pub map_answer_timeout: Duration,
    #[serde(rename = "revoke_answer_timeout_ms", deserialize_with = "millis")]
    pub revoke_answer_timeout: Duration,
    #[serde(rename = "unmap_answer_timeout_ms", deserialize_with = "millis")]
    pub unmap_answer_timeout: Duration,
    /// 0 means never.
    #[serde(rename = "end_silent_after_ms", deserialize_with = "millis_or_none")]
    pub end_silent_after: Duration,
    #[serde(rename = "survey_interval_ms", deserialize_with = "millis")]
    pub survey_interval: Duration,
    /// A quantity; 0 means that nothing is brought unasked.
    #[serde(deserialize_with = "bytes")]
    pub speculation_bytes_max: Bytes,
    /// A quantity; 0 means that nothing is cached.
    #[serde(deserialize_with = "bytes")]
    pub cached_bytes_per_tenant_max: Bytes,
    #[serde(rename = "cached_for_ms", deserialize_with = "millis")]
    pub cached_for: Duration,
    #[serde(rename = "cached_idle_for_ms", deserialize_with = "millis")]
    pub cached_idle_for: Duration,
    /// Parts that a session with pins maps, or that are away.
    #[serde(deserialize_with = "slots")]
    pub words_per_session_max: u32,
    #[serde(deserialize_with = "above_zero")]
    pub pins_waiting_max: usize,
    #[serde(deserialize_with = "whole_sets")]
    pub pin_parts_waiting_max: usize,
    #[serde(rename = "pin_stall_ms", deserialize_with = "millis")]
    pub pin_stall: Duration,
    #[serde(rename = "hold_after_ms", deserialize_with = "millis_or_none")]
    pub hold_after: Duration,
    /// Maximum connections to `channel.sock` that have not said hello.
    #[serde(deserialize_with = "above_zero")]
    pub greeting_max: usize,
    /// The same for one user.
    #[serde(deserialize_with = "above_zero")]
    pub greeting_per_uid_max: usize,
    /// Maximum connections of one user to `vramd.sock`, and as many to `admin.sock`.
    #[serde(deserialize_with = "above_zero")]
    pub connections_per_uid_max: usize,
    /// A quantity: maximum bytes of connections, requests and unwritten answers that the daemon holds for one user.
    #[serde(deserialize_with = "bytes")]
    pub held_bytes_per_uid_max: Bytes,
    /// Maximum watches at once.
    #[serde(deserialize_with = "above_zero")]
    pub watches_max: usize,
    /// Maximum unread events of one watch. Further events are counted.
    #[serde(deserialize_with = "above_zero")]
    pub watch_events_max: usize,
    /// Maximum records of a trace.
    #[serde(deserialize_with = "trace_records")]
    pub trace_records_max: usize,
    #[serde(rename = "hello_timeout_ms", deserialize_with = "millis")]
    pub hello_timeout: Duration,
    /// How long a gRPC request may take to arrive as a whole.
    #[serde(rename = "request_read_timeout_ms", deserialize_with = "millis")]
    pub request_read_timeout: Duration,
    /// Maximum time of one gRPC call, whatever its caller allows.
    #[serde(rename = "request_timeout_ms", deserialize_with = "millis")]
    pub request_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let broker_core::Limits {
            sessions_max,
            sessions_per_tenant_max,
            allocations_per_tenant_max,
            parts_per_tenant_max,
            extents_max: _,
            batch_items_max,
            readers_max,
            pending_requests_max,
            pending_requests_per_tenant_max,
            fds_in_flight_max,
            fds_in_flight_per_tenant_max,
            map_answer_timeout,
            revoke_answer_timeout,
            unmap_answer_timeout,
            end_silent_after,
            survey_interval,
            cached_bytes_per_tenant_max,
            cached_for,
            cached_idle_for,
            words_per_session_max,
            pins_waiting_max,
            pin_parts_waiting_max,
            prefetches_per_session_max: _,
            prefetch_bytes_copied_max: _,
            speculation_bytes_max,
            pin_stall,
            hold_after,
            turns: _,
        } = broker_core::Limits::default();
        Self {
            sessions_max,
            sessions_per_tenant_max,
            allocations_per_tenant_max,
            parts_per_tenant_max,
            extents_max: 0,
            batch_items_max,
            readers_max,
            pending_requests_max,
            pending_requests_per_tenant_max,
            fds_in_flight_max,
            fds_in_flight_per_tenant_max,
            map_answer_timeout,
            revoke_answer_timeout,
            unmap_answer_timeout,
            end_silent_after,
            survey_interval,
            speculation_bytes_max,
            cached_bytes_per_tenant_max,
            cached_for,
            cached_idle_for,
            words_per_session_max,
            pins_waiting_max,
            pin_parts_waiting_max,
            pin_stall,
            hold_after,
            greeting_max: 256,
            greeting_per_uid_max: 64,
            connections_per_uid_max: 1024,
            held_bytes_per_uid_max: Bytes::mib(40),
            watches_max: 16,
            watch_events_max: 1024,
            trace_records_max: 1_000_000,
            hello_timeout: Duration::from_secs(5),
            request_read_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(300),
        }
    }
}

impl Limits {
    /// Returns the core's limits, lowered to what this process's descriptors allow: each extent takes one, and the
    /// kernel bounds those in flight. If the operator does not set the number of extents, one tenant may have half of
    /// them.
    pub fn core(&self, descriptors: Descriptors) -> broker_core::Limits {
        let (extents_max, parts_per_tenant_max) = match self.extents_max {
            0 => {
                let extents_max = descriptors.extents_max();
                (extents_max, self.parts_per_tenant_max.min((extents_max / 2).max(1)))
            }
            set => (set, self.parts_per_tenant_max),
        };
        broker_core::Limits {
            sessions_max: self.sessions_max,
            sessions_per_tenant_max: self.sessions_per_tenant_max,
            allocations_per_tenant_max: self.allocations_per_tenant_max,
            parts_per_tenant_max,
            extents_max,
            batch_items_max: self.batch_items_max,
            readers_max: self.readers_max,
            pending_requests_max: self.pending_requests_max,
            pending_requests_per_tenant_max: self.pending_requests_per_tenant_max,
            fds_in_flight_max: self.fds_in_flight_max.min(descriptors.in_flight_max()),
            fds_in_flight_per_tenant_max: self.fds_in_flight_per_tenant_max,
            map_answer_timeout: self.map_answer_timeout,
            revoke_answer_timeout: self.revoke_answer_timeout,
            unmap_answer_timeout: self.unmap_answer_timeout,
            end_silent_after: self.end_silent_after,
            survey_interval: self.survey_interval,
            cached_bytes_per_tenant_max: self.cached_bytes_per_tenant_max,
            cached_for: self.cached_for,
            cached_idle_for: self.cached_idle_for,
            words_per_session_max: self.words_per_session_max,
            pins_waiting_max: self.pins_waiting_max,
            pin_parts_waiting_max: self.pin_parts_waiting_max,
            prefetches_per_session_max: broker_core::Limits::default().prefetches_per_session_max,
            prefetch_bytes_copied_max: broker_core::Limits::default().prefetch_bytes_copied_max,
            speculation_bytes_max: self.speculation_bytes_max,
            pin_stall: self.pin_stall,
            hold_after: self.hold_after,
            // They have a table of their own.
            turns: broker_core::TurnLimits::default(),
        }
    }
}

fn above_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    match usize::deserialize(deserializer)? {
        0 => Err(de::Error::custom("must be at least 1")),
        number => Ok(number),
    }
}

fn whole_sets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    match usize::deserialize(deserializer)? {
        parts if parts >= PIN_PARTS_MAX => Ok(parts),
        parts => {
            Err(de::Error::custom(format!("{parts} is too few: one pin set has up to {PIN_PARTS_MAX} parts")))
        }
    }
}

fn trace_records<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    match above_zero(deserializer)? {
        records if records <= RECORDS_MAX => Ok(records),
        records => Err(de::Error::custom(format!("{records} is too large: at most {RECORDS_MAX}"))),
    }
}

/// The daemon maps each session's word table too.
const WORDS_MAX: u32 = 1 << 24;

fn slots<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match u32::deserialize(deserializer)? {
        0 => Err(de::Error::custom("must be at least 1")),
        slots if slots <= WORDS_MAX => Ok(slots),
        slots => Err(de::Error::custom(format!("{slots} is too large: at most {WORDS_MAX}"))),
    }
}

pub(super) fn millis_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}

pub(super) fn millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let millis = u64::deserialize(deserializer)?;
    if millis == 0 {
        Err(de::Error::custom("must be at least 1 ms"))
    } else {
        Ok(Duration::from_millis(millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Descriptors = Descriptors { limit: 1024, open: 24 };

    #[test]
    fn descriptors_bound_extents_and_what_is_in_flight() {
        let core = Limits::default().core(FEW);
        assert_eq!((core.extents_max, core.parts_per_tenant_max, core.fds_in_flight_max), (768, 384, 512));
        let few = Limits { parts_per_tenant_max: 5, fds_in_flight_max: 7, ..Limits::default() }.core(FEW);
        assert_eq!((few.parts_per_tenant_max, few.fds_in_flight_max), (5, 7));
        let set = Limits { extents_max: 2000, ..Limits::default() };
        assert_eq!(set.core(FEW).extents_max, 2000);
        assert_eq!(set.core(FEW).parts_per_tenant_max, set.parts_per_tenant_max);
    }
}
