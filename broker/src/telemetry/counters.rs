//! Counts refusals and losses where they happen: one atomic addition each.

use std::sync::atomic::{AtomicU64, Ordering};

use broker_core::{Cause, EvictionReason, PrefetchEnd, SpeculationEnd};
use vramd_types::{FallBack, Reason};

use crate::config::Signal;

/// The outcomes of orders for managed memory.
const MANAGED_ORDER_OUTCOMES: [&str; 2] = ["executed", "failed"];

/// The object that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// A whole call.
    Call,
    /// One item of a batch; the others may have been granted.
    Item,
    /// A session, before it began or by quarantine.
    Channel,
    /// A pin set.
    Pin,
}

impl Scope {
    pub(super) const ALL: [Self; 4] = [Self::Call, Self::Item, Self::Channel, Self::Pin];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Item => "item",
            Self::Channel => "channel",
            Self::Pin => "pin",
        }
    }
}

/// The ends of prefetch requests in the order of their type, with the values of [`super::metrics::PREFETCH_OUTCOME`].
const PREFETCH_ENDS: [(PrefetchEnd, &str); 6] = [
    (PrefetchEnd::Ready, "ready"),
    (PrefetchEnd::Late, "late"),
    (PrefetchEnd::Dropped, "dropped"),
    (PrefetchEnd::Cancelled, "cancelled"),
    (PrefetchEnd::Failed, "failed"),
    (PrefetchEnd::Wasted, "wasted"),
];

/// Why the daemon chooses parts that leave. An operator names them.
const EVICTION_CAUSES: [Cause; 4] = [Cause::Demand, Cause::Prefetch, Cause::Pressure, Cause::Rebalance];

#[derive(Debug)]
pub(super) struct Counters {
    /// For each scope, in the order of the registry of reasons.
    refusals: [Box<[AtomicU64]>; Scope::ALL.len()],
    dropped: [AtomicU64; Signal::ALL.len()],
    failures: [AtomicU64; Signal::ALL.len()],
    pins: AtomicU64,
    pin_stalls: AtomicU64,
    create_retries: AtomicU64,
    turns_overdue: AtomicU64,
    prefetches: [AtomicU64; PREFETCH_ENDS.len()],
    /// Bytes that were used, and wasted.
    speculated: [AtomicU64; 2],
    /// Parts that moved, and that are read in place.
    placed: [AtomicU64; 2],
    /// For each cause, in the order of the reasons.
    evictions: [[AtomicU64; EvictionReason::ALL.len()]; EVICTION_CAUSES.len()],
    lost_lines: AtomicU64,
    fall_backs: [AtomicU64; FallBack::ALL.len()],
    managed_orders: [AtomicU64; MANAGED_ORDER_OUTCOMES.len()],
}

impl Default for Counters {
    fn default() -> Self {
        let zeros = || Reason::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        Self {
            refusals: [zeros(), zeros(), zeros(), zeros()],
            dropped: Default::default(),
            failures: Default::default(),
            pins: AtomicU64::new(0),
            pin_stalls: AtomicU64::new(0),
            create_retries: AtomicU64::new(0),
            turns_overdue: AtomicU64::new(0),
            prefetches: Default::default(),
            speculated: Default::default(),
            placed: Default::default(),
            evictions: Default::default(),
            lost_lines: AtomicU64::new(0),
            fall_backs: Default::default(),
            managed_orders: Default::default(),
        }
    }
}

impl Counters {
    pub(super) fn count_refusal(&self, scope: Scope, reason: Reason) {
        add(self.refusals[scope as usize].get(reason as usize), 1);
    }

    /// Counts spans or log records that are lost.
    pub(super) fn count_dropped(&self, signal: Signal, items: usize) {
        add(self.dropped.get(signal as usize), u64::try_from(items).unwrap_or(u64::MAX));
    }

    pub(super) fn count_export_failure(&self, signal: Signal) {
        add(self.failures.get(signal as usize), 1);
    }

    /// Counts a pin call that was answered.
    pub(super) fn count_pin(&self) {
        add(Some(&self.pins), 1);
    }

    pub(super) fn pins(&self) -> u64 {
        read(&self.pins)
    }

    pub(super) fn count_pin_stall(&self) {
        add(Some(&self.pin_stalls), 1);
    }

    pub(super) fn pin_stalls(&self) -> u64 {
        read(&self.pin_stalls)
    }

    pub(super) fn count_create_retry(&self) {
        add(Some(&self.create_retries), 1);
    }

    pub(super) fn create_retries(&self) -> u64 {
        read(&self.create_retries)
    }

    pub(super) fn count_overdue_turn(&self) {
        add(Some(&self.turns_overdue), 1);
    }

    pub(super) fn turns_overdue(&self) -> u64 {
        read(&self.turns_overdue)
    }

    pub(super) fn count_prefetch(&self, end: PrefetchEnd) {
        add(self.prefetches.get(end as usize), 1);
    }

    pub(super) fn prefetches(&self) -> impl Iterator<Item = (&'static str, u64)> {
        PREFETCH_ENDS.into_iter().zip(&self.prefetches).map(|((_, name), count)| (name, read(count)))
    }

    /// Counts bytes that were brought unasked.
    pub(super) fn count_speculated(&self, end: SpeculationEnd, bytes: u64) {
        add(self.speculated.get(end as usize), bytes);
    }

    pub(super) fn speculated(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ["used", "wasted"].into_iter().zip(self.speculated.iter().map(read))
    }

    /// Counts a decision where a part is read.
    pub(super) fn count_placed(&self, in_place: bool) {
        add(self.placed.get(usize::from(in_place)), 1);
    }

