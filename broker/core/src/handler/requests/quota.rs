//! Changes of quotas: checked against guarantees and charges, stored on disk, then put into force.
//!
//! The daemon makes one change at a time, so that each is checked against the result of the one before. Changes of
//! classes and weights (`standing.rs`) stand in the same queue, since all are stored together.

use std::collections::VecDeque;

use vramd_types::{Quantity, name};

use crate::{
    broker::{Broker, quota_device},
    command::Command,
    error::Refusal,
    event::{DeviceSelector, Tier},
    follow_up::Fact,
    handler::{Start, Started},
    ledger::{Place, Quota, QuotaDevice, QuotaTable},
    limits::REQUESTS_REMEMBERED,
    line::RoomPlan,
    ops::{OpKind, QuotaChange, QuotaEdit, Requester},
    tenancy::{Method, OpId, Outcome, Standing, TenantId},
    view::{StoredChange, StoredQuota, StoredQuotas, StoredRequest, StoredTenant},
};

/// Changes that wait for their turn, and the one that is being stored.
#[derive(Debug, Default)]
pub(crate) struct QuotaQueue {
    waiting: VecDeque<OpId>,
    /// The change that waits for cached extents to be released, so that its guarantee is backed.
    making_room: Option<OpId>,
    pub(super) storing: Option<Storing>,
    /// Requests that are on disk, oldest first: the last ones of each uid.
    pub(super) stored_requests: VecDeque<StoredRequest>,
}

#[derive(Debug)]
pub(super) struct Storing {
    pub(super) op: OpId,
    pub(super) change: Change,
    pub(super) request: Option<StoredRequest>,
}

/// A change, with its result.
#[derive(Debug)]
pub(super) enum Change {
    Quota(QuotaChange, Option<Quota>),
    Standing(TenantId, Option<Standing>),
}

impl QuotaQueue {
    pub(crate) fn recall(&mut self, request: StoredRequest) {
        let of_uid = |stored: &StoredRequest| stored.uid == request.uid;
        if self.stored_requests.iter().filter(|stored| of_uid(stored)).count() >= REQUESTS_REMEMBERED
            && let Some(oldest) = self.stored_requests.iter().position(of_uid)
        {
            self.stored_requests.remove(oldest);
        }
        self.stored_requests.push_back(request);
    }

    /// For `StoredRequestsHalved` and `StoredRequestsShort`.
    #[cfg(feature = "planted")]
    pub(crate) fn forget_beyond(&mut self, most: usize) {
        self.stored_requests.drain(..self.stored_requests.len().saturating_sub(most));
    }
}

impl Broker {
    pub(crate) fn plan_set_quota(
        &mut self,
        tenant: &str,
        device: &DeviceSelector,
        tier: Tier,
        guarantee: Option<Quantity>,
        limit: Option<Quantity>,
    ) -> Start {
        if guarantee.is_none() && limit.is_none() {
            return Err(Refusal::RequestInvalid {
                field: "limit",
                problem: "give a guarantee, a limit or both",
            });
        }
        let device = match device {
            DeviceSelector::All => QuotaDevice::All,
            DeviceSelector::One(text) => QuotaDevice::Present(
                self.find_device(text).ok_or_else(|| Refusal::DeviceUnknown { device: text.clone() })?,
            ),
        };
        self.plan_change(tenant, device, tier, QuotaEdit::Set { guarantee, limit })
    }

    pub(crate) fn plan_delete_quota(&mut self, tenant: &str, device: &DeviceSelector, tier: Tier) -> Start {
        let device = match device {
            DeviceSelector::All => QuotaDevice::All,
            DeviceSelector::One(text) => {
                self.find_device(text).map_or_else(|| QuotaDevice::Absent(text.clone()), QuotaDevice::Present)
            }
        };
        self.plan_change(tenant, device, tier, QuotaEdit::Delete)
    }

    fn plan_change(&mut self, tenant: &str, device: QuotaDevice, tier: Tier, edit: QuotaEdit) -> Start {
        if !name::is_valid(tenant) {
            return Err(Refusal::NameInvalid { field: "tenant", name: tenant.to_owned() });
        }
        if !self.ledger.places().any(|(place, _)| place.tier == tier) {
            return Err(Refusal::TierUnsupported { tier });
        }
        let tenant = self.tenants.intern(tenant);
        Ok(Started::Waiting(OpKind::Quota(QuotaChange { tenant, device, tier, edit })))
    }

    pub(crate) fn queue_quota(&mut self, op: OpId) {
        self.requests.quotas.waiting.push_back(op);
        self.start_next_quota();
    }

