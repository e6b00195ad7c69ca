//! The wait of a call as a clause, for the client that waits: its object, and the sessions in its way.
//!
//! A client reads the sessions of its own tenant by name, and others only as a number.

use vramd_types::{Bytes, SessionId};

use super::wait_reason::Blockers;
use crate::{
    broker::Broker,
    event::{CallId, PartRef, Tier},
    line::{Footprint, Waiter},
    ops::OpKind,
    tenancy::{OpId, PinId, TenantId},
    view::{WaitCause, WaitReason},
};

impl Broker {
    /// Describes the wait of a call of a client or operator; `None` if the core does not know the call.
    pub fn waited_for(&self, call: CallId) -> Option<String> {
        let (id, op) = self.requests.ops.iter().find(|(_, op)| op.calls.contains(&call))?;
        Some(match &op.kind {
            OpKind::BatchWait(_) => self.describe_batch_wait(id)?,
            OpKind::Allocate { extents_left, .. } => {
                format!("the driver is creating {extents_left} more pieces of memory")
            }
            OpKind::Release { .. } => "sessions are still unmapping what is released".to_owned(),
            OpKind::Seal(allocation) => {
                format!("the session is still unmapping {allocation}, or its bytes are being hashed")
            }
            OpKind::Free { allocation, owner } => match owner {
                Some(owner) => format!("{owner} is still unmapping {allocation}"),
                None => format!("sessions are still unmapping {allocation}"),
            },
            OpKind::EndSession { session, .. } => format!("{session} has not unmapped everything"),
            OpKind::Revoke { .. } => "sessions have not unmapped all of these parts".to_owned(),
            OpKind::Move { .. } => "not all of these parts have moved".to_owned(),
            OpKind::Quota(_) => {
                "room for the guarantee is being made, or the quota is being stored".to_owned()
            }
            OpKind::Standing(_) => "the class and the weight are being stored".to_owned(),
        })
    }

    /// Describes the wait of a batch of the line on the first device where it needs room.
    pub(crate) fn describe_batch_wait(&self, op: OpId) -> Option<String> {
        let (tenant, batch) = self.waiting_batch(op)?;
        let needs = self.batch_needs(op, batch.request.arrived);
        let first = needs.first()?.footprint;
        let on_device = needs.iter().filter(|need| need.footprint.device == first.device);
        let size = on_device.map(|need| need.footprint.size).fold(Bytes::ZERO, Bytes::saturating_add);
        Some(self.describe_wait(tenant, Waiter::Batch(op), Footprint { size, ..first }))
    }

    /// Describes the wait of a pin call.
    pub(crate) fn describe_pin_wait(&self, id: PinId) -> String {
        let nothing = || "it was about to be answered".to_owned();
        let Some(call) = self.pins.get(id) else { return nothing() };
        let missing: Vec<PartRef> =
            call.parts.iter().copied().filter(|part| self.pins.is_missing(id, *part)).collect();
        let waiting = missing.iter().filter(|part| self.line.contains(Waiter::Part(**part)));
        let mut waiting = waiting.filter_map(|part| Some((*part, self.footprint_of(*part)?)));
        if let Some((first, footprint)) = waiting.next() {
            let others = waiting.filter(|(_, other)| other.device == footprint.device);
            let size = others.map(|(_, other)| other.size).fold(footprint.size, Bytes::saturating_add);
            let asker = self.sessions.get(id.0).map_or(footprint.tenant, |session| session.tenant);
            return self.describe_wait(asker, Waiter::Part(first), Footprint { size, ..footprint });
        }
        let count = |fits: &dyn Fn(PartRef) -> bool| missing.iter().filter(|part| fits(**part)).count();
        let copied =
            count(&|part| self.moves.migrations.get(part).is_some_and(|it| it.to_tier == Tier::Device));
        let revoked = count(&|part| self.mapping.revocations.contains_key(&part));
        match (copied, revoked, missing.len()) {
            (_, _, 0) => nothing(),
            (0, 0, sent) => {
                format!("{sent} of its parts were sent to the session, which has not mapped them")
            }
            (0, revoked, _) => format!("sessions are still unmapping {revoked} of its parts"),
            (copied, ..) => format!("{copied} of its parts are being copied to their device"),
        }
    }

    fn describe_wait(&self, asker: TenantId, waiter: Waiter, footprint: Footprint) -> String {
        let reason = Blockers::new(self).reason(waiter, footprint);
        let why = match reason.cause {
            WaitCause::Turn => self.describe_earlier(asker, waiter, footprint),
            _ => self.describe_reason(asker, footprint.tenant, &reason),
        };
        format!("it waits for {} on {}, {why}", footprint.size, self.uuid(footprint.device))
    }

    /// Names the first earlier waiter that lets no other pass.
    fn describe_earlier(&self, asker: TenantId, waiter: Waiter, footprint: Footprint) -> String {
        let own = self.line.position(waiter);
        match self.holder_of(footprint.device).filter(|(position, _)| Some(*position) < own) {
            Some((position, of)) => {
                let of = if of == asker { "the same tenant" } else { "another tenant" };
                format!("where an earlier request goes first: wait {} of {of}", position.wait())
            }
            None => "where earlier requests go first".to_owned(),
        }
    }

    fn describe_reason(&self, asker: TenantId, tenant: TenantId, reason: &WaitReason) -> String {
        let WaitReason { cause, bound, charged, sessions, operator_held, .. } = reason;
        let by = || self.describe_users(asker, sessions, *operator_held);
        match cause {
            WaitCause::Limit if asker == tenant => format!(
                "where tenant `{}` is at its limit: {charged} of {bound} in use{}",
                self.tenants.name(tenant),
                by()
            ),
            WaitCause::Limit => "where the tenant of that memory is at its limit".to_owned(),
            WaitCause::Guarantee => "where the free room is guaranteed to other tenants".to_owned(),
            WaitCause::InUse => format!("which is full: {charged} of {bound} in use{}", by()),
            WaitCause::Leaving => "where room is being made".to_owned(),
            WaitCause::Turn => "where earlier requests go first".to_owned(),
            WaitCause::Driver => "where the driver has no memory".to_owned(),
        }
    }

    /// The users of memory, as the tenant may read them: `, by s-1 and 2 sessions of other tenants`.
    fn describe_users(&self, asker: TenantId, sessions: &[SessionId], operator_held: Bytes) -> String {
        let is_own = |id: &&SessionId| self.sessions.get(**id).is_some_and(|it| it.tenant == asker);
        let (own, others): (Vec<&SessionId>, Vec<&SessionId>) = sessions.iter().partition(is_own);
        let mut users: Vec<String> = own.into_iter().map(ToString::to_string).collect();
        match others.len() {
            0 => {}
            1 => users.push("a session of another tenant".to_owned()),
            count => users.push(format!("{count} sessions of other tenants")),
        }
        if !operator_held.is_zero() {
            users.push("an operator's hold".to_owned());
        }
        match users.is_empty() {
            true => String::new(),
            false => format!(", by {}", users.join(" and ")),
        }
    }
}
