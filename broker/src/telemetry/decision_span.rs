//! The span of the core's decision on a traced call.

use std::{collections::BTreeMap, sync::Mutex};

use broker_core::{PartRevocation, Refusal};
use opentelemetry::{
    Context, KeyValue,
    trace::{Span as _, Status, TraceContextExt as _},
};
use opentelemetry_sdk::trace::Span;
use vramd_types::{AllocationId, PartIndex};

use super::{
    metrics,
    traces::{locked, to_i64},
};

/// The decisions in progress, by allocation. A revoke of such an allocation is caused by its decision.
pub(super) type Causes = BTreeMap<AllocationId, Context>;

/// The core's decision on one call. Dropping it ends the span.
#[derive(Debug)]
pub struct Decision {
    causes: &'static Mutex<Causes>,
    span: Span,
    allocations: Vec<AllocationId>,
}

impl Decision {
    pub(super) fn new(causes: &'static Mutex<Causes>, span: Span) -> Self {
        Self { causes, span, allocations: Vec::new() }
    }

    /// Marks these allocations until the decision is dropped: the decision is the cause of their revokes.
    #[must_use]
    pub fn with_allocations(mut self, allocations: Vec<AllocationId>) -> Self {
        let below = Context::new().with_remote_span_context(self.span.span_context().clone());
        locked(self.causes).extend(allocations.iter().map(|id| (*id, below.clone())));
        self.allocations = allocations;
        self
    }

    pub fn granted(mut self) {
        self.set_outcome("granted");
    }

    /// Ends the decision with the number of revoked parts, and the numbers of parts that stay mapped, by cause.
    pub fn revoked(mut self, parts: &[(PartIndex, PartRevocation)]) {
        let of = |is: fn(&PartRevocation) -> bool| to_i64(parts.iter().filter(|(_, part)| is(part)).count());
        for (name, parts) in [
            ("vramd.revocation.parts.revoked", of(|part| matches!(part, PartRevocation::Revoked))),
            ("vramd.revocation.parts.pinned", of(|part| matches!(part, PartRevocation::Pinned { .. }))),
            ("vramd.revocation.parts.silent", of(|part| matches!(part, PartRevocation::Silent { .. }))),
            ("vramd.revocation.parts.standing", of(|part| matches!(part, PartRevocation::Standing { .. }))),
        ] {
            self.span.set_attribute(KeyValue::new(name, parts));
        }
        self.set_outcome("granted");
    }

    /// Ends the decision with the number of refused items and the reason of the first.
    pub fn partly_refused(mut self, refused: usize, first: &Refusal) {
        self.set_outcome("partly_refused");
        self.span.set_attribute(KeyValue::new("vramd.decision.refused_items", to_i64(refused)));
        self.set_reason(first);
    }

    pub fn refused(mut self, refusal: &Refusal) {
        self.set_outcome("refused");
        self.set_reason(refusal);
    }

    fn set_outcome(&mut self, outcome: &'static str) {
        self.span.set_attribute(KeyValue::new("vramd.decision.outcome", outcome));
    }

    fn set_reason(&mut self, refusal: &Refusal) {
        self.span.set_attribute(KeyValue::new(metrics::REFUSAL_REASON, refusal.reason().name()));
        self.span.set_status(Status::error(refusal.to_string()));
    }
}

impl Drop for Decision {
    fn drop(&mut self) {
        if !self.allocations.is_empty() {
            let mut causes = locked(self.causes);
            self.allocations.iter().for_each(|id| drop(causes.remove(id)));
        }
    }
}