    /// Starts the next change, if none is being stored.
    fn start_next_quota(&mut self) {
        while self.requests.quotas.storing.is_none() && self.requests.quotas.making_room.is_none() {
            let Some(op) = self.requests.quotas.waiting.pop_front() else { return };
            let change = match self.requests.ops.get_mut(op).map(|op| &op.kind) {
                Some(OpKind::Quota(change)) => change.clone(),
                Some(OpKind::Standing(change)) => {
                    let change = *change;
                    self.store_standing(op, change);
                    continue;
                }
                _ => continue,
            };
            match self.check_change(&change) {
                Ok((quota, plan)) if plan.is_empty() => self.store_quota(op, change, quota),
                Ok((_, plan)) => {
                    self.requests.quotas.making_room = Some(op);
                    if !self.make_room_for_quota(op, plan) {
                        self.resume_quota(op);
                    }
                }
                Err(refusal) => self.finish(op, Err(refusal)),
            }
        }
    }

    /// Checks a change again, ahead of all others, after the extents that it waited for have left.
    pub(crate) fn resume_quota(&mut self, op: OpId) {
        if self.requests.quotas.making_room == Some(op) {
            self.requests.quotas.making_room = None;
            self.requests.quotas.waiting.push_front(op);
            self.start_next_quota();
        }
    }

    /// The quota to store, if it can be kept, and the plan of what has to leave for it.
    fn check_change(&self, change: &QuotaChange) -> Result<(Option<Quota>, RoomPlan), Refusal> {
        let book = self.ledger.quotas();
        let stored = book.get(change.tenant, &change.device, change.tier);
        let quota = match change.edit {
            QuotaEdit::Delete if stored.is_none() => {
                let tenant = self.tenants.name(change.tenant).to_owned();
                return Err(Refusal::QuotaNotFound { tenant, device: self.device_text(&change.device) });
            }
            QuotaEdit::Delete => None,
            QuotaEdit::Set { guarantee, limit } => {
                let base = stored.unwrap_or_else(|| match change.device {
                    QuotaDevice::Present(device) => {
                        book.effective(change.tenant, Place { device, tier: change.tier }).0
                    }
                    _ => book.default_quota(change.tier),
                });
                planted!(self, StoredAsDefault => base = book.default_quota(change.tier));
                Some(Quota {
                    guarantee: guarantee.unwrap_or(base.guarantee),
                    limit: limit.unwrap_or(base.limit),
                })
            }
        };
        let after = self.book_after(change, quota);
        let mut room = RoomPlan::default();
        for (place, balances) in self.ledger.places().filter(|(place, _)| place.tier == change.tier) {
            let account = after.new_account(change.tenant, place, balances.share());
            let before = book.new_account(change.tenant, place, balances.share());
            if (account.guarantee, account.limit) == (before.guarantee, before.limit) {
                continue;
            }
            if account.guarantee > account.limit {
                let problem = format!("{} is above the limit of {}", account.guarantee, account.limit);
                let quantity = account.guarantee.get().to_string();
                return Err(Refusal::QuantityInvalid { field: "guarantee", quantity, problem });
            }
            let unbacked = self.ledger.overcommitment(change.tenant, place, account.guarantee);
            let chosen = self.choose_for_guarantee(change.tenant, place, account.guarantee);
            if let (Some(committed), None) = (unbacked, &chosen) {
                return Err(Refusal::GuaranteeUnbacked {
                    tenant: self.tenants.name(change.tenant).to_owned(),
                    device: self.uuid(place.device).to_owned(),
                    tier: place.tier,
                    guarantee: account.guarantee,
                    capacity: balances.capacity(),
                    committed,
                });
            }
            if let Some(chosen) = chosen {
                room.awaited.extend(chosen.awaited);
                room.given_up.extend(chosen.given_up);
                room.victims.extend(chosen.victims);
            }
        }
        Ok((quota, room))
    }

    fn book_after(&self, change: &QuotaChange, quota: Option<Quota>) -> QuotaTable {
        let mut book = self.ledger.quotas().clone();
        book.set(change.tenant, change.device.clone(), change.tier, quota);
        book
    }

    /// Reserves the larger guarantee, and has everything stored.
    fn store_quota(&mut self, op: OpId, change: QuotaChange, quota: Option<Quota>) {
        let book = self.book_after(&change, quota);
        let places: Vec<_> =
            self.ledger.places().map(|(place, balances)| (place, balances.share())).collect();
        for (place, share) in places {
            self.ledger.stage_guarantee(
                change.tenant,
                place,
                book.new_account(change.tenant, place, share).guarantee,
            );
        }
        // Waiters of the tenant may use what is reserved for it.
        self.follow_ups.push(Fact::QuotaStaged);
        let (device, tier) = (self.device_text(&change.device), change.tier);
        let stored = match quota {
            Some(_) => StoredChange::QuotaSet { device, tier },
            None => StoredChange::QuotaDeleted { device, tier },
        };
        let request = self.request_of(op, change.tenant, stored);
        planted!(self, StoredRequestLost => request = None);
        let quotas = self.stored_rows(&book);
        planted!(self, AbsentQuotaLost => quotas = self.without_absent(quotas));
        planted!(self, OtherQuotaChanged => quotas = self.changed_for_all(quotas, change.tier, quota));
        let tenants = self.stored_tenants(None);
        planted!(self, StandingUnstored => tenants = Vec::new());
        self.store(Storing { op, change: Change::Quota(change, quota), request }, quotas, tenants);
        planted!(self, QuotaAnsweredUnstored => if quota.is_none() { self.finish(op, Ok(Outcome::QuotaDeleted)) });
    }

