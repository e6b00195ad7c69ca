//! A waiter, for a part off its device or a batch, waits only while there is no room, and no later waiter
//! goes first. Cached memory counts as room, and so does unused memory that could leave, as far as the oracle
//! knows.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{Broker, PartRef, Tier, WaitView, invariants::LINE_ORDER};

use crate::oracle::{
    Oracle,
    facts::{BackingFacts, ExtentFacts, ExtentPhase, MapPhase, SessionFacts, Tenant},
};

/// For how many waiters of a device the core makes room at a time.
const LOOKAHEAD: usize = 32;

/// The shortage of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// Its tenant is at its limit.
    Limit,
    /// The device is full.
    Full,
    None,
}

/// Parts that sessions use, or wait for, and parts that sessions map (`Oracle::used_parts`).
#[derive(Debug)]
pub(crate) struct UsedParts {
    in_use: Sorted,
    pub(crate) mapped: Sorted,
}

#[derive(Debug)]
pub(crate) struct Sorted(Vec<PartRef>);

impl Sorted {
    fn of(mut parts: Vec<PartRef>) -> Self {
        parts.sort_unstable();
        parts.dedup();
        Self(parts)
    }

    pub(crate) fn contains(&self, part: PartRef) -> bool {
        self.0.binary_search(&part).is_ok()
    }
}

/// Bytes that could leave a device, by tenant.
pub(crate) type Leavable = BTreeMap<Tenant, u64>;

#[derive(Clone, Copy, Debug)]
struct WaitReason {
    device: usize,
    tenant: Tenant,
    /// It would be within its tenant's guarantee.
    guaranteed: bool,
    /// It would be above its tenant's limit, as things are.
    at_limit: bool,
    shortage: Shortage,
    /// The device may be full for it: it is at its tenant's limit only if no more of that tenant leaves than
    /// is certain to.
    may_be_full: bool,
}

impl Oracle {
    pub(crate) fn check_waiters(&mut self, line: &[WaitView], broker: &Broker) {
        self.check_overtaking(line, broker);
        self.check_passing(line, broker);
        let mut wanted: BTreeSet<_> = self.wanted(broker).into_iter().collect();
        self.record_waited_devices(&wanted, line);
        // Sessions that wait for these parts may be ahead of others.
        let lingers = wanted.iter().any(|part| self.facts.in_place_to_unmap.contains(part));
        wanted.retain(|part| self.is_off_device(*part));
        self.facts.part_waiters.retain(|part, _| wanted.contains(part));
        for part in wanted {
            let since = self.wanted_since(part);
            self.facts.part_waiters.entry(part).or_insert(since);
        }
        self.facts.extents_ran_out |= self.facts.extents.len() >= self.limits.extents_max;
        if (self.facts.part_waiters.is_empty() && line.is_empty()) || self.facts.extents_ran_out || lingers {
            return;
        }
        let used = self.used_parts();
        let leavable: Vec<_> =
            (0..self.facts.places.len()).map(|device| self.leavable(device, broker, &used)).collect();
        let leavable_max: Vec<_> =
            (0..self.facts.places.len()).map(|device| self.leavable_max(device, broker)).collect();
        let passed = self.passed_waiters(line, &leavable_max);
        let waiters: Vec<_> = self.facts.part_waiters.iter().map(|(part, since)| (*part, *since)).collect();
        let each: Vec<_> = waiters
            .into_iter()
            .map(|(part, since)| (part, since, self.wait_reason(part, &leavable, &leavable_max)))
            .collect();
        for (part, since, reason) in &each {
            // Only waiters within their guarantee overtake on a full device, and no tenant overtakes itself.
            let before = |other: &&(PartRef, u64, WaitReason)| {
                let full = (other.2.shortage == Shortage::Full || other.2.may_be_full)
                    && !self.is_passed_part(other.0, &passed);
                let waits = other.2.shortage != Shortage::None;
                let limit = waits && other.2.at_limit;
                let same = other.2.device == reason.device;
                other.1 <= *since
                    && same
                    && ((full && !reason.guaranteed) || (limit && other.2.tenant == reason.tenant))
            };
            let ran_out = self.facts.places[reason.device].surveys_left > 0;
            let excused = ran_out
                || self.facts.failed_parts.contains(part)
                || self.is_behind_batch(*part, line, &passed)
                || self.stands_far_back(*part, line);
            let kept =
                reason.shortage == Shortage::None && !excused && !each.iter().any(|other| before(&other));
            self.expect(LINE_ORDER, !kept, || {
                format!(
                    "{part:?} has waited since event {since} although there is room: {each:?}, {leavable:?}"
                )
            });
        }
        self.check_first_batches(line, &leavable, &passed, broker);
    }

    /// Whether so many waiters of its device stand before the part that the core need not have come to it: it
    /// makes room for some at a time, and for more once half of them have left.
    fn stands_far_back(&self, part: PartRef, line: &[WaitView]) -> bool {
        let needs = line.iter().filter_map(|wait| self.facts.needs.get(&wait.id));
        let ahead = needs.take_while(|needs| needs.part != Some(part));
        let device = self.facts.allocations.get(&part.allocation).map(|it| it.device);
        let here = ahead.filter(|needs| device.is_some_and(|device| needs.bytes.contains_key(&device)));
        here.count() > LOOKAHEAD / 2
    }

