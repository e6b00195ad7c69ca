//! Every operation waits for the driver, or for a session that has a deadline.

use vramd_types::{AllocationId, SessionId};

use super::{OPS, Violation, expect, scope::Scope};
use crate::{
    broker::Broker,
    event::PartRef,
    line::Waiter,
    ops::OpKind,
    residency::Stage,
    tenancy::{OpId, Session},
};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, op) in scope.ops(broker) {
        let waits = match &op.kind {
            OpKind::Release { items, session } => {
                items.iter().filter(|item| item.result.is_none()).all(|item| {
                    is_watched(broker, item.allocation, id) && is_answered(broker, *session, item.allocation)
                })
            }
            OpKind::Free { allocation, owner } => {
                is_watched(broker, *allocation, id)
                    && owner.is_none_or(|owner| is_answered(broker, owner, *allocation))
            }
            OpKind::Seal(sealed) => broker.allocations.get(*sealed).is_some_and(|allocation| {
                let answers = allocation.owner.is_some_and(|owner| has_deadline(broker, owner));
                let moves = broker.moves.migrations.of(*sealed).next().is_some();
                allocation.op == Some(id) && (allocation.digesting || answers || moves)
            }),
            OpKind::EndSession { session, .. } => {
                let killed = |session: &Session| session.end_deadline.is_some();
                broker.sessions.get(*session).is_some_and(killed) || has_deadline(broker, *session)
            }
            OpKind::Allocate { extents_left, .. } => *extents_left > 0,
            OpKind::BatchWait(_) => broker.line.contains(Waiter::Batch(id)),
            OpKind::Revoke { parts, .. } => {
                let of = parts.allocation;
                parts.open().all(|part| is_revoked(broker, PartRef { allocation: of, part }, id))
            }
            OpKind::Move { parts, .. } => {
                let of = parts.allocation;
                parts.open().all(|part| is_moving(broker, PartRef { allocation: of, part }, id))
            }
            OpKind::Quota(_) | OpKind::Standing(_) => true,
        };
        expect(found, OPS, waits, || format!("{id:?} waits for nothing: {op:?}"));
    }
}

/// Whether the session has unmapped the allocation, or has a deadline for it.
fn is_answered(broker: &Broker, session: SessionId, allocation: AllocationId) -> bool {
    let maps = |entry: &Session| entry.maps.contains_key(&allocation);
    !broker.sessions.get(session).is_some_and(maps) || has_deadline(broker, session)
}

fn is_watched(broker: &Broker, allocation: AllocationId, op: OpId) -> bool {
    broker.allocations.get(allocation).is_some_and(|allocation| allocation.waiting_ops.contains(&op))
}

/// Whether the part's revocation is running and will end: the shell answers, the fence has a deadline, and
/// every session that was told to unmap has one.
fn is_revoked(broker: &Broker, part: PartRef, op: OpId) -> bool {
    broker.mapping.revocations.get(&part).is_some_and(|under_way| {
        let ends = match under_way.stage {
            Stage::Words { .. } | Stage::Fence { .. } => true,
            Stage::Evict => {
                let mapping = broker.mappings(part).iter().filter(|mapping| mapping.state.is_mapper());
                mapping.clone().next().is_some()
                    && mapping.into_iter().all(|mapping| has_deadline(broker, mapping.session))
            }
        };
        ends && under_way.ops.contains(&op)
    })
}

/// Whether the part's move or write-back will end: the driver answers, and so does every session that was
/// told to unmap.
fn is_moving(broker: &Broker, part: PartRef, op: OpId) -> bool {
    let is_written_back = broker.moves.write_backs.get(part).is_some_and(|it| it.ops.contains(&op));
    let moves = broker.moves.migrations.get(part).is_some_and(|migration| {
        let goes_on = !migration.is_made
            || migration.is_unmapped
            || migration.state.is_copying()
            || broker.mapping.revocations.contains_key(&part);
        goes_on && migration.ops.contains(&op)
    });
    moves || is_written_back
}

fn has_deadline(broker: &Broker, session: SessionId) -> bool {
    let due = |session: &Session| {
        session.map_deadline.or(session.revoke_deadline).or_else(|| session.unmap_deadline()).is_some()
    };
    broker.sessions.get(session).is_some_and(due)
}
