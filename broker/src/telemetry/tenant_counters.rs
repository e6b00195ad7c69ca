//! Counts the refusals, pin waits and copied bytes of each tenant.
//!
//! A tenant gets series with its first session, so that its first refusal is an increase. There are as many series as the
//! configuration allows; what has none is counted for `_other`. When none is left, a tenant gives up its series: to any
//! other one if nothing of it was counted for [`IDLE`], and to a refused one if it was not refused for so long. So a
//! tenant that is refused has series, however many idle tenants there are, and keeps them for [`IDLE`] at least.
//!
//! No series ever falls. `_other` keeps what it has counted, and a tenant that gets series again begins at zero.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use broker_core::{Caller, Cause, Notice, Time, WaitEnd};
use vramd_types::{Bytes, Reason};

use super::{
    ended_move::{EndedMove, MoveKind},
    metrics::OTHER_TENANTS,
};

/// The outcomes of waits.
pub(super) const WAIT_ENDS: [WaitEnd; 4] =
    [WaitEnd::Served, WaitEnd::Refused, WaitEnd::Cancelled, WaitEnd::Left];

/// Reasons that say that a tenant lacks memory. Their series begin at zero; those of others begin with a refusal.
pub(super) const FROM_ZERO: [Reason; 4] =
    [Reason::QuotaLimit, Reason::DeviceFull, Reason::Deadline, Reason::PinStalled];

/// The series of one metric that a tenant has from its first session on.
const SERIES_AT_FIRST: usize = FROM_ZERO.len();

/// How long a tenant keeps its series at least after the last event that was counted.
const IDLE: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct TenantCounters {
    /// The most series of tenants by name. The series of `_other` fit beside them.
    named_max: usize,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    named: BTreeMap<String, Named>,
    /// The counts of all other tenants, once there are any.
    others: Option<TenantCounts>,
}

/// A tenant with series of its own.
#[derive(Debug)]
struct Named {
    counts: TenantCounts,
    active_at: Time,
    refused_at: Option<Time>,
}

/// The counts of one tenant.
#[derive(Clone, Debug)]
pub(super) struct TenantCounts {
    pub(super) refusals: BTreeMap<Reason, u64>,
    pin_waits: [u64; WAIT_ENDS.len()],
    /// Bytes that were copied, by direction and cause.
    pub(super) copied: BTreeMap<(&'static str, &'static str), u64>,
    /// Bytes that were fetched, and that the daemon sent to a client before they left again.
    pub(super) used: u64,
}

impl Default for TenantCounts {
    fn default() -> Self {
        Self {
            refusals: FROM_ZERO.map(|reason| (reason, 0)).into(),
            pin_waits: Default::default(),
            copied: ["in", "out"].map(|direction| ((direction, Cause::Demand.name()), 0)).into(),
            used: 0,
        }
    }
}

impl TenantCounts {
    pub(super) fn pin_waits(&self) -> impl Iterator<Item = (WaitEnd, u64)> {
        WAIT_ENDS.into_iter().zip(self.pin_waits)
    }

    /// Whether there is a series for it already.
    fn has_series_of(&self, counting: Counting) -> bool {
        match counting {
            Counting::Refusal(reason) => self.refusals.contains_key(&reason),
            Counting::Copied { direction, cause, .. } => self.copied.contains_key(&(direction, cause)),
            Counting::Session | Counting::PinWait(_) | Counting::Used(_) => true,
        }
    }

    /// The number of series in the metric that has most.
    fn series(&self) -> usize {
        self.refusals.len().max(self.copied.len()).max(SERIES_AT_FIRST)
    }
}

/// One addition to the counts of a tenant.
#[derive(Clone, Copy, Debug)]
enum Counting {
    Session,
    Refusal(Reason),
    PinWait(WaitEnd),
    Copied { direction: &'static str, cause: &'static str, bytes: Bytes },
    Used(Bytes),
}

impl Counting {
    fn add_to(self, counts: &mut TenantCounts) {
        let (count, more) = match self {
            Self::Session => return,
            Self::Refusal(reason) => (counts.refusals.entry(reason).or_default(), 1),
            Self::PinWait(end) => {
                match WAIT_ENDS.iter().zip(&mut counts.pin_waits).find(|(it, _)| **it == end) {
                    Some((_, count)) => (count, 1),
                    None => return,
                }
            }
            Self::Copied { direction, cause, bytes } => {
                (counts.copied.entry((direction, cause)).or_default(), bytes.get())
            }
            Self::Used(bytes) => (&mut counts.used, bytes.get()),
        };
        *count = count.saturating_add(more);
    }
}

impl TenantCounters {
    pub(super) fn new(series_max: usize) -> Self {
        Self { named_max: series_max.saturating_sub(Reason::ALL.len()), counted: Mutex::default() }
    }

