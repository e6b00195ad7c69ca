//! The order in which sessions pin the parts of allocations, learnt from their pin calls, and what the daemon brings ahead
//! of them unasked.
//!
//! ```text
//!   calls for the first part    0   2   4   6        the stride is 2, seen three times: the order is learnt
//!   brought ahead                               8   10
//!   at the end                                           a call for part 0 shows that it is a loop
//! ```
//!
//! A part that is brought and then used was useful. One that leaves its device unused was wasted, and so was one whose
//! session goes on in another order. If more than [`WASTE_PERCENT_MAX`] of the bytes of an allocation that were brought for
//! a tenant's sessions were wasted, the daemon brings no more of it for them, until its owner advises a pattern.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use vramd_types::{AllocationId, Bytes, SessionId};

use crate::{
    event::{PartRef, Pattern},
    limits::{SPECULATION_STEPS_MAX, SPECULATION_TRIAL, WASTE_PERCENT_MAX},
    tenancy::TenantId,
    time::Time,
};

/// How often a stride is seen in a row before the order counts as learnt.
const REPEATS: u32 = 3;

/// The same where the owner advised that parts are used in order.
const REPEATS_ADVISED: u32 = 1;

/// An order has at least so many parts: fewer are soon there.
const PARTS_MIN: u32 = 4;

/// One new measurement of the time of a step counts as one of so many.
const SMOOTHING: u32 = 4;

/// The order in which a session pins the parts of an allocation, as far as its calls have shown it.
#[derive(Clone, Copy, Debug)]
struct PinOrder {
    /// The first part of the first call in this order, and of the last call.
    begin: u32,
    last: u32,
    /// The number of parts of the last call.
    count: u32,
    stride: Option<i64>,
    /// How often the stride was seen in a row.
    repeats: u32,
    /// The first part of the last call before the order began anew, if it did.
    end: Option<u32>,
    at: Time,
    /// The time between two calls, as measured.
    step_time: Option<Duration>,
}

/// The use and waste of the last parts of an allocation that were brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speculation {
    pub useful: Bytes,
    pub wasted: Bytes,
    /// Too much was wasted for the sessions of a tenant, so the daemon brings no more for them.
    pub is_off: bool,
}

#[derive(Debug, Default)]
struct Tally {
    of: Speculation,
    /// How many parts these are.
    judged: u32,
}

#[derive(Clone, Copy, Debug)]
struct Brought {
    session: SessionId,
    tenant: TenantId,
    bytes: Bytes,
}

/// The parts that a session will probably pin next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forecast {
    /// Each step has parts in a row: the first, and how many. The next step comes first.
    pub(crate) steps: Vec<(u32, u32)>,
    /// The time between two steps, as measured.
    pub(crate) step_time: Option<Duration>,
}

/// How a brought part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpeculationEnd {
    Used,
    Wasted,
}

#[derive(Debug, Default)]
pub(crate) struct Learnt {
    orders: BTreeMap<(AllocationId, SessionId), PinOrder>,
    by_session: BTreeSet<(SessionId, AllocationId)>,
    tallies: BTreeMap<(AllocationId, TenantId), Tally>,
    /// Parts that are there or on their way unasked, and that no session has used.
    brought: BTreeMap<PartRef, Brought>,
    /// Forecasts that were made in this event.
    pub(crate) forecasts: BTreeMap<(SessionId, AllocationId), Forecast>,
}

/// The meaning of a call for the order of its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The session left its order, if it had one.
    pub(crate) is_broken: bool,
    /// The parts that it will pin next, if its order is learnt.
    pub(crate) forecast: Option<Forecast>,
}

#[cfg(feature = "planted")]
impl Shown {
    /// The forecast without its first step, for `NearestStepSkipped`.
    pub(crate) fn without_nearest(mut self) -> Self {
        if let Some(forecast) = self.forecast.as_mut().filter(|it| it.steps.len() > 1) {
            forecast.steps.remove(0);
        }
        self
    }
}

impl Tally {
    fn judge(&mut self, bytes: Bytes, end: SpeculationEnd) {
        let sum = match end {
            SpeculationEnd::Used => &mut self.of.useful,
            SpeculationEnd::Wasted => &mut self.of.wasted,
        };
        *sum = sum.saturating_add(bytes);
        self.judged = self.judged.saturating_add(1);
        let Speculation { useful, wasted, .. } = self.of;
        let all = u128::from(useful.saturating_add(wasted).get());
        let is_too_much = u128::from(wasted.get()) * 100 > all * u128::from(WASTE_PERCENT_MAX);
        self.of.is_off |= self.judged >= SPECULATION_TRIAL && is_too_much;
        if self.judged >= 8 * SPECULATION_TRIAL {
            let half = |sum: Bytes| Bytes::new(sum.get() / 2);
            self.of = Speculation { useful: half(useful), wasted: half(wasted), ..self.of };
            self.judged /= 2;
        }
    }
}

impl PinOrder {
    const fn new(first: u32, count: u32, at: Time) -> Self {
        Self { begin: first, last: first, count, stride: None, repeats: 0, end: None, at, step_time: None }
    }

