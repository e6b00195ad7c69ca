//! Telemetry of the daemon: logs always, metrics and traces if configured.
//!
//! ```text
//!   gRPC layer ── duration, status ────────▶ histograms ─┐
//!   all parts ─── refusals, losses ────────▶ counters ───┼─▶ one set of instruments ─▶ /metrics (Prometheus)
//!   the broker ── one snapshot a collection ▶ figures ───┘                        └──▶ OTLP, every interval
//!              ── one sample every two seconds ▶ history ─────────────────────────────▶ the page for people
//!   spans, log lines ─▶ bounded queues ───────────────────────────────────────────────▶ OTLP
//! ```
//!
//! One thread of its own does all the work, so no scrape and no collector delays a call. Callers only add to a number
//! or put an item into a bounded queue, and never wait; items that do not fit are counted. `metrics` declares every
//! metric. Without configuration there is no thread, and a [`Telemetry`] does nothing.

mod attributes;
mod awaited_parts;
mod call_durations;
mod calls;
mod counters;
mod decision_span;
mod ended_move;
mod exemplars;
mod export_queue;
mod figures;
mod histograms;
mod http;
mod instruments;
pub mod lines;
mod links;
pub mod logs;
pub mod metrics;
mod move_counters;
mod openmetrics;
mod otlp;
mod page;
mod peer_lines;
mod pin_spans;
mod pools;
mod prefetch_spans;
mod pressure_counters;
mod process;
mod revocation_times;
mod series;
mod start;
mod tenant_counters;
mod traces;
mod turn_histograms;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use broker_core::{ChannelId, ClientFrame, DaemonFrame, Event, Notice, Refusal, Reply, Time};
use tonic::codegen::http::HeaderMap;
use vramd_proto::v1;
use vramd_types::{FallBack, Reason};

pub use calls::Call;
use calls::Methods;
use counters::{Counters, Scope};
pub use decision_span::Decision;
use ended_move::EndedMove;
use instruments::Instruments;
pub(crate) use peer_lines::PeerLines;
use revocation_times::RevocationTimes;
pub use start::{DaemonFacts, Running, TelemetrySetup};
use traces::Traces;

use crate::reactor::Clock;

