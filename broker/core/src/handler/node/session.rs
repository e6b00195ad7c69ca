//! Sessions begin with a hello, are silent when their channel ends, and are gone with their process.

use vramd_types::{AllocationId, Bytes, SessionId};

use crate::{
    broker::Broker,
    command::{Caller, Command, DaemonFrame, Notice},
    error::Refusal,
    event::{ChannelId, Hello, Lifetime, ProcessStays},
    follow_up::Fact,
    invariants,
    observed::Transition,
    ops::{Op, OpKind, Requester},
    residency::AllocationState,
    shell::Timer,
    tenancy::{Outcome, RequestLog, Session, SessionEvent, SessionState, SilentReason, Words},
};

impl Broker {
    pub(crate) fn on_hello(&mut self, channel: ChannelId, hello: Hello) {
        self.end_unmapped_sessions(&hello);
        let (tenant, pid) = (hello.tenant.clone(), hello.pid);
        match self.open(channel, hello) {
            Ok(id) => self.welcome(id),
            Err(refusal) => {
                let by = Caller::Process { tenant, pid };
                self.push_notice(Notice::Refused { by, request: "Hello", refusal: refusal.clone() });
                self.push_command(Command::Send { channel, frame: DaemonFrame::Refused(refusal) });
                self.push_command(Command::CloseChannel { channel });
                self.push_command(Command::ForgetProcess { channel });
            }
        }
    }

    fn open(&mut self, channel: ChannelId, hello: Hello) -> Result<SessionId, Refusal> {
        if self.node.draining {
            return Err(Refusal::Draining);
        }
        if self.sessions.on_channel(channel).is_some() {
            return Err(Refusal::ProtocolBroken { problem: "a second hello".to_owned() });
        }
        if !vramd_types::name::is_valid(&hello.tenant) {
            return Err(Refusal::NameInvalid { field: "tenant", name: hello.tenant });
        }
        let limits = &self.config.limits;
        let tenant = self.tenants.intern(&hello.tenant);
        for (count, limit) in [
            (self.sessions.len(), limits.sessions_max),
            (self.sessions.count_of(tenant), limits.sessions_per_tenant_max),
        ] {
            planted!(self, SessionLimitIgnored => limit = usize::MAX);
            if count >= limit {
                return Err(Refusal::SessionsTooMany { tenant: hello.tenant, limit });
            }
        }
        let seen =
            |uuid: &str| hello.devices.as_ref().is_none_or(|seen| seen.iter().any(|text| text == uuid));
        let devices = self.device_indices().filter(|device| seen(self.uuid(*device))).collect();
        let raw = self.sessions.ids.next_raw();
        let id =
            raw.map(SessionId::from_raw).ok_or(Refusal::InvariantBroken { invariant: invariants::IDS })?;
        self.sessions.last = Some(id);
        let words_due = self.shell.now.after(limits.map_answer_timeout);
        let session = Session {
            channel,
            channel_open: true,
            tenant,
            pid: hello.pid,
            uid: hello.uid,
            client_name: hello.client_name,
            devices,
            state: SessionState::Live,
            silent_reason: None,
            opened: self.shell.now,
            owned: Default::default(),
            maps: Default::default(),
            queue: Default::default(),
            mapped: Bytes::ZERO,
            fds_in_flight: 0,
            map_deadline: None,
            revoking: 0,
            revoke_deadline: None,
            kill_at: None,
            end_deadline: None,
            alarm: None,
            ending: false,
            requests: RequestLog::default(),
            answered: 0,
            wants_pressure: hello.pressure,
            takes_orders: hello.managed_orders,
            words: hello.pins.then(|| Box::new(Words::new(limits.words_per_session_max.max(1), words_due))),
        };
        self.sessions.insert(id, session);
        planted!(self, WordsTimerLost => words_due = crate::Time::NEVER);
        if hello.pins {
            self.arm_session(words_due, id);
        }
        self.push_notice(Notice::SessionOpened {
            session: id,
            tenant: self.tenants.shared(tenant),
            pid: hello.pid,
        });
        Ok(id)
    }

    fn welcome(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else { return };
        let tenant = self.tenants.name(session.tenant).to_owned();
        let slots = session.words.as_ref().map_or(0, |words| words.slots.max());
        let frame = DaemonFrame::Welcome { session: id, tenant, devices: session.devices.clone(), slots };
        let channel = session.channel;
        self.push_command(Command::Send { channel, frame });
        self.send_outlooks(id);
    }