    /// Counts what the notice reports of a tenant.
    pub(super) fn count(&self, notice: &Notice, now: impl FnOnce() -> Time) {
        match notice {
            Notice::SessionOpened { tenant, .. } => self.add(tenant, now(), Counting::Session),
            Notice::Refused { by, refusal, .. } => {
                let tenant = match by {
                    Caller::Session { tenant, .. } => &**tenant,
                    Caller::Process { tenant, .. } => tenant.as_str(),
                    Caller::Operator { .. } | Caller::ForeignProcess { .. } => return,
                };
                self.add(tenant, now(), Counting::Refusal(refusal.reason()));
            }
            Notice::PinWaited { tenant, end, .. } => self.add(tenant, now(), Counting::PinWait(*end)),
            _ => {}
        }
    }

    /// Counts the bytes of an ended move, if they were copied.
    pub(super) fn count_copied(&self, ended: &EndedMove<'_>, now: Time) {
        let MoveKind { direction, cause, .. } = ended.kind;
        if ended.kind.is_copy() {
            self.add(ended.tenant, now, Counting::Copied { direction, cause, bytes: ended.bytes });
        }
    }

    /// Counts fetched bytes that the daemon is about to send to a client.
    pub(super) fn count_used(&self, tenant: &str, bytes: Bytes, now: Time) {
        self.add(tenant, now, Counting::Used(bytes));
    }

    /// Returns the counts by tenant.
    pub(super) fn by_tenant(&self) -> BTreeMap<String, TenantCounts> {
        let counted = self.lock();
        let others = counted.others.iter().map(|counts| (OTHER_TENANTS.to_owned(), counts.clone()));
        counted
            .named
            .iter()
            .map(|(tenant, named)| (tenant.clone(), named.counts.clone()))
            .chain(others)
            .collect()
    }

    /// Returns the tenants that were refused within the time before `now`.
    pub(super) fn refused_within(&self, time: Duration, now: Time) -> BTreeSet<String> {
        let is_refused = |named: &Named| named.refused_at.is_some_and(|at| now.since(at) < time);
        let counted = self.lock();
        counted
            .named
            .iter()
            .filter(|(_, named)| is_refused(named))
            .map(|(tenant, _)| tenant.clone())
            .collect()
    }

    fn add(&self, tenant: &str, now: Time, counting: Counting) {
        let mut counted = self.lock();
        let Counted { named, others } = &mut *counted;
        let is_refused = matches!(counting, Counting::Refusal(_));
        let has_series = named.get(tenant).is_some_and(|own| own.counts.has_series_of(counting))
            || make_room(named, tenant, self.named_max, is_refused, now);
        if has_series && !named.contains_key(tenant) {
            let new = Named { counts: TenantCounts::default(), active_at: now, refused_at: None };
            named.insert(tenant.to_owned(), new);
        }
        let own = named.get_mut(tenant).map(|own| {
            own.active_at = now;
            own.refused_at = if is_refused { Some(now) } else { own.refused_at };
            &mut own.counts
        });
        counting.add_to(own.filter(|_| has_series).unwrap_or_else(|| others.get_or_insert_default()));
    }

    /// Locks the counts. The reactor and the collecting thread keep the lock only briefly.
    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes room for the series of a new tenant, or for one more of a tenant that has some. Returns whether there is room.
fn make_room(
    named: &mut BTreeMap<String, Named>,
    tenant: &str,
    series_max: usize,
    is_refused: bool,
    now: Time,
) -> bool {
    let more = if named.contains_key(tenant) { 1 } else { SERIES_AT_FIRST + usize::from(is_refused) };
    let is_idle = |of: &Named| {
        let last = if is_refused { of.refused_at } else { Some(of.active_at) };
        last.is_none_or(|last| now.since(last) >= IDLE)
    };
    while named.values().map(|of| of.counts.series()).sum::<usize>() + more > series_max {
        let idle = named.iter().filter(|(name, of)| *name != tenant && is_idle(of));
        let Some(longest) = idle.min_by_key(|(_, of)| of.active_at).map(|(name, _)| name.clone()) else {
            return false;
        };
        named.remove(&longest);
    }
    true
}

#[cfg(test)]
mod tests {
    use broker_core::Refusal;
    use vramd_types::SessionId;

    use super::*;
    use crate::telemetry::move_counters::tests::{arrived, moved, part};

    /// With room for tenants that are refused for one reason beside the first ones.
    fn counters(tenants: usize) -> TenantCounters {
        TenantCounters::new(Reason::ALL.len() + tenants * (SERIES_AT_FIRST + 1))
    }

    fn opened(tenant: &str) -> Notice {
        Notice::SessionOpened { session: SessionId::from_shown(1), tenant: tenant.into(), pid: 1 }
    }

    fn refused(tenant: &str) -> Notice {
        let by = Caller::Session { session: SessionId::from_shown(1), tenant: tenant.into() };
        Notice::Refused { by, request: "Seal", refusal: Refusal::Draining }
    }

    fn minute(minutes: u64) -> Time {
        Time::START.after(Duration::from_secs(60 * minutes))
    }

    /// Counts a refusal, and returns the refusals of each series.
    fn refuse(counters: &TenantCounters, tenant: &str, now: Time) -> Vec<(String, u64)> {
        counters.count(&refused(tenant), || now);
        let sums = counters.by_tenant();
        sums.into_iter().map(|(tenant, counts)| (tenant, counts.refusals.values().sum())).collect()
    }

