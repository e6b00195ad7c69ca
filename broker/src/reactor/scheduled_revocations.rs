//! Revokes mappings on a schedule, for tests of clients and of the daemon, as if an operator asked at a chosen step.
//!
//! Each revocation is an operator's request, so it can do no more harm than other requests. The reactor exports it
//! after the messages that are in the queue by then, and before the client's next answer unless that came first.

use std::collections::BTreeMap;

use broker_core::{ClientFrame, Command, DaemonFrame, Event, OperatorRequest, PartRef, Target};
use vramd_types::{AllocationId, PartIndex};

use super::inbox::Inbox;
use crate::config::{SimRevocation, SimStep as Step};

#[derive(Debug)]
pub(super) struct ScheduledRevocations {
    inbox: Inbox,
    schedule: Vec<SimRevocation>,
    seen: BTreeMap<Step, u64>,
}

impl ScheduledRevocations {
    pub(super) fn new(inbox: Inbox, schedule: Vec<SimRevocation>) -> Self {
        Self { inbox, schedule, seen: BTreeMap::new() }
    }

    pub(super) fn note_command(&mut self, command: &Command) {
        match command {
            Command::Send { frame: DaemonFrame::Map(parts), .. } => {
                self.count_step(Step::MapSent, parts.iter().map(|part| part.part));
            }
            Command::Send { frame: DaemonFrame::Revoke { parts, .. }, .. } => {
                self.count_step(Step::RevokeSent, parts.iter().map(|part| part.part));
            }
            Command::Digest { allocation, .. } => {
                let first = PartRef { allocation: *allocation, part: PartIndex(0) };
                self.count_step(Step::Digest, [first].into_iter());
            }
            _ => {}
        }
    }

    pub(super) fn note_event(&mut self, event: &Event) {
        let Event::Frame { frame, .. } = event else { return };
        match frame {
            ClientFrame::Mapped(parts) => self.count_step(Step::Mapped, parts.iter().copied()),
            ClientFrame::Unmapped(parts) => {
                self.count_step(Step::Unmapped, parts.iter().map(|part| part.part))
            }
            ClientFrame::Pin { parts, .. } => self.count_step(Step::Pin, parts.iter().copied()),
            ClientFrame::WordsMapped
            | ClientFrame::PinEnded { .. }
            | ClientFrame::Prefetch { .. }
            | ClientFrame::PrefetchCancelled { .. }
            | ClientFrame::Sequence { .. }
            | ClientFrame::SequenceStepBegun { .. }
            | ClientFrame::SequenceEnded { .. }
            | ClientFrame::WorkingSet { .. }
            | ClientFrame::WorkingSetEnded { .. }
            | ClientFrame::TurnRequested { .. }
            | ClientFrame::TurnYielded { .. }
            | ClientFrame::ManagedOrdersDone { .. } => {}
        }
    }

    fn count_step(&mut self, step: Step, parts: impl Iterator<Item = PartRef>) {
        let count = self.seen.entry(step).or_default();
        *count += 1;
        let nth = *count;
        let due: Vec<_> = self.schedule.iter().filter(|it| it.at == step && is_due(it, nth)).collect();
        if due.is_empty() {
            return;
        }
        let mut by_allocation: BTreeMap<AllocationId, Vec<PartIndex>> = BTreeMap::new();
        for PartRef { allocation, part } in parts {
            by_allocation.entry(allocation).or_default().push(part);
        }
        for SimRevocation { wait, .. } in due {
            for (allocation, parts) in &by_allocation {
                tracing::debug!(?step, nth, %allocation, wait, "scheduled revocation begins");
                self.revoke(*allocation, parts.clone(), *wait);
            }
        }
    }

    fn revoke(&self, allocation: AllocationId, parts: Vec<PartIndex>, wait: bool) {
        let request = OperatorRequest::RevokeMappings { target: Target::Id(allocation), parts, wait };
        let asked = self.inbox.operator_request(|call| Event::Operator { call, uid: 0, key: None, request });
        match asked {
            Ok(answer) => {
                _ = tokio::spawn(async move {
                    let outcome = answer.await;
                    tracing::debug!(%allocation, wait, ?outcome, "scheduled revocation answered");
                })
            }
            Err(refusal) => {
                tracing::debug!(%allocation, wait, %refusal, "scheduled revocation refused")
            }
        }
    }
}

fn is_due(it: &SimRevocation, nth: u64) -> bool {
    match (nth.checked_sub(it.nth.get()), it.every) {
        (Some(0), _) => true,
        (Some(since), Some(every)) => since % every == 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use broker_core::ChannelId;

    use super::*;
    use crate::reactor::{InboxLimits, Message, inbox};

    fn mapped(parts: &[(u64, u32)]) -> Event {
        let part = |&(id, part)| PartRef { allocation: AllocationId::from_shown(id), part: PartIndex(part) };
        Event::Frame { channel: ChannelId(1), frame: ClientFrame::Mapped(parts.iter().map(part).collect()) }
    }

    #[tokio::test]
    async fn parts_are_revoked_at_the_nth_step_and_periodically_after_it() {
        let (inbox, mut queue) = inbox(InboxLimits::default());
        let at = |at, nth, every, wait| {
            let nth = NonZeroU64::new(nth).unwrap();
            SimRevocation { at, nth, every: NonZeroU64::new(every), wait }
        };
        let schedule =
            vec![at(Step::Mapped, 2, 3, true), at(Step::Mapped, 3, 0, false), at(Step::Pin, 1, 1, true)];
        let mut revocations = ScheduledRevocations::new(inbox, schedule);
        let mut revoked = Vec::new();
        for nth in 1..=8 {
            revocations.note_event(&mapped(&[(7, 0), (9, 1), (7, 2)]));
            while let Some(Message::Request { event: Event::Operator { request, .. }, .. }) = queue.ready() {
                let OperatorRequest::RevokeMappings { target: Target::Id(id), parts, wait } = request else {
                    panic!("{request:?}")
                };
                let parts: Vec<_> = parts.iter().map(|part| part.0).collect();
                revoked.push((nth, id.shown(), parts, wait));
            }
        }
        let both = |nth, wait| [(nth, 7, vec![0, 2], wait), (nth, 9, vec![1], wait)];
        assert_eq!(revoked, [both(2, true), both(3, false), both(5, true), both(8, true)].concat());
    }
}