    /// Ends earlier sessions of the same process, which says in its hello that it unmapped everything. The
    /// daemon may not have seen their channels end. Room that one of them leaves is not sent to the next.
    fn end_unmapped_sessions(&mut self, hello: &Hello) {
        let same = |session: &Session| session.pid == hello.pid && session.uid == hello.uid;
        let its = |id: &SessionId| self.sessions.get(*id).is_some_and(same);
        let over: Vec<_> = hello.unmapped_sessions.iter().copied().filter(its).collect();
        for id in &over {
            self.drop_unsent(*id);
        }
        for id in over {
            if self.sessions.get(id).is_some() {
                self.remove_session(id, SessionEvent::UnmappedAll);
            }
        }
    }

    pub(crate) fn on_channel_ended(&mut self, channel: ChannelId) {
        if let Some(id) = self.sessions.on_channel(channel)
            && let Some(session) = self.sessions.get(id).filter(|session| session.channel_open)
        {
            let known = session.silent_reason.clone().filter(|reason| *reason == SilentReason::SocketKept);
            self.end_channel(id, known.unwrap_or(SilentReason::ChannelEnded));
        }
    }

    pub(crate) fn on_process_ended(&mut self, channel: ChannelId) {
        match self.sessions.on_channel(channel) {
            Some(id) => self.remove_session(id, SessionEvent::ProcessEnded),
            None => self.push_command(Command::ForgetProcess { channel }),
        }
    }

    /// The session is silent with this reason, and operators who wait for its end are told.
    pub(crate) fn on_process_stays(&mut self, channel: ChannelId, why: ProcessStays) {
        let Some(id) = self.sessions.on_channel(channel) else { return };
        let reason = match why {
            ProcessStays::NotKilled { problem } => SilentReason::NotKilled(problem),
            ProcessStays::SocketKept => SilentReason::SocketKept,
        };
        self.advance_session(id, SessionEvent::Overdue, Some(reason));
        self.note_revocations_of(id);
        self.answer_end_requests(id);
    }

    pub(crate) fn on_malformed(&mut self, channel: ChannelId, problem: String) {
        match self.sessions.on_channel(channel) {
            Some(id) => self.quarantine(id, problem),
            None => {
                let frame = DaemonFrame::Refused(Refusal::ProtocolBroken { problem });
                self.push_command(Command::Send { channel, frame });
                self.push_command(Command::CloseChannel { channel });
                self.push_command(Command::ForgetProcess { channel });
            }
        }
    }

    /// Quarantines a client that broke the protocol. Its mappings stand until its process ends.
    pub(crate) fn quarantine(&mut self, id: SessionId, problem: String) {
        let Some(session) = self.sessions.get(id) else { return };
        if !session.channel_open {
            return;
        }
        let channel = session.channel;
        let frame = DaemonFrame::Refused(Refusal::ProtocolBroken { problem: problem.clone() });
        self.push_command(Command::Send { channel, frame });
        self.close_channel(id, SilentReason::Quarantined(problem));
    }

    pub(crate) fn close_channel(&mut self, id: SessionId, reason: SilentReason) {
        if let Some(channel) = self.sessions.get(id).map(|session| session.channel) {
            self.push_command(Command::CloseChannel { channel });
            self.end_channel(id, reason);
        }
    }

