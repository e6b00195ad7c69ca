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
mod call_durations;
mod calls;
mod counters;
mod decision_span;
mod ended_move;
mod export_queue;
mod figures;
mod histograms;
mod http;
mod instruments;
mod links;
pub mod logs;
pub mod metrics;
mod move_counters;
mod otlp;
mod pin_spans;
mod pools;
mod pressure_counters;
mod revocation_times;
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
pub use decision_span::Decision;
use ended_move::EndedMove;
use instruments::Instruments;
use revocation_times::RevocationTimes;
pub use start::{Node, Running, TelemetrySetup};
use traces::Traces;

use crate::reactor::Clock;

/// Where things happen they are told to this. Clones are the same; the default one tells nobody.
///
/// There is one as long as the process lives: calls that counted who uses it would all write to one place in memory.
#[derive(Clone, Debug, Default)]
pub struct Telemetry(Option<&'static Shared>);

#[derive(Debug)]
struct Shared {
    metrics: Instruments,
    counters: Arc<Counters>,
    methods: Methods,
    /// The broker's.
    clock: Clock,
    traces: Option<Traces>,
    /// The reactor's alone, so nobody ever waits for it.
    revocations: Mutex<RevocationTimes>,
}

impl Telemetry {
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A call begins.
    pub fn begin_call(&self, path: &str, headers: &HeaderMap) -> Option<Call> {
        self.0.map(|shared| Call::begin(shared, path, headers))
    }

    /// The core is asked to decide for the call at hand.
    pub fn begin_decision(&self, name: &'static str) -> Option<Decision> {
        self.traces()?.begin_decision(name)
    }

    /// A call was answered, and items of it may have been refused.
    pub fn count_refused_items(&self, outcome: &Result<Reply, Refusal>) {
        let Some(shared) = self.0 else { return };
        if let Ok(Reply::Released(items)) = outcome {
            for refusal in items.iter().filter_map(|(_, item)| item.as_ref().err()) {
                shared.counters.count_refusal(Scope::Item, refusal.reason());
            }
        }
    }

    /// Something happened that operators may want to hear of.
    pub fn record_notice(&self, notice: &Notice) {
        let Some(shared) = self.0 else { return };
        shared.metrics.moves().forget_gone(notice);
        shared.metrics.pressures().count(notice);
        shared.metrics.histograms.record_wait(notice, |began| shared.elapsed(began));
        if let Some(ended) = EndedMove::of(notice) {
            shared.metrics.moves().count(&ended);
            let took = shared.elapsed(ended.began);
            shared.metrics.histograms.record_move(&ended, took);
            if let Some(traces) = &shared.traces {
                traces.record_move(&ended, took);
            }
        }
        if let Notice::PinStalled { .. } = notice {
            shared.counters.count_pin_stall();
        }
        if let Notice::CreateRetried { .. } = notice {
            shared.counters.count_create_retry();
        }
    }

    /// A connection was refused that the core never heard of.
    pub fn count_refused_channel(&self, reason: Reason) {
        if let Some(shared) = self.0 {
            shared.counters.count_refusal(Scope::Channel, reason);
        }
    }

    /// A client has sent a frame, in that trace.
    pub fn begin_pin(&self, channel: ChannelId, frame: &ClientFrame, trace: Option<&v1::TraceContext>) {
        if let (Some(traces), ClientFrame::Pin { call, parts, write, .. }) = (self.traces(), frame) {
            traces.begin_pin((channel, *call), parts.len(), *write, trace);
        }
    }

    /// A frame is about to be sent to a client.
    pub fn record_frame(&self, channel: ChannelId, frame: &DaemonFrame) {
        let Some(shared) = self.0 else { return };
        match frame {
            DaemonFrame::Refused(refusal) => shared.counters.count_refusal(Scope::Channel, refusal.reason()),
            DaemonFrame::PinAnswer { refusal, .. } => {
                if let Some(refusal) = refusal {
                    shared.counters.count_refusal(Scope::Pin, refusal.reason());
                }
                if let Some(traces) = &shared.traces {
                    traces.pins().end_answered(channel, frame);
                }
            }
            DaemonFrame::Map(parts) => shared.metrics.moves().count_used(parts.iter().map(|sent| sent.part)),
            DaemonFrame::Revoke { parts, reason } => {
                let span = shared.traces.as_ref().and_then(|traces| traces.begin_revocation(parts, *reason));
                shared.revocations().begin(channel, frame, span);
            }
            _ => {}
        }
    }

    /// The core is about to hear of an event.
    pub fn record_event(&self, event: &Event) {
        if let (Some(shared), Event::Frame { .. } | Event::ChannelEnded { .. } | Event::ProcessEnded { .. }) =
            (self.0, event)
        {
            shared.revocations().handle_event(event);
            if let Some(traces) = &shared.traces {
                traces.pins().handle_event(event);
            }
        }
    }

    fn traces(&self) -> Option<&'static Traces> {
        self.0?.traces.as_ref()
    }
}

impl Shared {
    /// How long ago that was.
    fn elapsed(&self, began: Time) -> Duration {
        Duration::from_micros(self.clock.now().as_micros().saturating_sub(began.as_micros()))
    }

    fn revocations(&self) -> std::sync::MutexGuard<'_, RevocationTimes> {
        self.revocations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
