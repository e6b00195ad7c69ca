//! A session is silent once it has not unmapped in time what it was told to, and live again once it has unmapped
//! all of that. A part under a fence does not count: the session may pin it for as long as it likes.

use std::{collections::BTreeSet, time::Duration};

use broker_core::{PartRef, SessionState, SessionView, Time, invariants::ANSWERED};
use vramd_types::{AllocationId, SessionId};

use crate::oracle::{
    Oracle,
    facts::{MapPhase, SessionFacts},
};

/// Parts that a session was told to unmap, and has not.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwedUnmaps {
    /// Parts that it loses, pinned or not.
    for_good: BTreeSet<PartRef>,
    /// Parts that it did not pin when it was told, and may pin again.
    evicted: BTreeSet<PartRef>,
    /// Since when there are any of the former, and since when it has unmapped none of the latter.
    for_good_since: Option<Time>,
    evicted_since: Option<Time>,
}

impl OwedUnmaps {
    pub(crate) fn begin_for_good(&mut self, part: PartRef, was: MapPhase, now: Time) {
        self.end(part, was, now);
        self.for_good.insert(part);
        self.for_good_since.get_or_insert(now);
    }

    pub(crate) fn begin_evicted(&mut self, part: PartRef, now: Time) {
        self.evicted.insert(part);
        self.evicted_since.get_or_insert(now);
    }

    /// The part is unmapped, or is to be unmapped for another reason.
    pub(crate) fn end(&mut self, part: PartRef, phase: MapPhase, now: Time) {
        self.for_good.remove(&part);
        self.for_good_since = self.for_good_since.filter(|_| !self.for_good.is_empty());
        self.evicted.remove(&part);
        if phase == MapPhase::Evicting {
            self.evicted_since = (!self.evicted.is_empty()).then_some(now);
        }
    }

    pub(crate) fn is_evicted(&self, part: PartRef) -> bool {
        self.evicted.contains(&part)
    }

    fn any(&self) -> Option<PartRef> {
        self.for_good.first().or_else(|| self.evicted.first()).copied()
    }

    /// When it must have unmapped one more of each kind.
    fn due(&self, for_good: Duration, evicted: Duration) -> impl Iterator<Item = Time> + use<> {
        let for_good = self.for_good_since.map(|since| since.after(for_good));
        for_good.into_iter().chain(self.evicted_since.map(|since| since.after(evicted)))
    }
}

impl Oracle {
    /// Checks that a session that is reported as silent has lost its channel, or is late.
    pub(crate) fn check_silent(&mut self, id: SessionId) {
        let Some(session) = self.facts.sessions.get(&id) else { return };
        // Deadlines come before a frame, or an end, that arrives at the same moment.
        let late = self.is_late(session) || (self.step.heard_late && self.step.heard_from == Some(id));
        let (open, gone) = (self.facts.open_channels.contains(&session.channel), session.gone);
        self.expect(ANSWERED, late || !open || gone, || {
            format!("{id} is reported as silent, and has time left to unmap what it was told to")
        });
    }

    /// Checks that a session that is reported as live again was silent, and owes nothing.
    pub(crate) fn check_answered(&mut self, id: SessionId) {
        let Some(session) = self.facts.sessions.get(&id) else { return };
        let (silent, owed) = (session.silent, session.unmaps.any());
        self.expect(ANSWERED, silent && owed.is_none(), || {
            format!("{id} is reported as live again; silent: {silent}, still to unmap: {owed:?}")
        });
    }

    /// Checks that no session that is late counts as live, nor one that has just unmapped everything as
    /// silent.
    pub(crate) fn check_unmap_deadlines(&mut self) {
        let now = self.facts.now;
        let is_over = |session: &SessionFacts| self.unmap_deadlines(session).any(|due| due < now);
        let mut sessions = self.facts.sessions.iter().filter(|(_, it)| self.is_open(it));
        let late = sessions.find(|(_, it)| !it.silent && is_over(it)).map(|(id, _)| *id);
        self.expect(ANSWERED, late.is_none(), || {
            format!("{late:?} has not unmapped in time what it was told to, and counts as live")
        });
        let Some(heard) = self.step.heard_from else { return };
        let session = self.facts.sessions.get(&heard).filter(|it| it.silent && self.is_open(it));
        let waits = session.is_some_and(|it| it.unmaps.any().is_none());
        self.expect(ANSWERED, !waits, || {
            format!("{heard} has unmapped all that it was told to, and still counts as silent")
        });
    }

    /// Checks that a session is shown as silent if it was reported as that, and else as live.
    pub(crate) fn check_shown_state(&mut self, row: &SessionView) {
        let Some(session) = self.facts.sessions.get(&row.id) else { return };
        let expected = if session.silent { SessionState::Silent } else { SessionState::Live };
        self.expect(ANSWERED, row.state == expected, || {
            format!("{} is shown as {}, not as {expected}", row.id, row.state)
        });
    }

    /// Checks that a session that releases memory, and is told so, has unmapped it, or does not answer.
    pub(crate) fn expect_released_unmapped(&mut self, by: SessionId, id: AllocationId) {
        let Some(session) = self.facts.sessions.get(&by) else { return };
        let maps = session.mappings.keys().any(|part| part.allocation == id);
        let answers = !session.silent && self.is_open(session);
        self.expect(ANSWERED, !(maps && answers), || {
            format!("{by} is told that it has released {id}, which it still maps")
        });
    }

    /// Whether the session must have unmapped by now what it was told to.
    pub(crate) fn is_late(&self, session: &SessionFacts) -> bool {
        self.unmap_deadlines(session).any(|due| due <= self.facts.now)
    }

    fn is_open(&self, session: &SessionFacts) -> bool {
        !session.gone && self.facts.open_channels.contains(&session.channel)
    }

    fn unmap_deadlines(&self, session: &SessionFacts) -> impl Iterator<Item = Time> + use<> {
        let (for_good, evicted) = (self.limits.revoke_answer_timeout, self.limits.unmap_answer_timeout);
        session.unmaps.due(for_good, evicted)
    }
}