    /// Ends a session's channel: nothing is sent or received from here on. A session that maps nothing is gone
    /// at once.
    fn end_channel(&mut self, id: SessionId, reason: SilentReason) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.channel_open = false;
        }
        self.end_turns_of(id);
        self.end_pins_of(id);
        self.end_sequences_of(id);
        self.end_prefetches_of(id);
        self.moves.prefetches.learnt.forget_session(id);
        self.allocations.managed.abandon(id);
        self.drop_unsent(id);
        self.note_revocations_of(id);
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.revoke_deadline = None;
        if let Some(words) = &mut session.words {
            words.map_deadline = None;
            words.unmap_deadline = None;
        }
        planted!(self, SilentTakenForGone => return self.remove_session(id, SessionEvent::UnmappedAll));
        if session.maps.is_empty() {
            return self.remove_session(id, SessionEvent::UnmappedAll);
        }
        self.advance_session(id, SessionEvent::ChannelEnded, Some(reason));
        self.resolve_releases_of(id);
        self.fail_seals(id, |_| Refusal::SessionLost { session: id });
        self.resolve_end_requests(id);
        self.pump_starved();
    }

    /// Moves a session along its table.
    pub(crate) fn advance_session(
        &mut self,
        id: SessionId,
        event: SessionEvent,
        reason: Option<SilentReason>,
    ) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let (from, next) = (session.state, session.state.on(event));
        self.shell.transitions.note(Transition::Session { from, event, legal: next.is_some() });
        let Some(next) = next else {
            let detail = format!("{id}: {event:?} in state {:?}", session.state);
            return self.report_violation(invariants::TRANSITIONS, detail);
        };
        session.state = next;
        session.silent_reason.clone_from(&reason);
        let tenant = session.tenant;
        if from == SessionState::Live && reason == Some(SilentReason::Overdue) {
            self.sessions.record_silence(id);
            // Other victims may be better now, and more of them are asked.
            self.follow_ups.push(Fact::VictimsChanged);
        }
        self.schedule_kill_if_silent(id, from);
        if let Some(reason) = reason {
            let (tenant, reason) = (self.tenants.shared(tenant), reason.to_string());
            self.push_notice(Notice::SessionSilent { session: id, tenant, reason });
        }
    }

    /// Removes a session that certainly maps nothing. Everything that lived with it ends.
    pub(crate) fn remove_session(&mut self, id: SessionId, event: SessionEvent) {
        self.advance_session(id, event, None);
        self.end_turns_of(id);
        self.end_pins_of(id);
        self.end_sequences_of(id);
        self.end_prefetches_of(id);
        self.drop_unsent(id);
        let Some(session) = self.sessions.remove(id) else { return };
        if self.sessions.trust.silences() > 0 {
            self.follow_ups.push(Fact::VictimsChanged);
        }
        planted!(self, FdBudgetLeaked => session = Session { fds_in_flight: 0, ..session });
        self.mapping.fds.give_back(session.tenant, session.fds_in_flight);
        if let Some(alarm) = session.alarm {
            self.shell.timers.remove(&(alarm, Timer::Session(id)));
        }
        for allocation in session.owned.iter().copied() {
            let Some(entry) = self.allocations.get_mut(allocation) else { continue };
            let stays = entry.state == AllocationState::Sealed && entry.lifetime == Lifetime::Persistent;
            entry.owner = None;
            planted!(self, MemoryOutlivesSession => stays = true);
            planted!(self, PersistentFreed => stays = false);
            if !stays {
                self.start_free(allocation);
            }
        }
        for allocation in session.maps.keys().copied() {
            if let Some(entry) = self.allocations.get_mut(allocation)
                && entry.owner == Some(id)
            {
                entry.owner = None;
            }
            self.forget_mappings(id, allocation);
        }
        if session.channel_open {
            let frame = DaemonFrame::Refused(Refusal::SessionLost { session: id });
            self.push_command(Command::Send { channel: session.channel, frame });
            self.push_command(Command::CloseChannel { channel: session.channel });
        }
        self.push_command(Command::ForgetProcess { channel: session.channel });
        self.push_notice(Notice::SessionGone { session: id, tenant: self.tenants.shared(session.tenant) });
        self.end_ops_of(id);
        self.expire_cached();
        self.pump_starved();
        self.survey_awaited();
    }

    /// Ends operations that only the session could complete, and those that waited for its end.
    fn end_ops_of(&mut self, id: SessionId) {
        self.fail_seals(id, |_| Refusal::SessionLost { session: id });
        self.resolve_releases_of(id);
        let ended = |kind: &OpKind| matches!(kind, OpKind::EndSession { session, .. } if *session == id);
        let mut ends = self.requests.ops.of_session(id);
        ends.retain(|op| self.requests.ops.get(*op).is_some_and(|op| ended(&op.kind)));
        for op in ends {
            self.finish(op, Ok(Outcome::SessionEnded { gone: true, still_mapped: Bytes::ZERO }));
        }
    }

    /// Fails seals that wait for the session to unmap. A hash that has begun goes on.
    pub(crate) fn fail_seals(&mut self, id: SessionId, why: impl Fn(AllocationId) -> Refusal) {
        let of_session = |requester| matches!(requester, Requester::Session { session, .. } if session == id);
        let unmapping = |op: &Op| match op.kind {
            OpKind::Seal(sealed) if of_session(op.requester) => {
                let state = self.allocations.get(sealed).map(|entry| entry.state);
                (state != Some(AllocationState::Digesting)).then_some(sealed)
            }
            _ => None,
        };
        let ops = self.requests.ops.of_session(id);
        let seals = ops.into_iter().filter_map(|op| Some((op, unmapping(self.requests.ops.get(op)?)?)));
        for (op, sealed) in seals.collect::<Vec<_>>() {
            if let Some(allocation) = self.allocations.get_mut(sealed) {
                allocation.op = None;
            }
            self.finish(op, Err(why(sealed)));
        }
    }
}
