//! What the daemon tells of itself: logs always, metrics and traces to whoever is configured to hear them.
//!
//! ```text
//!   gRPC layer ── how long, how it ended ──▶ histograms ─┐
//!   anywhere ──── refused, dropped ────────▶ counters ───┼─▶ one set of instruments ─▶ /metrics (Prometheus)
//!   the broker ── one look a collection ───▶ figures ────┘                        └──▶ OTLP, every interval
//!   spans, log lines ─▶ bounded queues ───────────────────────────────────────────────▶ OTLP
//! ```
//!
//! All of it is done by one thread of its own, so that no scrape and no collector is ever in the way of a call. Who
//! writes only adds to a number or puts something into a queue, and never waits; what does not fit is counted.
//! `registry` has every metric. Without configuration there is no thread, and a [`Telemetry`] does nothing.

mod attributes;
mod calls;
mod counters;
mod decision;
mod durations;
mod ended_move;
mod ends;
mod export;
mod figures;
mod http;
mod links;
pub mod logs;
mod metrics;
mod moves;
mod otlp;
mod pins;
mod pools;
mod pressures;
pub mod registry;
mod revocations;
mod series;
mod start;
mod traces;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use broker_core::{ChannelId, ClientFrame, DaemonFrame, Event, Notice, Refusal, Reply, Time};
use tonic::codegen::http::HeaderMap;
use vramd_proto::v1;
use vramd_types::Reason;

pub use calls::Call;
use calls::Methods;
use counters::{Counters, Scope};
pub use decision::Decision;
use ended_move::EndedMove;
use metrics::Metrics;
use revocations::Revocations;
pub use start::{Node, Opening, Running};
use traces::Traces;

use crate::reactor::Clock;

/// Where things happen they are told to this. Clones are the same; the default one tells nobody.
///
/// There is one as long as the process lives: calls that counted who uses it would all write to one place in memory.
#[derive(Clone, Debug, Default)]
pub struct Telemetry(Option<&'static Shared>);

#[derive(Debug)]
struct Shared {
    metrics: Metrics,
    counters: Arc<Counters>,
    methods: Methods,
    /// The broker's.
    clock: Clock,
    traces: Option<Traces>,
    /// The reactor's alone, so nobody ever waits for it.
    revocations: Mutex<Revocations>,
}

impl Telemetry {
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A call begins.
    pub fn call(&self, path: &str, headers: &HeaderMap) -> Option<Call> {
        self.0.map(|shared| Call::begin(shared, path, headers))
    }

    /// The core is asked to decide for the call at hand.
    pub fn decision(&self, name: &'static str) -> Option<Decision> {
        self.traces()?.decision(name)
    }

    /// A call was answered, and items of it may have been refused.
    pub fn replied(&self, outcome: &Result<Reply, Refusal>) {
        let Some(shared) = self.0 else { return };
        if let Ok(Reply::Released(items)) = outcome {
            for refusal in items.iter().filter_map(|(_, item)| item.as_ref().err()) {
                shared.counters.refused(Scope::Item, refusal.reason());
            }
        }
    }

    /// Something happened that operators may want to hear of.
    pub fn noticed(&self, notice: &Notice) {
        let Some(shared) = self.0 else { return };
        shared.metrics.moves().told(notice);
        shared.metrics.pressures().told(notice);
        shared.metrics.ends.told(notice, |began| shared.since(began));
        if let Some(ended) = EndedMove::of(notice) {
            shared.metrics.moves().ended(&ended);
            let took = shared.since(ended.began);
            shared.metrics.ends.moved(&ended, took);
            if let Some(traces) = &shared.traces {
                traces.moved(&ended, took);
            }
        }
        if let Notice::PinStalled { .. } = notice {
            shared.counters.pin_stalled();
        }
        if let Notice::CreateRetried { .. } = notice {
            shared.counters.create_retried();
        }
    }

    /// A connection was refused that the core never heard of.
    pub fn channel_refused(&self, reason: Reason) {
        if let Some(shared) = self.0 {
            shared.counters.refused(Scope::Channel, reason);
        }
    }

    /// A client has sent a frame, in that trace.
    pub fn asked(&self, channel: ChannelId, frame: &ClientFrame, trace: Option<&v1::TraceContext>) {
        if let (Some(traces), ClientFrame::Pin { call, parts, write, .. }) = (self.traces(), frame) {
            traces.pin((channel, *call), parts.len(), *write, trace);
        }
    }

    /// A frame is about to be sent to a client.
    pub fn frame_sent(&self, channel: ChannelId, frame: &DaemonFrame) {
        let Some(shared) = self.0 else { return };
        match frame {
            DaemonFrame::Refused(refusal) => shared.counters.refused(Scope::Channel, refusal.reason()),
            DaemonFrame::PinAnswer { refusal, .. } => {
                if let Some(refusal) = refusal {
                    shared.counters.refused(Scope::Pin, refusal.reason());
                }
                if let Some(traces) = &shared.traces {
                    traces.pins().sent(channel, frame);
                }
            }
            DaemonFrame::Map(parts) => shared.metrics.moves().sent(parts.iter().map(|sent| sent.part)),
            DaemonFrame::Revoke { parts, reason } => {
                let span = shared.traces.as_ref().and_then(|traces| traces.revocation(parts, *reason));
                shared.revocations().sent(channel, frame, span);
            }
            _ => {}
        }
    }

    /// The core is about to hear of an event.
    pub fn happened(&self, event: &Event) {
        if let (Some(shared), Event::Frame { .. } | Event::ChannelEnded { .. } | Event::ProcessEnded { .. }) =
            (self.0, event)
        {
            shared.revocations().happened(event);
            if let Some(traces) = &shared.traces {
                traces.pins().happened(event);
            }
        }
    }

    fn traces(&self) -> Option<&'static Traces> {
        self.0?.traces.as_ref()
    }
}

impl Shared {
    /// How long ago that was.
    fn since(&self, began: Time) -> Duration {
        Duration::from_micros(self.clock.now().as_micros().saturating_sub(began.as_micros()))
    }

    fn revocations(&self) -> std::sync::MutexGuard<'_, Revocations> {
        self.revocations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