    /// Whether the session can be sent what it wants.
    pub(crate) fn is_reachable(&self, session: &SessionFacts) -> bool {
        !(session.gone || session.ending) && self.facts.is_heard(session)
    }

    /// Number of the event since which a session wants the part. All parts of a set arrived at once.
    pub(crate) fn wanted_since(&self, part: PartRef) -> u64 {
        let heard = self.facts.sessions.values().filter(|session| self.is_reachable(session));
        let calls = heard.flat_map(|session| session.pin_calls.values());
        let waiting = calls.filter(|call| !call.answered && call.parts.contains(&part));
        waiting.map(|call| call.arrived).min().unwrap_or(self.facts.clock)
    }

    /// Parts that reachable sessions want and do not map: those of pin calls, and those that the daemon is to
    /// send anyhow.
    pub(crate) fn wanted(&self, broker: &Broker) -> Vec<PartRef> {
        let mut wanted = Vec::new();
        for session in self.facts.sessions.values() {
            if !self.is_reachable(session) {
                continue;
            }
            let waiting = session.pin_calls.values().filter(|call| !call.answered);
            let away = waiting.flat_map(|call| &call.parts).filter(|part| session.away.contains(part));
            wanted.extend(away.copied());
            let owed = session.owed.iter().filter(|part| Self::is_to_be_mapped(**part, broker));
            wanted.extend(owed.copied());
        }
        wanted
    }

    /// Whether the part lies in another tier and does not move.
    pub(crate) fn is_off_device(&self, part: PartRef) -> bool {
        self.tier_of(part).is_some_and(|tier| tier != Tier::Device)
            && !self.may_move(part)
            && !self.is_in_place(part)
    }

    /// Whether the part may be off its device: whether a session is to be sent it where it lies may be
    /// unknown.
    pub(crate) fn may_be_off_device(&self, part: PartRef) -> bool {
        self.is_off_device(part) || self.facts.in_place_to_unmap.contains(&part)
    }

    /// Why a part that wants to its device waits. Bytes on their way to the driver will be room.
    fn wait_reason(&self, part: PartRef, leavable: &[Leavable], leavable_max: &[Leavable]) -> WaitReason {
        let allocation = self.facts.allocations.get(&part.allocation);
        let Some((allocation, size)) = allocation.zip(self.size_of(part)) else {
            let (tenant, guaranteed, at_limit) = (Tenant::default(), false, false);
            return WaitReason {
                device: 0,
                tenant,
                guaranteed,
                at_limit,
                shortage: Shortage::Full,
                may_be_full: true,
            };
        };
        let (tenant, device) = (allocation.tenant, allocation.device);
        let (guarantee, limit) = self.quota_now(tenant, device);
        let at_limit = self.facts.charged(tenant, device) + size > limit;
        let guaranteed = self.charged_in_use(tenant, device) + size <= guarantee;
        let shortage = match self.is_something_leaving(device) {
            true => Shortage::Full,
            false => self.shortage(tenant, device, size, &leavable[device]),
        };
        // If more of its tenant's parts could leave than is certain, it would be within the limit and short
        // of room like any other.
        let mut own_leaves = leavable[device].clone();
        own_leaves.extend(leavable_max[device].get(&tenant).map(|bytes| (tenant, *bytes)));
        let may_be_full = shortage == Shortage::Limit
            && self.shortage(tenant, device, size, &own_leaves) != Shortage::Limit;
        WaitReason { device, tenant, guaranteed, at_limit, shortage, may_be_full }
    }

    /// The shortage of a tenant that wants `size` more bytes, even without cached memory and all that could
    /// leave.
    pub(crate) fn shortage(&self, tenant: Tenant, device: usize, size: u64, leavable: &Leavable) -> Shortage {
        let in_use = |oracle: &Self, of: Tenant| {
            let leaves = leavable.get(&of).copied().unwrap_or_default();
            u128::from(oracle.charged_in_use(of, device).saturating_sub(leaves))
        };
        let size = u128::from(size);
        if in_use(self, tenant) + size > u128::from(self.quota_now(tenant, device).1) {
            return Shortage::Limit;
        }
        let (mut before, mut after) = (0, 0);
        for of in 0..self.facts.tenants.len() {
            let (guarantee, held) = (u128::from(self.quota_now(of, device).0), in_use(self, of));
            before += guarantee.max(held);
            after += guarantee.max(if of == tenant { held + size } else { held });
        }
        match after > u128::from(self.capacity(device)) && after > before {
            true => Shortage::Full,
            false => Shortage::None,
        }
    }