    /// The order after a call, and whether it goes on in its order.
    fn after(self, first: u32, count: u32, now: Time) -> (Self, bool) {
        let took = now.since(self.at);
        let step_time = self
            .step_time
            .map_or(took, |mean| mean.saturating_mul(SMOOTHING - 1).saturating_add(took) / SMOOTHING);
        let next = Self { last: first, count, at: now, step_time: Some(step_time), ..self };
        let stride = i64::from(first).saturating_sub(self.last.into());
        if self.stride == Some(stride) {
            return (Self { repeats: self.repeats.saturating_add(1), ..next }, true);
        }
        if self.repeats >= REPEATS && first == self.begin && count == self.count {
            return (Self { end: Some(self.last), ..next }, self.end.is_none_or(|end| end == self.last));
        }
        (Self { begin: self.last, stride: Some(stride), repeats: 1, end: None, ..next }, false)
    }

    /// The first parts of the next steps in an allocation of so many parts.
    fn ahead(self, part_count: u32) -> impl Iterator<Item = u32> {
        let next = move |at: u32| match self.end {
            Some(end) if end == at => Some(self.begin),
            _ => u32::try_from(i64::from(at).checked_add(self.stride?)?).ok(),
        };
        let fits = move |first: &u32| first.checked_add(self.count).is_some_and(|end| end <= part_count);
        std::iter::successors(next(self.last), move |at| next(*at)).take_while(fits)
    }
}

impl Learnt {
    /// Records a call of a session for parts of an allocation in a row.
    pub(crate) fn record_call(
        &mut self,
        (allocation, session): (AllocationId, SessionId),
        (first, count): (u32, u32),
        (part_count, pattern): (u32, Option<Pattern>),
        now: Time,
    ) -> Shown {
        if part_count < PARTS_MIN || matches!(pattern, Some(Pattern::Random | Pattern::Sparse)) {
            return Shown::default();
        }
        let key = (allocation, session);
        let Some(order) = self.orders.get_mut(&key) else {
            self.orders.insert(key, PinOrder::new(first, count, now));
            self.by_session.insert((session, allocation));
            return Shown::default();
        };
        if order.last == first {
            return Shown::default();
        }
        let (next, goes_on) = order.after(first, count, now);
        *order = next;
        let repeats = if pattern.is_some() { REPEATS_ADVISED } else { REPEATS };
        let forecast = (next.repeats >= repeats).then(|| {
            let ahead = next.ahead(part_count).take(SPECULATION_STEPS_MAX);
            Forecast { steps: ahead.map(|first| (first, count)).collect(), step_time: next.step_time }
        });
        Shown { is_broken: !goes_on, forecast }
    }

    /// How far it was right of late to bring parts of the allocation, for the sessions of all tenants together.
    pub(crate) fn speculation(&self, allocation: AllocationId) -> Speculation {
        let of = self.tallies.range(of_all_tenants(allocation)).map(|(_, tally)| tally.of);
        of.fold(Speculation::default(), |sum, of| Speculation {
            useful: sum.useful.saturating_add(of.useful),
            wasted: sum.wasted.saturating_add(of.wasted),
            is_off: sum.is_off || of.is_off,
        })
    }

    /// Whether too much that was brought of the allocation for the tenant was wasted.
    pub(crate) fn is_off(&self, allocation: AllocationId, tenant: TenantId) -> bool {
        self.tallies.get(&(allocation, tenant)).is_some_and(|tally| tally.of.is_off)
    }

    /// Records that the part is brought for a session of the tenant.
    pub(crate) fn bring(&mut self, part: PartRef, (session, tenant): (SessionId, TenantId), bytes: Bytes) {
        self.brought.insert(part, Brought { session, tenant, bytes });
    }

    /// The part does not come, or its allocation is freed: this is neither use nor waste.
    pub(crate) fn give_up(&mut self, part: PartRef) {
        self.brought.remove(&part);
    }

    pub(crate) fn is_brought(&self, part: PartRef) -> bool {
        self.brought.contains_key(&part)
    }

    /// Judges a brought part. Returns its bytes, and the tenant that it was brought for, if it was brought.
    pub(crate) fn judge(&mut self, part: PartRef, end: SpeculationEnd) -> Option<(Bytes, TenantId)> {
        let Brought { bytes, tenant, .. } = self.brought.remove(&part)?;
        self.tallies.entry((part.allocation, tenant)).or_default().judge(bytes, end);
        Some((bytes, tenant))
    }

    /// The unused parts of an allocation that were brought for a session.
    pub(crate) fn brought_for(&self, allocation: AllocationId, session: SessionId) -> Vec<PartRef> {
        let of_allocation = self.brought.range(PartRef::all_of(allocation));
        of_allocation.filter(|(_, it)| it.session == session).map(|(part, _)| *part).collect()
    }

    /// The owner has advised a pattern: the daemon tries again.
    pub(crate) fn begin_anew(&mut self, allocation: AllocationId) {
        let of: Vec<_> = self.tallies.range(of_all_tenants(allocation)).map(|(of, _)| *of).collect();
        of.iter().for_each(|of| _ = self.tallies.remove(of));
    }

