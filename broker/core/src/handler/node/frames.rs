//! Frames of clients. A frame that no honest client sends ends in quarantine. Afterwards the session may be live
//! again, and gets its next packet.

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    command::Notice,
    error::Refusal,
    event::{ChannelId, ClientFrame, PartRef, UnmappedPart},
    follow_up::Fact,
    handler::shared::notice::Answered,
    residency::{AllocationState, MapEvent, MapStep},
    tenancy::{SessionEvent, SilentReason},
};

impl Broker {
    pub(crate) fn on_frame(&mut self, channel: ChannelId, frame: ClientFrame) {
        let Some(id) = self.sessions.on_channel(channel) else { return };
        if self.sessions.get(id).is_none_or(|session| !session.channel_open) {
            return;
        }
        let taken = match frame {
            ClientFrame::WordsMapped => self.on_words_mapped(id),
            _ if self.owes_word_table(id) => Err("the word table is not mapped yet".to_owned()),
            ClientFrame::Mapped(parts) => self.on_mapped(id, parts),
            ClientFrame::Unmapped(parts) => self.on_unmapped(id, parts),
            ClientFrame::Pin { call, parts, wait, .. } => self.on_pin(id, call, parts, wait),
            ClientFrame::PinEnded { call } => self.on_pin_ended(id, call),
            ClientFrame::Prefetch { number, spec } => self.on_prefetch(id, number, spec),
            ClientFrame::PrefetchCancelled { number } => self.on_prefetch_cancelled(id, number),
            ClientFrame::Sequence { number, spec } => self.on_sequence(id, number, spec),
            ClientFrame::SequenceStepBegun { number, step } => self.on_sequence_step(id, number, step),
            ClientFrame::WorkingSet { number, spec } => self.on_working_set(id, number, spec),
            ClientFrame::WorkingSetEnded { number } => self.on_working_set_ended(id, number),
            ClientFrame::TurnRequested { turn, set, wait } => self.on_turn_requested(id, turn, set, wait),
            ClientFrame::TurnYielded { turn } => self.on_turn_yielded(id, turn),
            ClientFrame::ManagedOrdersDone { number, failed } => self.on_orders_done(id, number, failed),
            ClientFrame::SequenceEnded { number } => self.on_sequence_ended(id, number),
        };
        planted!(self, WrongAnswerAccepted => taken = Ok(()));
        if let Err(problem) = taken {
            return self.quarantine(id, problem);
        }
        self.resume_session(id);
        planted!(self, AnswererServedFirst => self.pump(id));
        // Sessions that wait for the budget of its descriptors come before its own next packet.
        self.pump_starved();
        self.pump(id);
    }

    pub(crate) fn on_mapped(&mut self, id: SessionId, parts: Vec<PartRef>) -> Result<(), String> {
        // A mapped part may leave.
        self.follow_ups.push(Fact::VictimsChanged);
        for part in parts {
            if self.advance_mapping(id, part, MapEvent::Mapped)? == MapStep::SendRevoke {
                let reason = self.revoke_reason(id, part.allocation);
                let told = vec![self.revoked_part(id, part)];
                self.send_revoke(id, told, reason);
                self.expect_answer(id);
            }
        }
        self.map_rest_ahead(id);
        Ok(())
    }

    pub(crate) fn on_unmapped(&mut self, id: SessionId, parts: Vec<UnmappedPart>) -> Result<(), String> {
        let Some(tenant) = self.sessions.get(id).map(|session| session.tenant) else { return Ok(()) };
        let mut answered = Answered::default();
        for UnmappedPart { part, failure, written } in parts {
            let was_told = self.is_revoking(id, part);
            let event = match failure {
                Some(_) => MapEvent::Failed,
                None => MapEvent::Unmapped,
            };
            planted!(self, UnmappableLost => event = self.unmapped_if_offered(id, part, event));
            let step = self.advance_mapping(id, part, event)?;
            // A session that does not map the part has not written it, whatever it says.
            if written {
                self.mark_dirty(part);
            }
            if was_told && let Some(before) = answered.add(part.allocation) {
                self.note_answered(id, tenant, before);
            }
            if let Some(problem) = failure.clone() {
                let tenant = self.tenants.shared(tenant);
                self.push_notice(Notice::MapFailed { session: id, tenant, part, problem });
            }
            if step == MapStep::Gone || self.remove_if_final(id, part) {
                self.continue_after_unmap(id, part);
            } else if let Some(problem) = failure {
                self.refuse_unmappable_pins(id, part, &problem);
            }
        }
        if let Some(last) = answered.0 {
            self.note_answered(id, tenant, last);
        }
        Ok(())
    }

    /// Removes a mapping that is away for good: its allocation was freed, or its session has no pins to ask for
    /// it.
    pub(crate) fn remove_if_final(&mut self, id: SessionId, part: PartRef) -> bool {
        let state = self.allocations.get(part.allocation).map(|allocation| allocation.state);
        let asks = self.sessions.get(id).is_some_and(|session| session.words.is_some());
        let stays = asks && state != Some(AllocationState::Freeing);
        !stays && self.advance_mapping(id, part, MapEvent::Revoke).is_ok()
    }

    /// Refuses calls for a part that the session could not map: they would have it sent again and again. A new
    /// call has it sent anew.
    pub(crate) fn refuse_unmappable_pins(&mut self, id: SessionId, part: PartRef, problem: &str) {
        let lacking: Vec<_> = self.pins.waiting_of(part, id).collect();
        for (_, call) in lacking {
            let (allocation, problem) = (part.allocation, problem.to_owned());
            self.refuse_pin(call, Refusal::MapFailed { allocation, problem });
        }
    }

    /// A session answered: an overdue one is live again, and an ended one may have nothing left.
    pub(crate) fn resume_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else { return };
        if session.ending && session.maps.is_empty() {
            return self.remove_session(id, SessionEvent::UnmappedAll);
        }
        let owes = session.owes_unmapped();
        planted!(self, AnsweredByFirst => owes = false);
        planted!(self, AnsweredButFreed => owes = owes && session.revoking == 0);
        planted!(self, AnsweredButEvicted => owes = session.revoking > 0);
        planted!(self, AnswerIgnored => return);
        if session.silent_reason.as_ref().is_some_and(SilentReason::ends_with_answer) && !owes {
            let tenant = self.tenants.shared(session.tenant);
            self.advance_session(id, SessionEvent::Answered, None);
            self.push_notice(Notice::SessionAnswered { session: id, tenant });
            self.follow_ups.push(Fact::VictimsChanged);
            self.note_in_place_of(id);
        }
    }
}
