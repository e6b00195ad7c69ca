//! Frames of mappings: the daemon sends parts to sessions, and has them unmapped.
//!
//! A part is queued for a session and leaves with its next packet ([`Broker::pump`]). A session has at most one
//! unanswered packet of descriptors; a tenant and the node have descriptor budgets (`residency/fd_budget.rs`).
//! From the moment a packet is sent, its parts count as mapped.
//!
//! `node/frames.rs` takes the answers. A part that is mapped then may be what a call waits for
//! (`pins/pin_call.rs`, which answers the client).

use vramd_types::{AllocationId, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, MapPart, Notice, RevokeReason, RevokedPart},
    event::{ChannelId, PartRef},
    follow_up::Fact,
    invariants,
    limits::{FDS_PER_PACKET_MAX, PARTS_PER_FRAME_MAX, REVOKE_GROUP_MAX},
    observed::Transition,
    residency::{AllocationState, MapEvent, MapState, MapStep, Mapping},
    tenancy::{Session, SessionState, TenantId},
};

/// How far back among queued commands the daemon searches for a frame to extend.
const LOOKED_BACK: usize = 4 * REVOKE_GROUP_MAX;

/// Which parts of an allocation a session is sent that has not pinned them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitialMaps {
    All,
    /// Parts on their device: the rest would need room.
    OnDevice,
    Nothing,
}

impl Broker {
    /// Queues the parts of an allocation that the session does not map yet. Returns those that are off their
    /// device and have to be fetched for it.
    pub(crate) fn queue_parts(
        &mut self,
        id: SessionId,
        allocation_id: AllocationId,
        initial: InitialMaps,
    ) -> Vec<PartRef> {
        let elsewhere = self.parts_off_device(allocation_id);
        let (Some(session), Some(allocation)) =
            (self.sessions.get_mut(id), self.allocations.get_mut(allocation_id))
        else {
            return Vec::new();
        };
        let is_connected = session.is_connected();
        planted!(self, MapSentToClosedChannel => is_connected = true);
        if !is_connected {
            return Vec::new();
        }
        let is_unpinned = allocation.unpinned && allocation.owner == Some(id);
        let initial = if is_unpinned { InitialMaps::Nothing } else { initial };
        let (mut queued, mut comes) = (0, Vec::new());
        for index in allocation.indices() {
            if allocation.part(index).is_none_or(|part| part.map_state(id).is_some()) {
                continue;
            }
            let slot = session.words.as_mut().map(|words| words.slots.take());
            if slot == Some(None) {
                self.report_violation(invariants::SLOTS, format!("{id} has no slot for {allocation_id}"));
                return Vec::new();
            }
            let part = PartRef { allocation: allocation_id, part: index };
            let state = match self.mapping.revocations.get_mut(&part) {
                _ if initial == InitialMaps::Nothing => MapState::Away,
                Some(revocation) => {
                    revocation.attach_waiters.push(id);
                    MapState::Away
                }
                None if elsewhere.contains(&part) => {
                    if initial == InitialMaps::All {
                        comes.push(part);
                    }
                    MapState::Away
                }
                None => MapState::Queued,
            };
            allocation.set_mapping(index, Mapping::new(id, slot.flatten(), state));
            if state == MapState::Queued {
                session.queue.push(part);
            }
            queued += 1;
        }
        if queued > 0 {
            *session.maps.entry(allocation_id).or_default() += queued;
        }
        comes
    }

    /// How many parts could be sent to the session now, beside those that are queued for it.
    pub(crate) fn sendable(&self, id: SessionId) -> usize {
        let is_ready = |it: &&Session| it.state == SessionState::Live && it.fds_in_flight == 0;
        let Some(session) = self.sessions.get(id).filter(is_ready) else { return 0 };
        self.packet_room(session.tenant).saturating_sub(session.queue.len())
    }

