//! Learns from events and commands; the files by invariant judge them.

use broker_core::{
    CallId, ChannelId, ClientFrame, ClientRequest, Completion, CreateError, Event, OperatorRequest, PartUse,
    RequestKey, Target, Tier, WordsOutcome,
};
use vramd_types::{AllocationId, PartIndex, SessionId};

use super::{
    Oracle, Undo,
    facts::{Asked, Call, ExtentPhase, MapPhase, RevocationFacts, SessionFacts},
};

impl Oracle {
    pub(crate) fn observe_event(&mut self, event: &Event) {
        match event {
            Event::Hello { channel, hello } => {
                for old in &hello.unmapped_sessions {
                    let same = |session: &SessionFacts| (session.pid, session.uid) == (hello.pid, hello.uid);
                    if self.facts.sessions.get(old).is_some_and(|session| same(session) && !session.gone) {
                        self.record_session_end(*old);
                    }
                }
                self.facts.open_channels.insert(*channel);
                self.facts.hellos.insert(*channel, hello.clone());
            }
            Event::Frame { channel, frame } => self.observe_frame(*channel, frame),
            Event::Malformed { channel, .. } => {
                let session = self.facts.on_channel.get(channel).copied();
                let open = self.facts.open_channels.contains(channel);
                self.step.offender = session.filter(|_| open);
            }
            Event::ChannelEnded { channel } => _ = self.facts.open_channels.remove(channel),
            Event::ProcessEnded { channel } => {
                self.facts.open_channels.remove(channel);
                if let Some(session) = self.facts.on_channel.get(channel).copied() {
                    self.record_session_end(session);
                }
            }
            Event::Client { call, session, peer, key, request } => {
                let asked = Asked::Client { session: *session, peer: *peer, request: request.clone() };
                self.record_call(*call, self.new_call(asked, *key));
                if let ClientRequest::Evict(id, _) = request
                    && !self.is_managed(*id)
                    && self.step.repeat.is_new()
                    && self.step.expected.is_none()
                {
                    self.record_move_order(*call, Some(*id), Vec::new());
                }
            }
            Event::Operator { call, uid, key, request } => {
                let asked = Asked::Operator { uid: *uid, request: request.clone() };
                self.record_call(*call, self.new_call(asked, *key));
                self.observe_operator(*call, request);
            }
            Event::Completion(completion) => self.observe_completion(completion),
            Event::QuotasStored { result } => {
                self.step.failure_reported = result.is_err();
                self.end_store(result.is_ok());
            }
            Event::PartsUsed(touched) => touched.iter().for_each(|touched| self.observe_use(touched)),
            Event::ProcessStays { .. } | Event::Tick => {}
        }
    }

    fn new_call(&self, asked: Asked, key: Option<RequestKey>) -> Call {
        let named = self.named_by(&asked);
        Call { asked, key, at: self.facts.now, arrived: self.facts.clock, joined: false, named }
    }

    fn observe_use(&mut self, &PartUse { session, part, pinned, .. }: &PartUse) {
        let maps = self.facts.sessions.get(&session).is_some_and(|it| it.mappings.contains_key(&part));
        if maps {
            self.facts.used.insert(part, self.facts.now);
            self.record_advised_use(part);
        }
        self.record_prefetched_use(part, maps);
        match pinned {
            true if maps => self.facts.insert_pin(session, part),
            true => {}
            false => self.facts.remove_pin(session, part),
        }
    }

    fn record_session_end(&mut self, session: SessionId) {
        if self.facts.sessions.get(&session).is_some_and(|session| !session.gone) {
            self.step.gone.push(session);
            self.facts.session_gone(session);
            self.forget_silences();
        }
    }

    fn observe_operator(&mut self, call: CallId, request: &OperatorRequest) {
        if let OperatorRequest::RevokeMappings { target, parts, wait } = request
            && self.step.repeat.is_new()
        {
            self.record_revocation(call, self.asked_for(target), parts, *wait);
        }
        if let OperatorRequest::MoveParts { target, parts, .. } = request
            && self.step.repeat.is_new()
        {
            self.record_move_order(call, self.asked_for(target), parts.clone());
        }
        if let OperatorRequest::EndSession { session: id, kill } = request
            && self.step.repeat.is_new()
            && let Some(session) = self.facts.sessions.get_mut(id)
        {
            let (ending, kill_asked) = (session.ending, session.kill_asked);
            self.step.undo = Some(Undo::Ending { session: *id, ending, kill_asked });
            session.ending = true;
            session.kill_asked |= kill;
        }
        if let OperatorRequest::Drain { draining } = request
            && self.step.repeat.is_new()
        {
            self.step.undo = Some(Undo::Draining(self.facts.draining));
            self.facts.draining = *draining;
        }
    }

    /// Records that parts of an allocation, or all, are being moved until the call is answered.
    fn record_move_order(&mut self, call: CallId, allocation: Option<AllocationId>, parts: Vec<PartIndex>) {
        let order = RevocationFacts { allocation, parts, fence_until: None };
        self.facts.revoking.insert(call, order);
    }