    /// The rows of quotas to store.
    pub(super) fn stored_rows(&self, book: &QuotaTable) -> Vec<StoredQuota> {
        let row = |(tenant, device, tier, quota): (TenantId, &QuotaDevice, Tier, Quota)| StoredQuota {
            tenant: self.tenants.name(tenant).to_owned(),
            device: self.device_text(device),
            tier,
            guarantee: quota.guarantee,
            limit: quota.limit,
        };
        book.iter().map(row).collect()
    }

    /// Has everything stored, with a change that comes into force once it is.
    pub(super) fn store(&mut self, storing: Storing, quotas: Vec<StoredQuota>, tenants: Vec<StoredTenant>) {
        let requests = self.requests.quotas.stored_requests.iter().chain(&storing.request).cloned().collect();
        self.requests.quotas.storing = Some(storing);
        self.push_command(Command::StoreQuotas(StoredQuotas { quotas, tenants, requests }));
    }

    pub(super) fn request_of(
        &mut self,
        op: OpId,
        tenant: TenantId,
        change: StoredChange,
    ) -> Option<StoredRequest> {
        let (key, requester) = self.requests.ops.get_mut(op).map(|op| (op.key, op.requester))?;
        let (Some(key), Requester::Operator { uid }) = (key, requester) else { return None };
        let tenant = self.tenants.name(tenant).to_owned();
        Some(StoredRequest { uid, id: key.id, fingerprint: key.fingerprint, tenant, change })
    }

    pub(crate) fn on_quotas_stored(&mut self, result: Result<(), String>) {
        let Some(Storing { op, change, request }) = self.requests.quotas.storing.take() else {
            return;
        };
        let outcome = match result {
            Ok(()) => {
                let outcome = match change {
                    Change::Quota(change, quota) => self.apply_quota(change, quota),
                    Change::Standing(tenant, standing) => self.apply_standing(tenant, standing),
                };
                request.into_iter().for_each(|request| self.requests.quotas.recall(request));
                planted!(self, StoredRequestsHalved => self.requests.quotas.forget_beyond(512));
                planted!(self, StoredRequestsShort => self.requests.quotas.forget_beyond(1023));
                Ok(outcome)
            }
            Err(problem) => {
                if let Change::Quota(change, quota) = change {
                    planted!(self, UnstoredQuotaApplied => self.apply_unstored(&change, quota));
                    let _ = quota;
                    self.ledger.apply_quotas(change.tenant);
                }
                Err(Refusal::StoreFailed { problem })
            }
        };
        self.follow_ups.push(Fact::QuotaChanged);
        self.finish(op, outcome);
        self.start_next_quota();
    }

    fn apply_quota(&mut self, change: QuotaChange, quota: Option<Quota>) -> Outcome {
        self.ledger.set_quota(change.tenant, change.device.clone(), change.tier, quota);
        self.trim_to_limit(change.tenant);
        self.refuse_infeasible();
        self.follow_ups.push(Fact::QuotaStaged);
        self.note_quota(&change, quota);
        match quota {
            Some(_) => Outcome::QuotaSet { tenant: change.tenant, device: change.device, tier: change.tier },
            None => Outcome::QuotaDeleted,
        }
    }

    /// The outcome of a request that was stored, to be remembered after a restart.
    pub(crate) fn stored_outcome(&mut self, request: &StoredRequest) -> (Method, Outcome) {
        let tenant = self.tenants.intern(&request.tenant);
        match &request.change {
            StoredChange::QuotaDeleted { .. } => (Method::DeleteQuota, Outcome::QuotaDeleted),
            StoredChange::QuotaSet { device, tier } => {
                let device = quota_device(&self.config, device);
                (Method::SetQuota, Outcome::QuotaSet { tenant, device, tier: *tier })
            }
            StoredChange::TenantSet => (Method::SetTenant, Outcome::TenantChanged(tenant)),
            StoredChange::TenantReset => (Method::ResetTenant, Outcome::TenantChanged(tenant)),
        }
    }
}
