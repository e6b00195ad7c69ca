//! Answers to orders for single parts.

use crate::{
    broker::Broker,
    command::{PartMove, PartRevocation},
    event::PartRef,
    ops::OpKind,
    tenancy::{OpId, Outcome},
};

impl Broker {
    /// Records the outcome of one part. The caller checks whether it was the last.
    pub(crate) fn part_revoked(&mut self, op: OpId, part: PartRef, outcome: PartRevocation) {
        if let Some(OpKind::Revoke { parts, .. }) = self.requests.ops.get_mut(op).map(|op| &mut op.kind) {
            parts.resolve(part.part, outcome);
        }
    }

    /// Records the outcome of one part. The caller checks whether it was the last.
    pub(crate) fn part_moved(&mut self, op: OpId, part: PartRef, outcome: PartMove) {
        if let Some(OpKind::Move { parts, .. }) = self.requests.ops.get_mut(op).map(|op| &mut op.kind) {
            parts.resolve(part.part, outcome);
        }
    }

    /// Answers an order for single parts if the outcome of each is known.
    pub(crate) fn finish_parts(&mut self, id: OpId) {
        match self.requests.ops.get_mut(id).map(|op| &mut op.kind) {
            Some(OpKind::Revoke { parts, .. }) if parts.is_complete() => {
                let (allocation, parts) = (parts.allocation, parts.take());
                self.finish(id, Ok(Outcome::MappingsRevoked { allocation, parts }));
            }
            Some(OpKind::Move { parts, .. }) if parts.is_complete() => {
                let (allocation, parts) = (parts.allocation, parts.take());
                self.finish(id, Ok(Outcome::PartsMoved { allocation, parts }));
            }
            _ => {}
        }
    }
}
