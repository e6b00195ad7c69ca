//! Each write of quotas makes the oldest accepted change of the earlier content, and has the ids of the requests
//! that made the last changes. Rows of absent devices stay, and the classes and weights of tenants.

use std::collections::{BTreeMap, VecDeque};

use broker_core::{
    DeviceSelector, OperatorRequest, QuotaView, Standing, StandingSource, StoredChange, StoredQuotas,
    StoredRequest, StoredTenant, TenantClass, TenantView, TenantWeight, Tier, invariants::STORED,
};
use vramd_types::{Bytes, Quantity};

use crate::oracle::{
    Oracle,
    facts::{Asked, Call, QuotaTable, Tenant, quota_table},
    requests::repeats::REMEMBERED,
};

/// Tenant, device and tier of a row.
type RowKey = (String, String, Tier);

/// Stored requests, the oldest first: the last ones of each uid.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredRequests(VecDeque<StoredRequest>);

impl StoredRequests {
    pub(crate) fn of(stored: &StoredQuotas) -> Self {
        let mut requests = Self::default();
        stored.requests.iter().cloned().for_each(|request| requests.push(request));
        requests
    }

    pub(crate) fn push(&mut self, request: StoredRequest) {
        let of_uid = |it: &StoredRequest| it.uid == request.uid;
        if self.0.iter().filter(|it| of_uid(it)).count() >= REMEMBERED
            && let Some(oldest) = self.0.iter().position(of_uid)
        {
            self.0.remove(oldest);
        }
        self.0.push_back(request);
    }
}

/// A change of quotas that is being stored.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    pub(crate) quotas: QuotaTable,
    standings: BTreeMap<String, Standing>,
    request: Option<StoredRequest>,
}

impl Oracle {
    /// Checks a write of quotas, and records it as under way.
    pub(crate) fn stage_quotas(&mut self, stored: &StoredQuotas) {
        let is_busy = self.facts.staged.is_some();
        self.expect(STORED, !is_busy, || "quotas are stored while others are being stored".to_owned());
        let oldest = self.facts.calls.values().filter(|call| !call.joined && is_change(call));
        let Some(call) = oldest.min_by_key(|call| call.arrived).cloned() else {
            return self.expect(STORED, false, || "quotas are stored without a request".to_owned());
        };
        let staged = self.staged_by(&call);
        let is = quota_table(stored);
        self.expect(STORED, is == staged.quotas && is.len() == stored.quotas.len(), || {
            format!("{:?} is stored for {call:?}, not {:?}", stored.quotas, staged.quotas)
        });
        let of_tenants = standings(&stored.tenants);
        let is_same = of_tenants == staged.standings && of_tenants.len() == stored.tenants.len();
        self.expect(STORED, is_same, || {
            format!("{:?} is stored for {call:?}, not {:?}", stored.tenants, staged.standings)
        });
        let requests = self.facts.stored_requests.0.iter().chain(&staged.request);
        let same = requests.eq(&stored.requests);
        self.expect(STORED, same, || {
            format!(
                "the {} requests that are stored with {call:?} are not the last ones",
                stored.requests.len()
            )
        });
        self.check_staged_guarantees(&staged.quotas);
        self.facts.staged = Some(staged);
        self.step.quotas_staged = true;
        self.facts.quotas.get_mut().clear();
    }

    /// Records the end of a write, good or bad.
    pub(crate) fn end_store(&mut self, well: bool) {
        let staged = self.facts.staged.take();
        self.facts.quotas.get_mut().clear();
        if let Some(Staged { quotas, standings, request }) = staged.filter(|_| well) {
            self.step.limits_changed = quotas != self.facts.quotas_in_force;
            self.facts.quotas_in_force = quotas;
            self.facts.standings = standings;
            request.into_iter().for_each(|request| self.facts.stored_requests.push(request));
            self.step.quotas_changed = true;
        }
    }