    pub(super) fn placed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ["moved", "in_place"].into_iter().zip(self.placed.iter().map(read))
    }

    /// Counts a part that was chosen to leave its device.
    pub(super) fn count_eviction(&self, cause: Cause, reason: EvictionReason) {
        let of_cause = EVICTION_CAUSES.iter().position(|it| *it == cause);
        let of_cause = of_cause.and_then(|at| self.evictions.get(at));
        let at = EvictionReason::ALL.iter().position(|it| *it == reason);
        add(of_cause.zip(at).and_then(|(of_cause, at)| of_cause.get(at)), 1);
    }

    /// By cause and reason.
    pub(super) fn evictions(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let by_cause = EVICTION_CAUSES.into_iter().zip(&self.evictions);
        by_cause.flat_map(|(cause, counts)| {
            let counts = EvictionReason::ALL.into_iter().zip(counts);
            counts.map(move |(reason, count)| (cause.name(), reason.name(), read(count)))
        })
    }

    pub(super) fn count_managed_order(&self, is_executed: bool) {
        add(self.managed_orders.get(usize::from(!is_executed)), 1);
    }

    pub(super) fn managed_orders(&self) -> impl Iterator<Item = (&'static str, u64)> {
        MANAGED_ORDER_OUTCOMES.into_iter().zip(self.managed_orders.iter().map(read))
    }

    pub(super) fn count_fall_back(&self, reason: FallBack) {
        add(self.fall_backs.get(reason as usize), 1);
    }

    pub(super) fn fall_backs(&self) -> impl Iterator<Item = (&'static str, u64)> {
        FallBack::ALL.into_iter().map(FallBack::name).zip(self.fall_backs.iter().map(read))
    }

    /// Counts a line that stderr did not take in time.
    pub(super) fn count_lost_line(&self) {
        add(Some(&self.lost_lines), 1);
    }

    pub(super) fn lost_lines(&self) -> u64 {
        read(&self.lost_lines)
    }

    /// Lists the counts of all reasons in all scopes.
    pub(super) fn refusals(&self) -> impl Iterator<Item = (Scope, Reason, u64)> {
        let of =
            |scope: Scope| Reason::ALL.iter().zip(&self.refusals[scope as usize]).map(move |of| (scope, of));
        let counts = Scope::ALL.into_iter().flat_map(of);
        counts.map(|(scope, (reason, count))| (scope, *reason, read(count)))
    }

    pub(super) fn all_dropped(&self) -> impl Iterator<Item = (Signal, u64)> {
        by_signal(&self.dropped)
    }

    pub(super) fn all_failures(&self) -> impl Iterator<Item = (Signal, u64)> {
        by_signal(&self.failures)
    }
}

fn by_signal(counts: &[AtomicU64; 3]) -> impl Iterator<Item = (Signal, u64)> {
    Signal::ALL.into_iter().zip(counts.iter().map(read))
}

fn add(count: Option<&AtomicU64>, more: u64) {
    if let Some(count) = count {
        count.fetch_add(more, Ordering::Relaxed);
    }
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_a_prefetch_has_its_name() {
        for (at, (end, name)) in PREFETCH_ENDS.into_iter().enumerate() {
            let counters = Counters::default();
            counters.count_prefetch(end);
            let counts: Vec<_> = counters.prefetches().collect();
            assert_eq!((end as usize, counts[at]), (at, (name, 1)));
        }
    }

    #[test]
    fn each_reason_has_a_count_of_its_own() {
        let counters = Counters::default();
        for (times, reason) in Reason::ALL.iter().enumerate() {
            for _ in 0..=times {
                counters.count_refusal(Scope::Item, *reason);
            }
        }
        counters.count_refusal(Scope::Call, Reason::QuotaLimit);
        let items: Vec<_> = counters.refusals().filter(|(scope, ..)| *scope == Scope::Item).collect();
        assert_eq!(items.len(), Reason::ALL.len());
        for ((_, reason, count), (times, expected)) in items.iter().zip(Reason::ALL.iter().enumerate()) {
            assert_eq!((reason, *count), (expected, times as u64 + 1));
        }
        let calls: Vec<_> =
            counters.refusals().filter(|(scope, _, count)| *scope == Scope::Call && *count > 0).collect();
        assert_eq!(calls, [(Scope::Call, Reason::QuotaLimit, 1)]);
    }

    #[test]
    fn evictions_are_counted_by_cause_and_reason() {
        let counters = Counters::default();
        for cause in EVICTION_CAUSES {
            for (times, reason) in EvictionReason::ALL.into_iter().enumerate() {
                (0..times).for_each(|_| counters.count_eviction(cause, reason));
            }
        }
        let counts: Vec<_> = counters.evictions().filter(|(cause, ..)| *cause == "demand").collect();
        assert_eq!(counters.evictions().count(), EVICTION_CAUSES.len() * counts.len());
        assert_eq!(counts[..3], [("demand", "turn", 0), ("demand", "sequence", 1), ("demand", "pattern", 2)]);
    }

    #[test]
    fn losses_are_counted_by_signal() {
        let counters = Counters::default();
        counters.count_dropped(Signal::Logs, 7);
        counters.count_export_failure(Signal::Metrics);
        let above_zero = |(_, count): &(Signal, u64)| *count > 0;
        assert_eq!(counters.all_dropped().filter(above_zero).collect::<Vec<_>>(), [(Signal::Logs, 7)]);
        assert_eq!(counters.all_failures().filter(above_zero).collect::<Vec<_>>(), [(Signal::Metrics, 1)]);
        assert_eq!(counters.all_failures().count(), Signal::ALL.len(), "zeros are listed too");
    }
}