    /// The allocation that the current call names.
    fn asked_for(&self, target: &Target) -> Option<AllocationId> {
        match target {
            Target::Id(id) => Some(*id),
            Target::Name(_) => self.step.call.as_ref().and_then(|(_, call)| call.named),
        }
    }

    /// Undoes what an operator's request changed: the queue was full.
    pub(crate) fn undo_operator_request(&mut self) {
        match self.step.undo.take() {
            Some(Undo::Ending { session, ending, kill_asked }) => {
                if let Some(session) = self.facts.sessions.get_mut(&session) {
                    (session.ending, session.kill_asked) = (ending, kill_asked);
                }
            }
            Some(Undo::Draining(draining)) => self.facts.draining = draining,
            None => {}
        }
    }

    fn observe_frame(&mut self, channel: ChannelId, frame: &ClientFrame) {
        let Some(id) = self.facts.on_channel.get(&channel).copied() else { return };
        if self.facts.sessions.get(&id).is_none_or(|session| !self.facts.is_heard(session)) {
            return;
        }
        self.step.heard_from = Some(id);
        self.step.heard_late = self.facts.sessions.get(&id).is_some_and(|session| self.is_late(session));
        let owed_words = match self.facts.sessions.get_mut(&id) {
            Some(session) if matches!(frame, ClientFrame::WordsMapped) => session.owes_words.take().is_none(),
            Some(session) => session.owes_words.is_some(),
            None => false,
        };
        let fits = match frame {
            _ if owed_words => false,
            ClientFrame::WordsMapped => true,
            ClientFrame::Mapped(parts) => parts.iter().all(|part| {
                let Some(session) = self.facts.sessions.get_mut(&id) else { return false };
                match session.mappings.get_mut(part) {
                    Some((phase @ MapPhase::Offered, _)) => {
                        *phase = MapPhase::Mapped;
                        session.in_flight -= 1;
                        if session.in_flight == 0 {
                            session.owes_since = None;
                        }
                        true
                    }
                    _ => false,
                }
            }),
            ClientFrame::Unmapped(parts) => parts.iter().all(|unmapped| {
                let session = self.facts.sessions.get(&id);
                let phase =
                    session.and_then(|session| session.mappings.get(&unmapped.part)).map(|(phase, _)| *phase);
                let failed = unmapped.failure.is_some();
                if failed && phase != Some(MapPhase::Offered) {
                    return false;
                }
                self.facts.drop_mapping(id, unmapped.part);
                self.step.has_unmapped |= matches!(phase, Some(MapPhase::Evicting | MapPhase::Revoking));
                if phase == Some(MapPhase::Evicting) {
                    self.step.to_collect.insert((id, unmapped.part));
                }
                if failed {
                    self.record_map_failure(id, unmapped.part);
                }
                phase.is_some()
            }),
            ClientFrame::Pin { call, parts, wait, .. } => {
                let fits = self.record_pin(id, *call, parts, *wait);
                parts.iter().for_each(|part| self.record_prefetched_use(*part, false));
                self.record_speculated_call(id, parts);
                fits
            }
            ClientFrame::PinEnded { call } => self.record_pin_end(id, *call),
            ClientFrame::Prefetch { number, spec } => self.record_prefetch(id, *number, spec),
            ClientFrame::PrefetchCancelled { number } => self.record_prefetch_cancel(id, *number),
            ClientFrame::Sequence { number, spec } => self.record_sequence(id, *number, spec),
            ClientFrame::SequenceStepBegun { number, step } => self.record_sequence_step(id, *number, *step),
            ClientFrame::SequenceEnded { number } => self.record_sequence_end(id, *number),
            ClientFrame::WorkingSet { number, spec } => self.record_working_set(id, *number, spec),
            ClientFrame::WorkingSetEnded { number } => self.record_working_set_end(id, *number),
            ClientFrame::TurnRequested { turn, set, wait } => {
                self.record_turn_request(id, *turn, *set, *wait)
            }
            ClientFrame::ManagedOrdersDone { number, failed } => self.record_orders_done(id, *number, failed),
            ClientFrame::TurnYielded { turn } => self.record_turn_yield(id, *turn),
        };
        self.step.offender = (!fits).then_some(id);
    }