    pub(crate) fn forget_allocation(&mut self, allocation: AllocationId) {
        if self.orders.is_empty() && self.tallies.is_empty() && self.brought.is_empty() {
            return;
        }
        self.begin_anew(allocation);
        let all = (allocation, SessionId::from_raw(0))..=(allocation, SessionId::from_raw(u64::MAX));
        let sessions: Vec<_> = self.orders.range(all).map(|((_, session), _)| *session).collect();
        for session in sessions {
            self.orders.remove(&(allocation, session));
            self.by_session.remove(&(session, allocation));
        }
        let brought: Vec<_> =
            self.brought.range(PartRef::all_of(allocation)).map(|(part, _)| *part).collect();
        brought.into_iter().for_each(|part| self.give_up(part));
    }

    pub(crate) fn forget_session(&mut self, session: SessionId) {
        let all = (session, AllocationId::from_raw(0))..=(session, AllocationId::from_raw(u64::MAX));
        let allocations: Vec<_> = self.by_session.range(all).map(|(_, allocation)| *allocation).collect();
        for allocation in allocations {
            self.orders.remove(&(allocation, session));
            self.by_session.remove(&(session, allocation));
        }
    }
}

fn of_all_tenants(allocation: AllocationId) -> RangeInclusive<(AllocationId, TenantId)> {
    (allocation, TenantId::MIN)..=(allocation, TenantId::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: AllocationId = AllocationId::from_raw(7);
    const ONE: SessionId = SessionId::from_raw(1);
    const TENANT: TenantId = TenantId::MIN;

    /// The first parts of the steps that are forecast after each of these calls for one part of 16.
    fn forecasts(calls: &[u32], pattern: Option<Pattern>) -> Vec<Vec<u32>> {
        let mut learnt = Learnt::default();
        let call = |first: &u32| {
            let shown = learnt.record_call((ID, ONE), (*first, 1), (16, pattern), Time::from_micros(0));
            shown.forecast.map(|it| it.steps.iter().map(|(first, _)| *first).collect()).unwrap_or_default()
        };
        calls.iter().map(call).collect()
    }

    fn last(calls: &[u32]) -> Vec<u32> {
        forecasts(calls, None).pop().unwrap_or_default()
    }

    #[test]
    fn order_is_learnt_from_equal_strides() {
        assert_eq!(last(&[0, 1, 2]), Vec::<u32>::new(), "two could be chance");
        assert_eq!(last(&[0, 1, 2, 3]), (4..12).collect::<Vec<_>>());
        assert_eq!(last(&[0, 3, 6, 9]), [12, 15]);
        assert_eq!(last(&[15, 12, 9, 6]), [3, 0]);
        assert_eq!(last(&[0, 1, 2, 3, 9, 4, 11]), Vec::<u32>::new());
        assert_eq!(last(&[0, 1, 2, 3, 3]), Vec::<u32>::new(), "a call for the same part again shows nothing");
    }

    #[test]
    fn loop_is_learnt_when_it_begins_anew() {
        let pass: Vec<u32> = (0..10).collect();
        assert_eq!(last(&pass), [10, 11, 12, 13, 14, 15]);
        let again = [&pass[..], &[0]].concat();
        assert_eq!(last(&again), (1..9).collect::<Vec<_>>());
        let later = [&pass[..], &pass[..9]].concat();
        assert_eq!(last(&later), [9, 0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn advised_order_is_learnt_from_one_stride_and_disorder_never() {
        assert_eq!(forecasts(&[0, 1], Some(Pattern::Sequential))[1], (2..10).collect::<Vec<_>>());
        assert_eq!(forecasts(&[0, 1, 2, 3], Some(Pattern::Random))[3], Vec::<u32>::new());
    }

    #[test]
    fn waste_switches_it_off_until_a_pattern_is_advised() {
        let part = |index| PartRef { allocation: ID, part: vramd_types::PartIndex(index) };
        let mut learnt = Learnt::default();
        let judge = |learnt: &mut Learnt, index, end| {
            learnt.bring(part(index), (ONE, TENANT), Bytes::mib(2));
            learnt.judge(part(index), end)
        };
        for index in 0..SPECULATION_TRIAL {
            assert!(!learnt.speculation(ID).is_off, "{index} is too few to judge by");
            let end = if index < 2 { SpeculationEnd::Wasted } else { SpeculationEnd::Used };
            assert_eq!(judge(&mut learnt, index, end), Some((Bytes::mib(2), TENANT)));
        }
        assert!(learnt.speculation(ID).is_off, "a quarter is wasted");
        assert!(
            learnt.is_off(ID, TENANT) && !learnt.is_off(ID, TenantId::MAX),
            "it was wasted for one tenant"
        );
        assert_eq!(learnt.judge(part(0), SpeculationEnd::Used), None, "it was not brought");
        learnt.begin_anew(ID);
        assert!(!learnt.speculation(ID).is_off);
    }
}
