//! Traces.

use std::iter::Map;

use tokio_stream::{Iter, iter};
use tonic::Status;
use vramd_proto::v1;

use super::Admin;
use crate::{
    grpc::status,
    recorder::{Pieces, TraceRefusal},
};

/// The pieces of a trace's file, each made when it is sent.
pub(super) type Answers = Iter<Map<Pieces, fn(String) -> Result<v1::SaveTraceResponse, Status>>>;

impl Admin {
    pub(super) async fn start(
        &self,
        message: v1::StartTraceRequest,
    ) -> Result<v1::StartTraceResponse, Status> {
        let started = self.recorder.start(&self.inbox, message.records_max).await;
        let records_max = started.map_err(refused)?;
        Ok(v1::StartTraceResponse { records_max: u64::try_from(records_max).unwrap_or(u64::MAX) })
    }

    pub(super) fn stop(&self) -> Result<v1::StopTraceResponse, Status> {
        let trace = self.recorder.stop().map_err(refused)?;
        let began = std::time::Duration::from_micros(trace.began().as_micros());
        let trace = v1::TraceSummary {
            record_count: u64::try_from(trace.record_count()).unwrap_or(u64::MAX),
            began_at: self.facts.started_at.checked_add(began).map(Into::into),
            duration_us: u64::try_from(trace.duration().as_micros()).unwrap_or(u64::MAX),
            full: trace.is_full(),
        };
        Ok(v1::StopTraceResponse { trace: Some(trace) })
    }

    pub(super) fn save(&self) -> Result<Answers, Status> {
        let trace = self.recorder.finished().map_err(refused)?;
        Ok(iter(trace.pieces().map(answer as fn(String) -> _)))
    }
}

fn answer(piece: String) -> Result<v1::SaveTraceResponse, Status> {
    Ok(v1::SaveTraceResponse { content: piece.into_bytes() })
}

fn refused(refusal: TraceRefusal) -> Status {
    match refusal {
        TraceRefusal::Running => status::trace_running(),
        TraceRefusal::NotFound => status::trace_not_found(),
        TraceRefusal::Bound { limit } => status::trace_bound(limit),
        TraceRefusal::Ended => status::stopping(),
    }
}