    /// Whether memory is leaving a device, or may be.
    pub(crate) fn is_something_leaving(&self, device: usize) -> bool {
        let released = |it: &ExtentFacts| {
            it.place == device && matches!(it.phase, ExtentPhase::Releasing | ExtentPhase::GivenUp)
        };
        let on_device = |part: &PartRef| {
            self.facts.allocations.get(&part.allocation).is_none_or(|it| it.device == device)
        };
        let made = |backing: &BackingFacts| match backing {
            BackingFacts::Kept(id) => {
                self.facts.extents.get(id).is_some_and(|it| it.phase == ExtentPhase::Creating)
            }
            BackingFacts::Reserved { .. } | BackingFacts::Unneeded => false,
        };
        self.facts.extents.values().any(released)
            || self.facts.departing.iter().any(on_device)
            || self.facts.words_pending.iter().any(on_device)
            || self.facts.evicting.iter().any(|(_, part)| on_device(part))
            || self.facts.backings.iter().any(|(part, backing)| on_device(part) && made(backing))
            // A part that was about to leave when its session was told to unmap it for good leaves once the
            // session answers.
            || self.facts.backings.keys().any(|part| on_device(part) && self.is_being_revoked(*part))
    }

    /// Bytes on a device that certainly no session uses, and that have a backing.
    pub(crate) fn leavable(&self, device: usize, broker: &Broker, used: &UsedParts) -> Leavable {
        self.leavable_of(device, broker, |part| self.can_surely_leave(part, used))
    }

    pub(crate) fn can_surely_leave(&self, part: PartRef, used: &UsedParts) -> bool {
        !used.in_use.contains(part) && self.is_settled(part)
    }

    /// The same, counting parts that may be in use for all that is known here.
    fn leavable_max(&self, device: usize, broker: &Broker) -> Leavable {
        self.leavable_of(device, broker, |_| true)
    }

    pub(crate) fn leavable_of(
        &self,
        device: usize,
        broker: &Broker,
        leaves: impl Fn(PartRef) -> bool,
    ) -> Leavable {
        let mut leavable = Leavable::new();
        let mut open = BTreeMap::new();
        for part in self.facts.backings.keys().copied() {
            let Some((tenant, _, size)) = self.resident(part).filter(|(_, on, _)| *on == device) else {
                continue;
            };
            let leaves = leaves(part)
                && *open.entry(part.allocation).or_insert_with(|| Self::is_to_be_mapped(part, broker));
            if leaves {
                *leavable.entry(tenant).or_default() += size;
            }
        }
        leavable
    }

    fn is_settled(&self, part: PartRef) -> bool {
        !self.may_move(part)
            && !self.is_being_evicted(part)
            && !self.is_being_revoked(part)
            && !self.facts.fences.contains_key(&part)
            && !self.facts.operator_holds.contains(&part)
            && !self.facts.failed_parts.contains(&part)
    }

    /// The parts that sessions use or wait for now. To ask each session for each part takes most of a run's time.
    pub(crate) fn used_parts(&self) -> UsedParts {
        let (mut in_use, mut mapped) = (Vec::new(), Vec::new());
        in_use.extend(self.facts.pinned.difference(&self.facts.yielded_pins).map(|(part, _)| *part));
        for session in self.facts.sessions.values() {
            let may_unmap = session.pins
                && !(session.silent || session.ending || session.gone)
                && (session.mappings.is_empty() || self.facts.is_heard(session));
            for (part, (phase, _)) in &session.mappings {
                mapped.push(*part);
                if !(may_unmap && *phase == MapPhase::Mapped) {
                    in_use.push(*part);
                }
            }
            in_use.extend(session.owed.iter().copied());
            in_use.extend(
                session.pin_requested.iter().filter(|part| !session.mappings.contains_key(part)).copied(),
            );
            in_use.extend(session.pin_calls.values().flat_map(|call| call.parts.iter().copied()));
        }
        UsedParts { in_use: Sorted::of(in_use), mapped: Sorted::of(mapped) }
    }

    /// Whether an unanswered pin call waits for the part.
    pub(crate) fn has_waiting_pin(&self, part: PartRef) -> bool {
        let waits = |session: &SessionFacts| {
            session.pin_calls.values().any(|call| !call.answered && call.parts.contains(&part))
        };
        self.facts.sessions.values().any(waits)
    }

    /// Checks that a batch that did not wait took no room that others wait for, except within its tenant's
    /// guarantee.
    fn check_overtaking(&mut self, line: &[WaitView], broker: &Broker) {
        for ((tenant, device), in_use) in std::mem::take(&mut self.step.made_at_once) {
            let guaranteed = in_use <= self.quota_now(tenant, device).0;
            let waits = self.facts.part_waiters.keys().find(|part| {
                let on = self.facts.allocations.get(&part.allocation).map(|it| it.device);
                on == Some(device)
                    && !self.facts.failed_parts.contains(part)
                    && !self.may_part_let_pass(**part, broker)
            });
            let waits = waits.copied().filter(|_| self.facts.places[device].surveys_left == 0);
            self.expect(LINE_ORDER, guaranteed || waits.is_none(), || {
                format!("tenant {tenant} is served on device {device}, although {waits:?} has waited longer")
            });
            let batch = self.first_batch_on(device, line, broker);
            self.expect(LINE_ORDER, guaranteed || batch.is_none(), || {
                format!(
                    "tenant {tenant} is served on device {device} before batch {batch:?}, which waits for it"
                )
            });
        }
    }
}