    /// How many descriptors the budgets and a packet allow.
    fn packet_room(&self, tenant: TenantId) -> usize {
        let limits = &self.config.limits;
        let room = limits.fds_in_flight_max.saturating_sub(self.mapping.fds.total);
        let own = limits.fds_in_flight_per_tenant_max.saturating_sub(self.mapping.fds.of(tenant));
        room.min(own).min(FDS_PER_PACKET_MAX)
    }

    /// Sends the session's next packet, if it has answered the last one and the budgets allow.
    pub(crate) fn pump(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else { return };
        let (open, answered) = (session.channel_open, session.fds_in_flight == 0);
        planted!(self, TwoPacketsInFlight => answered = true);
        planted!(self, MapSentToClosedChannel => open = true);
        if !open || !answered || session.queue.is_empty() {
            return;
        }
        let (channel, tenant) = (session.channel, session.tenant);
        let count = session.queue.len().min(self.packet_room(tenant));
        planted!(self, StarvedForgotten => if count == 0 { return });
        if count == 0 {
            return self.mapping.fds.starve(tenant, id);
        }
        let deadline = self.shell.now.after(self.config.limits.map_answer_timeout);
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.fds_in_flight = session.fds_in_flight.saturating_add(count);
        session.map_deadline = Some(deadline);
        self.mapping.fds.spend(tenant, count);
        planted!(self, MapTimerLost => deadline = crate::Time::NEVER);
        self.arm_session(deadline, id);
        let mut parts = Vec::with_capacity(count);
        while parts.len() < count {
            let Self { sessions, allocations, .. } = self;
            let next = sessions
                .get_mut(id)
                .and_then(|session| session.queue.pop(|part| allocations.is_queued(id, part)));
            let Some(part) = next else { break };
            parts.extend(self.offer_part(id, tenant, part));
        }
        self.push_command(Command::Send { channel, frame: DaemonFrame::Map(parts) });
        // No part of the packet can leave before the answer. The first waiter may therefore be one that no
        // eviction helps, and be passed.
        self.follow_ups.push(Fact::VictimsChanged);
    }

    /// Makes the session a mapper of the part, whose descriptor is about to leave.
    pub(crate) fn offer_part(&mut self, id: SessionId, tenant: TenantId, part: PartRef) -> Option<MapPart> {
        let allocation = self.allocations.get_mut(part.allocation)?;
        let writable = allocation.is_writable_by(id);
        planted!(self, SealedMappedWritable => writable = writable || allocation.owner == Some(id));
        let (offset, size) = (allocation.offset_of(part.part), allocation.size_of(part.part));
        let (span, device) = (allocation.span, allocation.device);
        if let Some(session) = self.sessions.get_mut(id) {
            session.mapped = session.mapped.saturating_add(size);
        }
        let entry = allocation.part(part.part)?;
        let extent = entry.extent;
        planted!(self, ExtentOfAnotherTenant => extent = self.pool.of_another_tenant(tenant, extent));
        planted!(self, SentFromOldExtent => extent = self.moves.extent_left_by(part, &self.pool, extent));
        let mapping = entry.mapping(id).copied();
        let (from, slot) = (mapping.map(|mapping| mapping.state), mapping.and_then(|mapping| mapping.slot()));
        let sent = from.and_then(|state| state.on(MapEvent::Send));
        if let Some(from) = from {
            let legal = sent.is_some();
            self.shell.transitions.note(Transition::Mapping { from, event: MapEvent::Send, legal });
        }
        match sent {
            Some(MapStep::To(next)) => allocation.set_mapping(part.part, Mapping::new(id, slot, next)),
            other => {
                self.report_violation(invariants::TRANSITIONS, format!("{part:?} sent to {id}: {other:?}"))
            }
        }
        let is_unseen = writable && slot.is_none();
        planted!(self, WordlessWritesForgotten => is_unseen = false);
        if is_unseen {
            // No pin word will say when it writes.
            self.mark_dirty(part);
        }
        if let Some(extent) = self.pool.get_mut(extent)
            && !extent.sent_to.contains(&tenant)
        {
            extent.sent_to.push(tenant);
        }
        let drop_count = self.drop_count_of(part);
        Some(MapPart { part, extent, device, offset, size, span, writable, slot, drop_count })
    }