    fn observe_completion(&mut self, completion: &Completion) {
        match completion {
            Completion::Created { extent, result } => {
                self.step.create_ended = true;
                self.step.failure_reported = result.is_err();
                let Some(facts) = self.facts.extents.get_mut(extent) else { return };
                let (owner, place, size) = (facts.owner, facts.place, facts.cost());
                facts.phase = ExtentPhase::Live;
                let balance = self.facts.balance(owner, place);
                balance.reserved -= size;
                match result {
                    Ok(()) => balance.settled += size,
                    Err(error) => {
                        if *error == CreateError::OutOfMemory {
                            self.record_out_of_memory(place, size);
                        }
                        self.record_backing_failure(*extent);
                        self.facts.extents.remove(extent);
                        let moves = self.facts.moves.remove(extent);
                        self.facts.failed_parts.extend(moves.map(|moves| moves.part));
                    }
                }
                self.step.changed_accounts.push((owner, place));
            }
            Completion::Released { extent, returned } => self.observe_release(*extent, *returned),
            Completion::Returned { extent } => {
                let Some(facts) = self.facts.extents.remove(extent) else { return };
                for (tenant, bytes) in facts.debts {
                    self.facts.balance(tenant, facts.place).unreturned -= bytes;
                    self.step.changed_accounts.push((tenant, facts.place));
                }
            }
            Completion::Digested { allocation, result } => {
                self.step.failure_reported = result.is_err();
                self.record_digest(*allocation);
            }
            Completion::Copied { to, result } => {
                self.step.failure_reported = result.is_err();
                self.record_copy_end(*to, result.is_ok());
            }
            Completion::Damaged { to, .. } => {
                self.step.failure_reported = true;
                // A cancelled copy is reported to no session: a session that wants the part has it read
                // again.
                let moves = self.facts.moves.get(to).filter(|moves| !moves.cancelled);
                self.step.damaged = moves.map(|moves| moves.part);
                self.record_copy_end(*to, false);
            }
            // No session here writes without a pin, so this report decides nothing: the copy is what counts.
            Completion::CleanBackingDiffers { .. } => {}
            Completion::WordsRevoked { part, outcome } => {
                if let WordsOutcome::Pinned { by } = outcome {
                    let sessions = &self.facts.sessions;
                    let maps =
                        |id: &&SessionId| sessions.get(id).is_some_and(|it| it.mappings.contains_key(part));
                    let there: Vec<_> = by.iter().filter(maps).copied().collect();
                    there.into_iter().for_each(|session| self.facts.insert_pin(session, *part));
                }
                self.facts.words_pending.remove(part);
                self.step.words_revoked = Some(*part).filter(|_| *outcome == WordsOutcome::Revoked);
            }
            Completion::WrittenCleared { part, cleared } => {
                self.facts.words_checked.remove(part);
                self.step.cleared_word = Some(*part).filter(|_| *cleared);
            }
            Completion::Surveyed { device, unbrokered, contexts, host_missing } => {
                self.step.surveyed = true;
                if let Some(host) = self.facts.place(usize::from(device.0), Tier::Host) {
                    self.facts.places[host].unbrokered = host_missing.get();
                }
                // While anything leaves, waiters that the driver failed wait for that.
                let is_leaving = self.is_something_leaving(usize::from(device.0));
                let managed = self.managed_in(usize::from(device.0));
                let place = &mut self.facts.places[usize::from(device.0)];
                place.unbrokered = unbrokered.get().saturating_sub(managed);
                place.contexts = u64::from(*contexts);
                place.surveying = false;
                if !std::mem::take(&mut place.survey_outdated) {
                    place.available_max = None;
                }
                place.surveys_left = place.surveys_left.saturating_sub(u8::from(!is_leaving));
                self.facts.failed_parts.clear();
                self.facts.extents_ran_out = false;
                self.end_rests();
            }
        }
    }

    /// Splits memory that was not returned into equal debts of the tenants that were sent it. The first one
    /// takes the remainder.
    fn observe_release(&mut self, extent: vramd_types::ExtentId, returned: bool) {
        let Some(facts) = self.facts.extents.get_mut(&extent) else { return };
        let (owner, place, size) = (facts.owner, facts.place, facts.cost());
        let given_up = facts.phase == ExtentPhase::GivenUp;
        let mut debts = Vec::new();
        if !returned {
            facts.phase = ExtentPhase::Unreturned;
            let debtors = if facts.sent_to.is_empty() { vec![owner] } else { facts.sent_to.clone() };
            let count = u64::try_from(debtors.len()).unwrap_or(1);
            let share = size / count;
            debts = debtors.into_iter().map(|debtor| (debtor, share)).collect();
            debts[0].1 += size - share * count;
            facts.debts.clone_from(&debts);
        }
        if given_up {
            *self.facts.cached_leaving.entry((owner, place)).or_default() -= size;
        }
        self.facts.balance(owner, place).settled -= size;
        self.step.changed_accounts.push((owner, place));
        for (tenant, bytes) in debts {
            self.facts.balance(tenant, place).unreturned += bytes;
            self.step.changed_accounts.push((tenant, place));
        }
        if returned {
            self.facts.extents.remove(&extent);
        }
    }

    pub(crate) fn record_forgotten_process(&mut self, channel: ChannelId) {
        self.facts.open_channels.remove(&channel);
        let Some(id) = self.facts.on_channel.get(&channel).copied() else { return };
        // Only a session without mappings may be taken for gone. The others stay charged until the daemon
        // learns more.
        if let Some(session) = self.facts.sessions.get_mut(&id)
            && session.mappings.is_empty()
            && !session.gone
        {
            session.gone = true;
            self.step.gone.push(id);
            self.forget_silences();
        }
    }

    pub(crate) fn request_of(call: &Call) -> Option<&ClientRequest> {
        match &call.asked {
            Asked::Client { request, .. } => Some(request),
            Asked::Operator { .. } => None,
        }
    }
}