/// Receives everything that metrics and traces report. Clones are the same; the default one does nothing.
///
/// It is a reference that lasts as long as the process: a reference count would have all calls write to one cache line.
#[derive(Clone, Debug, Default)]
pub struct Telemetry(Option<&'static Shared>);

#[derive(Debug)]
struct Shared {
    metrics: Instruments,
    counters: Arc<Counters>,
    methods: Methods,
    /// The broker's clock.
    clock: Clock,
    traces: Option<Traces>,
    /// Only the reactor locks it, so no thread ever waits for it.
    revocations: Mutex<RevocationTimes>,
}

impl Telemetry {
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins the observation of a gRPC call.
    pub fn begin_call(&self, path: &str, headers: &HeaderMap) -> Option<Call> {
        self.0.map(|shared| Call::begin(shared, path, headers))
    }

    /// Begins the span of the core's decision on the current call, if that is traced.
    pub fn begin_decision(&self, name: &'static str) -> Option<Decision> {
        self.traces()?.begin_decision(name)
    }

    /// Counts the refused items of an answer.
    pub fn count_refused_items(&self, outcome: &Result<Reply, Refusal>) {
        let Some(shared) = self.0 else { return };
        if let Ok(Reply::Released(items)) = outcome {
            for refusal in items.iter().filter_map(|(_, item)| item.as_ref().err()) {
                shared.counters.count_refusal(Scope::Item, refusal.reason());
            }
        }
    }

    /// Records a notice of the core in counters, histograms and spans.
    pub fn record_notice(&self, notice: &Notice) {
        let Some(shared) = self.0 else { return };
        shared.metrics.moves().forget_gone(notice);
        shared.metrics.pressures().count(notice);
        shared.metrics.tenants().count(notice, || shared.clock.now());
        let wait = shared.metrics.histograms.record_wait(notice, |began| shared.elapsed(began));
        if let (Some(wait), Some(traces)) = (wait, &shared.traces) {
            let span = traces.pins().span_of(wait.session, wait.call);
            if let Some(span) = span {
                let values = [&*wait.tenant, wait.outcome];
                shared.metrics.exemplars.record(&metrics::PIN_WAIT, &values, wait.seconds, &span);
            }
        }
        if let Some(ended) = EndedMove::of(notice) {
            shared.metrics.moves().count(&ended);
            shared.metrics.tenants().count_copied(&ended, shared.clock.now());
            let took = shared.elapsed(ended.began);
            shared.metrics.histograms.record_move(&ended, took);
            if let Some(traces) = &shared.traces {
                traces.record_move(&ended, took);
            }
        }
        if let Notice::PinStalled { .. } = notice {
            shared.counters.count_pin_stall();
        }
        if let Notice::PrefetchEnded { end, .. } = notice {
            shared.counters.count_prefetch(*end);
        }
        if let Notice::SpeculationEnded { bytes, end, .. } = notice {
            shared.counters.count_speculated(*end, bytes.get());
        }
        if let Notice::PlacementChosen { part, sum, in_place, .. } = notice {
            shared.counters.count_placed(*in_place);
            if let Some(traces) = &shared.traces {
                traces.note_placement(*part, sum, *in_place);
            }
        }
        if let Notice::VictimChosen { cause, reason, .. } = notice {
            shared.counters.count_eviction(*cause, *reason);
        }
        if let Notice::ManagedOrderEnded { problem, .. } = notice {
            shared.counters.count_managed_order(problem.is_none());
        }
        if let Notice::TurnOverdue { .. } = notice {
            shared.counters.count_overdue_turn();
        }
        if let Notice::CreateRetried { .. } = notice {
            shared.counters.count_create_retry();
        }
    }

    /// Counts a connection that the shell refused before the core knew it.
    pub fn count_refused_channel(&self, reason: Reason) {
        if let Some(shared) = self.0 {
            shared.counters.count_refusal(Scope::Channel, reason);
        }
    }

    /// Counts a file that a client copied to a device instead of having it read in place.
    pub fn count_fall_back(&self, reason: FallBack) {
        if let Some(shared) = self.0 {
            shared.counters.count_fall_back(reason);
        }
    }

    /// Begins the span of a pin call or a prefetch request, in the client's trace.
    pub fn begin_frame(&self, channel: ChannelId, frame: &ClientFrame, trace: Option<&v1::TraceContext>) {
        let Some(traces) = self.traces() else { return };
        match frame {
            ClientFrame::Pin { call, parts, write, .. } => {
                traces.begin_pin((channel, *call), parts.len(), *write, trace);
            }
            ClientFrame::Prefetch { number, spec } => traces.begin_prefetch((channel, *number), spec, trace),
            _ => {}
        }
    }

    /// Records a frame that the daemon is about to send.
    pub fn record_frame(&self, channel: ChannelId, frame: &DaemonFrame) {
        let Some(shared) = self.0 else { return };
        match frame {
            DaemonFrame::Welcome { session, .. } => {
                if let Some(traces) = &shared.traces {
                    traces.pins().begin_session(*session, channel);
                }
            }
            DaemonFrame::Refused(refusal) => shared.counters.count_refusal(Scope::Channel, refusal.reason()),
            DaemonFrame::PinAnswer { refusal, .. } => {
                shared.counters.count_pin();
                if let Some(refusal) = refusal {
                    shared.counters.count_refusal(Scope::Pin, refusal.reason());
                }
                if let Some(traces) = &shared.traces {
                    traces.pins().end_answered(channel, frame);
                }
            }
            DaemonFrame::Prefetch { number, state } => {
                if let Some(traces) = &shared.traces {
                    traces.prefetches().told((channel, *number), state);
                }
            }
            DaemonFrame::Map(parts) => {
                let report = |tenant: &str, bytes| {
                    shared.metrics.tenants().count_used(tenant, bytes, shared.clock.now());
                };
                shared.metrics.moves().count_used(parts.iter().map(|sent| sent.part), report);
            }
            DaemonFrame::Revoke { parts, reason } => {
                let span = shared.traces.as_ref().and_then(|traces| traces.begin_revocation(parts, *reason));
                shared.revocations().begin(channel, frame, span);
            }
            _ => {}
        }
    }

    /// Records an event before the core handles it.
    pub fn record_event(&self, event: &Event) {
        if let (Some(shared), Event::Frame { .. } | Event::ChannelEnded { .. } | Event::ProcessEnded { .. }) =
            (self.0, event)
        {
            shared.revocations().handle_event(event);
            if let Some(traces) = &shared.traces {
                traces.handle_event(event);
            }
        }
    }

    fn traces(&self) -> Option<&'static Traces> {
        self.0?.traces.as_ref()
    }
}

impl Shared {
    /// Returns the time since a moment of the broker's clock.
    fn elapsed(&self, began: Time) -> Duration {
        Duration::from_micros(self.clock.now().as_micros().saturating_sub(began.as_micros()))
    }

    fn revocations(&self) -> std::sync::MutexGuard<'_, RevocationTimes> {
        self.revocations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