    /// The content that must be stored for a request.
    fn staged_by(&self, call: &Call) -> Staged {
        let mut quotas = self.facts.quotas_in_force.clone();
        let mut standings = self.facts.standings.clone();
        let Asked::Operator { uid, request } = &call.asked else {
            return Staged { quotas, standings, request: None };
        };
        let (tenant, change) = match request {
            OperatorRequest::SetQuota { tenant, device, tier, guarantee, limit } => {
                let key = (tenant.clone(), self.stored_device(device), *tier);
                let (guarantee_before, limit_before) = self.quota_before(&key);
                let row = (guarantee.unwrap_or(guarantee_before), limit.unwrap_or(limit_before));
                quotas.insert(key.clone(), row);
                (tenant, StoredChange::QuotaSet { device: key.1, tier: *tier })
            }
            OperatorRequest::DeleteQuota { tenant, device, tier } => {
                let key = (tenant.clone(), self.stored_device(device), *tier);
                quotas.remove(&key);
                (tenant, StoredChange::QuotaDeleted { device: key.1, tier: *tier })
            }
            OperatorRequest::SetTenant { tenant, class, weight, advice } => {
                let before = self.standing_of(tenant);
                let weight = weight.and_then(TenantWeight::new);
                let standing = Standing {
                    class: class.unwrap_or(before.class),
                    weight: weight.unwrap_or(before.weight),
                    advice: advice.unwrap_or(before.advice),
                };
                standings.insert(tenant.clone(), standing);
                (tenant, StoredChange::TenantSet)
            }
            OperatorRequest::ResetTenant { tenant } => {
                standings.remove(tenant);
                (tenant, StoredChange::TenantReset)
            }
            _ => return Staged { quotas, standings, request: None },
        };
        let request = call.key.map(|key| StoredRequest {
            uid: *uid,
            id: key.id,
            fingerprint: key.fingerprint,
            tenant: tenant.clone(),
            change,
        });
        Staged { quotas, standings, request }
    }

    /// The class, the weight and the permission for advice of a tenant: as operators have set them, or as configured.
    pub(crate) fn standing_of(&self, tenant: &str) -> Standing {
        let set = self.facts.standings.get(tenant).or_else(|| self.configured_standings.get(tenant));
        set.copied().unwrap_or_default()
    }

    pub(crate) fn class_of(&self, tenant: Tenant) -> TenantClass {
        self.standing_of(&self.facts.tenants[tenant]).class
    }

    /// Whether a reply or a notice shows what is in force.
    pub(crate) fn shows_standing(&self, view: &TenantView) -> bool {
        let is_set = self.facts.standings.contains_key(&view.tenant);
        view.standing == self.standing_of(&view.tenant) && is_set == (view.source == StandingSource::Operator)
    }

    /// The values that a request leaves as they are: those of the row, or of the row of all devices, or the
    /// defaults.
    fn quota_before(&self, key: &RowKey) -> (Quantity, Quantity) {
        let all = (key.0.clone(), "*".to_owned(), key.2);
        let book = &self.facts.quotas_in_force;
        let default = match key.2 {
            Tier::Device => self.default_limit,
            Tier::Host => self.default_host_limit,
            Tier::Disk => self.default_disk_limit,
        };
        book.get(key).or_else(|| book.get(&all)).copied().unwrap_or((Quantity::Bytes(Bytes::ZERO), default))
    }

    /// The device as it is stored: its UUID, or `*`.
    fn stored_device(&self, device: &DeviceSelector) -> String {
        match device {
            DeviceSelector::All => "*".to_owned(),
            DeviceSelector::One(text) => {
                self.facts.device_named(text).map_or(text, |at| &self.facts.places[at].uuid).clone()
            }
        }
    }

    /// Checks that every stored row of an absent device is shown, and no other.
    pub(crate) fn check_absent_rows(&mut self, rows: &[QuotaView]) {
        let is_absent = |device: &str| device != "*" && self.facts.device_named(device).is_none();
        let shown: QuotaTable = rows
            .iter()
            .filter(|row| row.device_absent)
            .map(|row| ((row.tenant.clone(), row.device.clone(), row.tier), (row.guarantee, row.limit)))
            .collect();
        let stored = self.facts.quotas_in_force.iter().filter(|((_, device, _), _)| is_absent(device));
        let stored: QuotaTable = stored.map(|(key, row)| (key.clone(), *row)).collect();
        self.expect(STORED, shown == stored, || {
            format!("quotas of absent devices are shown as {shown:?}, and {stored:?} are stored")
        });
    }

    /// Whether there is a stored quota.
    pub(crate) fn is_stored(&self, tenant: &str, device: &DeviceSelector, tier: Tier) -> bool {
        self.facts.quotas_in_force.contains_key(&(tenant.to_owned(), self.stored_device(device), tier))
    }

    /// Whether a reply shows the quota as it is stored now.
    pub(crate) fn shows_stored(&self, view: &QuotaView) -> bool {
        let key = (view.tenant.clone(), view.device.clone(), view.tier);
        self.facts.quotas_in_force.get(&key) == Some(&(view.guarantee, view.limit))
    }
}

/// The rows of tenants by name.
pub(crate) fn standings(rows: &[StoredTenant]) -> BTreeMap<String, Standing> {
    rows.iter().map(|row| (row.tenant.clone(), row.standing)).collect()
}

fn is_change(call: &Call) -> bool {
    matches!(
        &call.asked,
        Asked::Operator {
            request: OperatorRequest::SetQuota { .. }
                | OperatorRequest::DeleteQuota { .. }
                | OperatorRequest::SetTenant { .. }
                | OperatorRequest::ResetTenant { .. },
            ..
        }
    )
}
