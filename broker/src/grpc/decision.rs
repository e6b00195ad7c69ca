//! Turns the core's decision on a call into a status, and into a span if the call is traced.

use broker_core::{Refusal, Reply};
use tokio::sync::oneshot;
use tonic::Status;
use vramd_types::AllocationId;

use super::status::{self, refused};
use crate::{
    reactor::Outcome,
    telemetry::{Decision, Telemetry},
};

/// Submits a mutation, which may have the core revoke parts of the allocations in `about`.
pub(super) async fn decide<Q>(
    telemetry: &Telemetry,
    request: Q,
    about: impl FnOnce(&Q) -> Vec<AllocationId>,
    ask: impl FnOnce(Q) -> Result<oneshot::Receiver<Outcome>, Refusal>,
) -> Result<Reply, Fault> {
    let decision =
        telemetry.begin_decision("decide").map(|decision| decision.with_allocations(about(&request)));
    let outcome = match ask(request) {
        Ok(answer) => answer.await.map_err(|_| Fault::Stopping)?,
        Err(refusal) => Err(refusal),
    };
    match &outcome {
        Ok(Reply::Released(items)) => {
            let mut refusals = items.iter().filter_map(|(_, item)| item.as_ref().err());
            match (decision, refusals.next()) {
                (Some(decision), Some(first)) => decision.partly_refused(1 + refusals.count(), first),
                (decision, _) => end_span(decision, Ok(())),
            }
        }
        Ok(Reply::MappingsRevoked { parts, .. }) => {
            if let Some(decision) = decision {
                decision.revoked(parts);
            }
        }
        Ok(_) => end_span(decision, Ok(())),
        Err(refusal) => end_span(decision, Err(refusal)),
    }
    outcome.map_err(Fault::Refused)
}

/// Why a call gets no reply.
#[derive(Debug)]
pub(super) enum Fault {
    Refused(Refusal),
    /// The reactor has ended.
    Stopping,
}

impl Fault {
    /// The status for an operator.
    pub(super) fn for_operator(self) -> Status {
        match self {
            Self::Refused(refusal) => refused(&refusal),
            Self::Stopping => status::stopping(),
        }
    }

    /// The status for a client, which learns nothing about sessions of others.
    pub(super) fn for_client(self) -> Status {
        match self {
            Self::Refused(refusal) => refused(&status::without_other_sessions(refusal)),
            Self::Stopping => status::stopping(),
        }
    }
}

/// Reads the broker's state, which may be refused.
pub(super) async fn read<T>(
    telemetry: &Telemetry,
    read: impl Future<Output = Option<Result<T, Refusal>>>,
) -> Result<T, Fault> {
    let decision = telemetry.begin_decision("look");
    let outcome = read.await.ok_or(Fault::Stopping)?;
    end_span(decision, outcome.as_ref().map(|_| ()));
    outcome.map_err(Fault::Refused)
}

fn end_span(decision: Option<Decision>, outcome: Result<(), &Refusal>) {
    match (decision, outcome) {
        (Some(decision), Ok(())) => decision.granted(),
        (Some(decision), Err(refusal)) => decision.refused(refusal),
        (None, _) => {}
    }
}