    fn refusals(of: &[(&str, u64)]) -> Vec<(String, u64)> {
        of.iter().map(|(tenant, count)| ((*tenant).to_owned(), *count)).collect()
    }

    #[test]
    fn a_tenant_begins_with_zeros_of_what_says_that_it_lacks_memory() {
        let counters = counters(2);
        counters.count(&opened("a"), || Time::START);
        let counts = &counters.by_tenant()["a"];
        assert_eq!(counts.refusals, FROM_ZERO.map(|reason| (reason, 0)).into());
        assert_eq!((counts.pin_waits().count(), counts.copied.len()), (4, 2));
        assert!(counts.copied.values().all(|bytes| *bytes == 0));
        counters.count(&refused("a"), || Time::START);
        assert_eq!(counters.by_tenant()["a"].refusals[&Reason::Draining], 1);
    }

    #[test]
    fn late_tenants_are_counted_as_other_while_all_others_are_active() {
        let counters = counters(2);
        for tenant in ["a", "b", "c", "d"] {
            refuse(&counters, tenant, Time::START);
        }
        let counted = refuse(&counters, "a", minute(59));
        assert_eq!(counted, refusals(&[(OTHER_TENANTS, 2), ("a", 2), ("b", 1)]));
    }

    #[test]
    fn the_longest_idle_tenant_gives_its_series_to_a_new_one() {
        let counters = counters(2);
        for (tenant, now) in [("a", 0), ("b", 1), ("c", 2)] {
            refuse(&counters, tenant, minute(now));
        }
        counters.count(&opened("a"), || minute(10));
        let counted = refuse(&counters, "c", minute(61));
        assert_eq!(counted, refusals(&[(OTHER_TENANTS, 1), ("a", 1), ("c", 1)]), "and no count fell");
        let counted = refuse(&counters, "b", minute(130));
        assert_eq!(counted, refusals(&[(OTHER_TENANTS, 1), ("b", 1), ("c", 1)]));
    }

    #[test]
    fn a_refused_tenant_takes_the_series_of_one_that_is_not_refused() {
        let counters = counters(2);
        for tenant in ["a", "b", "c"] {
            counters.count(&opened(tenant), || Time::START);
        }
        assert_eq!(counters.by_tenant().into_keys().collect::<Vec<_>>(), [OTHER_TENANTS, "a", "b"]);
        counters.count(&opened("a"), || minute(1));
        assert_eq!(refuse(&counters, "c", minute(2)), refusals(&[(OTHER_TENANTS, 0), ("a", 0), ("c", 1)]));
        assert_eq!(refuse(&counters, "d", minute(3)), refusals(&[(OTHER_TENANTS, 0), ("c", 1), ("d", 1)]));
        assert_eq!(refuse(&counters, "e", minute(4)), refusals(&[(OTHER_TENANTS, 1), ("c", 1), ("d", 1)]));
        assert_eq!(counters.refused_within(Duration::from_secs(120), minute(4)), ["d".to_owned()].into());
    }

    #[test]
    fn a_reason_without_a_series_is_counted_for_the_others() {
        let counters = counters(2);
        for reason in Reason::ALL {
            counters.add("a", Time::START, Counting::Refusal(*reason));
        }
        let counted = counters.by_tenant();
        assert_eq!(counted["a"].refusals.len(), 2 * (SERIES_AT_FIRST + 1));
        let sum: u64 = counted.values().flat_map(|counts| counts.refusals.values()).sum();
        assert_eq!(sum, Reason::ALL.len() as u64);
    }

    #[test]
    fn pin_waits_are_counted_by_outcome() {
        let counters = counters(9);
        let (session, call, since) = (SessionId::from_shown(1), 1, Time::START);
        for end in [WaitEnd::Served, WaitEnd::Served, WaitEnd::Left] {
            let notice = Notice::PinWaited { tenant: "a".into(), session, call, since, end };
            counters.count(&notice, || Time::START);
        }
        let waits: Vec<_> = counters.by_tenant()["a"].pin_waits().map(|(_, count)| count).collect();
        assert_eq!(waits, [2, 0, 0, 1]);
    }

    #[test]
    fn copied_bytes_are_counted_by_direction_and_cause() {
        let counters = counters(9);
        for notice in [moved("a"), moved("a"), arrived(part(0), "a")] {
            counters.count_copied(&EndedMove::of(&notice).unwrap(), Time::START);
        }
        counters.count_used("a", Bytes::mib(2), Time::START);
        let counts = &counters.by_tenant()["a"];
        let copied = counts.copied.iter().filter(|(_, bytes)| **bytes > 0);
        let copied: Vec<_> = copied.map(|(kind, bytes)| (*kind, bytes >> 20)).collect();
        assert_eq!(copied, [(("in", "demand"), 2), (("out", "operator"), 4)]);
        assert_eq!(counts.used, 2 << 20);
    }
}
