//! Silences: a waiter loses one unmap deadline to the first silent session, and no further one to each other.
//!
//! Checked whenever the daemon chooses a victim that a session in doubt has to unmap. Then no session in doubt may be
//! left unasked, and no victim without doubt. Where guarantees or other tenants are concerned the oracle does not
//! know which victims help, so it compares only parts of one tenant and size, and tenants without a guarantee.

use std::collections::BTreeMap;

use broker_core::{Broker, Cause, PartRef, Tier, invariants::IN_SERIES};
use vramd_types::SessionId;

use crate::oracle::{
    Oracle,
    facts::{MapPhase, SessionFacts, Tenant},
};

/// The silences that told something new about other sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Silences {
    count: u64,
    /// By pid the number of the last one.
    processes: BTreeMap<u32, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doubt {
    Nothing,
    Unproven,
    Distrusted,
}

impl Oracle {
    /// Learns that a session is silent. The end of a channel costs no deadline.
    pub(crate) fn record_silence(&mut self, id: SessionId, reason: &str) {
        let Some(session) = self.facts.sessions.get(&id).filter(|session| !session.silent) else { return };
        if reason == "it does not answer" && self.doubt_of(session) != Doubt::Distrusted {
            let pid = session.pid;
            self.facts.silences.count += 1;
            self.facts.silences.processes.insert(pid, self.facts.silences.count);
        }
    }

    /// Learns which session has answered in this event, and which processes are gone.
    pub(crate) fn learn_answers(&mut self) {
        if let Some(session) = self.step.heard_from.and_then(|id| self.facts.sessions.get_mut(&id))
            && self.step.has_unmapped
        {
            session.answered = self.facts.silences.count;
        }
        self.forget_silences();
    }

    /// Forgets the silences of processes that have no session: before a new session of such a process opens.
    pub(crate) fn forget_silences(&mut self) {
        let sessions = &self.facts.sessions;
        let lives = |pid: u32| sessions.values().any(|it| it.pid == pid && !it.gone);
        self.facts.silences.processes.retain(|pid, _| lives(*pid));
    }

    fn doubt_of(&self, session: &SessionFacts) -> Doubt {
        let Silences { count, processes } = &self.facts.silences;
        match processes.get(&session.pid) {
            _ if processes.is_empty() || session.answered == *count => Doubt::Nothing,
            Some(silence) if session.answered < *silence => Doubt::Distrusted,
            _ => Doubt::Unproven,
        }
    }

    /// Whether any session is in doubt.
    pub(crate) fn is_any_in_doubt(&self) -> bool {
        self.facts.sessions.values().any(|session| self.doubt_of(session) != Doubt::Nothing)
    }

    /// The greatest doubt about the sessions that map the part.
    pub(crate) fn doubt_about(&self, part: PartRef) -> Doubt {
        let mappers = self.facts.sessions.values().filter(|session| session.mappings.contains_key(&part));
        mappers.map(|session| self.doubt_of(session)).max().unwrap_or(Doubt::Nothing)
    }

    /// Learns of parts that begin to leave while sessions unmap them already, as they were asked to ahead.
    pub(crate) fn learn_joined_moves(&mut self, broker: &Broker) {
        if self.facts.silences.processes.is_empty() {
            return;
        }
        let new = broker.moves().into_iter().filter(|it| it.since == self.facts.now && it.to != Tier::Device);
        let joined = new
            .filter(|it| it.cause != Cause::WriteBack)
            .map(|it| it.part)
            .filter(|part| self.is_being_evicted(*part));
        let joined: Vec<_> = joined.collect();
        self.step.began_to_move |= !joined.is_empty();
        self.facts.departing.extend(joined);
    }

    pub(crate) fn check_silences(&mut self, broker: &Broker) {
        if self.facts.silences.processes.is_empty() || !self.step.began_to_move {
            return;
        }
        let moves = broker.moves();
        let new = moves.iter().filter(|it| it.since == self.facts.now && it.cause == Cause::Demand);
        let leaving = new.filter(|it| it.to != Tier::Device).map(|it| it.part);
        let doubtful = leaving.filter(|part| self.doubt_about(*part) != Doubt::Nothing);
        for victim in doubtful.collect::<Vec<_>>() {
            let Some((tenant, device, size)) = self.resident(victim) else { continue };
            let better = self.evictable_on(device, broker).into_iter().find(|(part, of)| {
                let is_like = *of == tenant && self.size_of(*part) == Some(size);
                is_like && self.doubt_about(*part) < self.doubt_about(victim)
            });
            self.expect(IN_SERIES, better.is_none(), || {
                format!("{victim:?} is to leave, which a session in doubt maps, and not {better:?}")
            });
            let unasked = self.unasked_on(device, broker);
            self.expect(IN_SERIES, unasked.is_none(), || {
                format!("{victim:?} is awaited from a session in doubt, and {unasked:?} is not asked")
            });
        }
    }

    /// Parts of a device that sessions map and that certainly could leave, with their tenants.
    fn evictable_on(&self, device: usize, broker: &Broker) -> Vec<(PartRef, Tenant)> {
        let used = self.used_parts();
        let rests = |part: &PartRef| used.mapped.contains(*part) && self.can_surely_leave(*part, &used);
        let there = self.facts.backings.keys().copied().filter(rests);
        let there = there.filter_map(|part| Some((part, self.resident(part)?)));
        let there = there.filter(|(part, (_, on, _))| *on == device && Self::is_to_be_mapped(*part, broker));
        there.map(|(part, (tenant, ..))| (part, tenant)).collect()
    }

    /// A session in doubt that could be asked for a part of the device, and owes none.
    fn unasked_on(&self, device: usize, broker: &Broker) -> Option<(SessionId, PartRef)> {
        let free = self.evictable_on(device, broker);
        let free = free.into_iter().filter(|(_, tenant)| self.quota_now(*tenant, device).0 == 0);
        let is_asked = |session: &SessionFacts| {
            let told = |(phase, _): &(MapPhase, _)| matches!(phase, MapPhase::Evicting | MapPhase::Revoking);
            // Where too many extents exist, a victim may stay after all. Its session is asked by a later plan, once
            // a further extent can exist.
            let is_chosen = |part: &PartRef| {
                self.facts.words_pending.contains(part) || self.step.refused_victims.contains(part)
            };
            session.mappings.values().any(told) || session.mappings.keys().any(is_chosen)
        };
        let mut pairs = free.flat_map(|(part, _)| {
            let mappers = self.facts.sessions.iter().filter(move |(_, it)| it.mappings.contains_key(&part));
            mappers.map(move |(id, session)| (*id, part, session))
        });
        let found = pairs.find(|(.., it)| self.doubt_of(it) != Doubt::Nothing && !is_asked(it));
        found.map(|(id, part, _)| (id, part))
    }
}