    /// Sets the deadline for unmapping, also for earlier revocations that the session let pass. A new request
    /// waits no longer than the first did.
    pub(crate) fn expect_answer(&mut self, id: SessionId) {
        let deadline = self.shell.now.after(self.config.limits.revoke_answer_timeout);
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.channel_open && session.revoking > 0 && session.revoke_deadline.is_none() {
            session.revoke_deadline = Some(deadline);
            planted!(self, RevokeTimerLost => deadline = crate::Time::NEVER);
            self.arm_session(deadline, id);
        }
    }

    /// The part as a `Revoke` frame names it.
    pub(crate) fn revoked_part(&self, id: SessionId, part: PartRef) -> RevokedPart {
        let entry = self.allocations.get(part.allocation).and_then(|allocation| allocation.part(part.part));
        RevokedPart { part, slot: entry.and_then(|entry| entry.mapping(id)?.slot()) }
    }

    pub(crate) fn send_revoke(&mut self, id: SessionId, mut parts: Vec<RevokedPart>, reason: RevokeReason) {
        let Some(session) = self.sessions.get(id) else { return };
        if !session.channel_open {
            return;
        }
        let (channel, tenant) = (session.channel, session.tenant);
        for of_one in parts.chunk_by(|one, next| one.part.allocation == next.part.allocation) {
            let Some(PartRef { allocation, .. }) = of_one.first().map(|revoked| revoked.part) else {
                continue;
            };
            let (tenant, parts) = (self.tenants.shared(tenant), of_one.len());
            self.push_notice(Notice::RevokeSent { session: id, tenant, allocation, parts, reason });
        }
        if parts.len() < REVOKE_GROUP_MAX
            && let Some(told) = self.unsent_revoke(channel, reason)
            && told.len().saturating_add(parts.len()) <= REVOKE_GROUP_MAX
        {
            return told.extend(parts);
        }
        while !parts.is_empty() {
            let rest = parts.split_off(parts.len().min(PARTS_PER_FRAME_MAX));
            let frame = DaemonFrame::Revoke { parts, reason };
            self.push_command(Command::Send { channel, frame });
            parts = rest;
        }
    }

    /// The parts of the last unsent revoke frame of a channel. More may be added to it as if they came next.
    fn unsent_revoke(&mut self, channel: ChannelId, reason: RevokeReason) -> Option<&mut Vec<RevokedPart>> {
        let recent = self.shell.outbox.iter_mut().rev().take(LOOKED_BACK);
        let frames = recent.filter_map(|command| match command {
            Command::Send { channel: of, frame } if *of == channel => Some(frame),
            _ => None,
        });
        match frames.into_iter().next()? {
            DaemonFrame::Revoke { parts, reason: why } if *why == reason => Some(parts),
            _ => None,
        }
    }

    /// Why a session is told to unmap a part as soon as it has mapped it.
    pub(crate) fn revoke_reason(&self, id: SessionId, allocation: AllocationId) -> RevokeReason {
        if self.sessions.get(id).is_some_and(|session| session.ending) {
            return RevokeReason::SessionEnded;
        }
        match self.allocations.get(allocation).map(|allocation| allocation.state) {
            Some(AllocationState::Unmapping) => RevokeReason::Sealing,
            Some(AllocationState::Freeing) => RevokeReason::Freed,
            _ => RevokeReason::Detached,
        }
    }

    /// Serves sessions that wait for descriptor budget, each once.
    pub(crate) fn pump_starved(&mut self) {
        let (all_max, own_max) =
            (self.config.limits.fds_in_flight_max, self.config.limits.fds_in_flight_per_tenant_max);
        let now = self.mapping.fds.turn();
        planted!(self, LastStarvedFirst => self.mapping.fds.turn_around());
        while self.mapping.fds.total < all_max
            && let Some(id) = self.mapping.fds.next_starved(now, own_max)
        {
            self.pump(id);
        }
    }
}
