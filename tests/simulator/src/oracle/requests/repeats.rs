//! A repeated request does nothing and is answered like the first. A request that reuses an id with other
//! content is refused.

use std::collections::{BTreeMap, VecDeque};

use broker_core::{
    CallId, ClientRequest, OperatorRequest, Refusal, Reply, RequestKey, StoredChange, StoredQuotas,
    invariants::REPEATS,
};
use vramd_types::SessionId;

use crate::oracle::{
    Oracle, Outcome,
    facts::{Asked, Call},
};

/// How many requests of one session, or of one uid, the daemon promises to recognise.
pub(crate) const REMEMBERED: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Requester {
    Session(SessionId),
    Operator(u32),
}

/// Requester, method and id.
type RequestName = (Requester, u8, [u8; 16]);

#[derive(Debug)]
struct Entry {
    fingerprint: [u8; 16],
    /// Number of the event in which it arrived.
    since: u64,
    /// The answer; `None` while it is under way.
    done: Option<String>,
}

/// Requests by their ids: those that the daemon has to recognise.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    entries: BTreeMap<RequestName, Entry>,
    /// Method and id of each requester's requests, the oldest first.
    order: BTreeMap<Requester, VecDeque<(u8, [u8; 16])>>,
}

/// The call that is being handled: new, or a repetition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Expected {
    #[default]
    New,
    Running,
    Done,
    Reused,
}

impl Expected {
    pub(crate) const fn is_new(self) -> bool {
        matches!(self, Self::New)
    }
}

impl Repeats {
    /// Forgets all requests but those that were stored with the quotas.
    pub(crate) fn restart(&mut self, stored: &StoredQuotas) {
        *self = Self::default();
        for row in &stored.requests {
            let tenant = &row.tenant;
            let (method, done) = match &row.change {
                StoredChange::QuotaDeleted { .. } => (SET_QUOTA + 1, "QuotaDeleted".to_owned()),
                StoredChange::QuotaSet { device, .. } => (SET_QUOTA, format!("QuotaSet {tenant} {device}")),
                StoredChange::TenantSet => (SET_QUOTA + 15, format!("TenantChanged {tenant}")),
                StoredChange::TenantReset => (SET_QUOTA + 16, format!("TenantChanged {tenant}")),
            };
            let requester = Requester::Operator(row.uid);
            let entry = Entry { fingerprint: row.fingerprint, since: 0, done: Some(done) };
            self.insert((requester, method, row.id), entry);
            self.forget_oldest(requester);
        }
    }

    fn insert(&mut self, name: RequestName, entry: Entry) {
        if self.entries.insert(name, entry).is_none() {
            self.order.entry(name.0).or_default().push_back((name.1, name.2));
        }
    }

    /// Forgets a refused request. If it waited before it was refused, in the same event, it has taken the place
    /// of the oldest one.
    fn remove(&mut self, name: RequestName) {
        self.forget_oldest(name.0);
        self.entries.remove(&name);
        if let Some(order) = self.order.get_mut(&name.0)
            && let Some(at) = order.iter().rposition(|it| *it == (name.1, name.2))
        {
            order.remove(at);
        }
    }

    /// Forgets the oldest requests of a requester beyond those that the daemon remembers.
    fn forget_oldest(&mut self, of: Requester) {
        let Some(order) = self.order.get_mut(&of) else { return };
        while order.len() > REMEMBERED {
            if let Some((method, id)) = order.pop_front() {
                self.entries.remove(&(of, method, id));
            }
        }
    }
}

const SET_QUOTA: u8 = 5;

fn request_name(call: &Call) -> Option<(RequestName, [u8; 16])> {
    let key = call.key?;
    let (requester, method) = match &call.asked {
        Asked::Client { session, request, .. } => {
            let method = match request {
                ClientRequest::AllocateBatch { .. } => 0,
                ClientRequest::FreeBatch(_) => 1,
                ClientRequest::Attach(_) | ClientRequest::AttachUnpinned(_) => 2,
                ClientRequest::Detach(_) => 3,
                ClientRequest::Seal(_) => 4,
                ClientRequest::Load { .. } => SET_QUOTA + 11,
                ClientRequest::Advise(..) => SET_QUOTA + 12,
                ClientRequest::CancelBatch(_) => SET_QUOTA + 13,
                ClientRequest::Evict(..) => SET_QUOTA + 18,
            };
            (Requester::Session(*session), method)
        }
        Asked::Operator { uid, request } => {
            let method = match request {
                OperatorRequest::SetQuota { .. } => SET_QUOTA,
                OperatorRequest::DeleteQuota { .. } => SET_QUOTA + 1,
                OperatorRequest::EndSession { .. } => SET_QUOTA + 2,
                OperatorRequest::FreeAllocation(_) => SET_QUOTA + 3,
                OperatorRequest::Drain { .. } => SET_QUOTA + 4,
                OperatorRequest::RevokeMappings { .. } => SET_QUOTA + 5,
                OperatorRequest::MoveParts { .. } => SET_QUOTA + 6,
                OperatorRequest::CancelWait { .. } => SET_QUOTA + 7,
                OperatorRequest::HoldParts { .. } => SET_QUOTA + 8,
                OperatorRequest::WriteBackParts { .. } => SET_QUOTA + 9,
                OperatorRequest::ChangeSettings(_) => SET_QUOTA + 10,
                OperatorRequest::CancelPrefetch { .. } => SET_QUOTA + 14,
                OperatorRequest::YieldTurn { .. } => SET_QUOTA + 18,
                OperatorRequest::SetTenant { .. } => SET_QUOTA + 15,
                OperatorRequest::ResetTenant { .. } => SET_QUOTA + 16,
                OperatorRequest::AdviseParts { .. } => SET_QUOTA + 17,
            };
            (Requester::Operator(*uid), method)
        }
    };
    Some(((requester, method, key.id), key.fingerprint))
}

/// The part of a reply that must be the same each time.
fn summary(reply: &Reply) -> String {
    match reply {
        Reply::Allocated(views) => format!("{:?}", views.iter().map(|view| view.id).collect::<Vec<_>>()),
        Reply::Attached(view) | Reply::Sealed(view) | Reply::Advised(view) => view.id.to_string(),
        Reply::QuotaSet(view) => format!("QuotaSet {} {}", view.tenant, view.device),
        Reply::QuotaDeleted => "QuotaDeleted".to_owned(),
        Reply::TenantChanged(view) => format!("TenantChanged {}", view.tenant),
        Reply::WaitCancelled => "WaitCancelled".to_owned(),
        Reply::PrefetchCancelled => "PrefetchCancelled".to_owned(),
        Reply::TurnAsked => "TurnAsked".to_owned(),
        Reply::SettingsChanged(_) => "SettingsChanged".to_owned(),
        Reply::Drained { .. } => "Drained".to_owned(),
        Reply::Released(_)
        | Reply::SessionEnded { .. }
        | Reply::AllocationFreed { .. }
        | Reply::MappingsRevoked { .. }
        | Reply::PartsMoved { .. }
        | Reply::PartsHeld { .. } => {
            format!("{reply:?}")
        }
    }
}

impl Oracle {
    /// Looks up the call's id. Returns the refusal that it must get if the id was used for something else.
    pub(crate) fn recall(&mut self, call: &Call) -> Option<Refusal> {
        let (name, fingerprint) = request_name(call)?;
        self.step.repeat = match self.repeats.entries.get(&name) {
            None => {
                self.repeats.insert(name, Entry { fingerprint, since: call.arrived, done: None });
                Expected::New
            }
            Some(entry) if entry.fingerprint != fingerprint => Expected::Reused,
            Some(Entry { done: None, .. }) => Expected::Running,
            Some(_) => Expected::Done,
        };
        (self.step.repeat == Expected::Reused).then_some(Refusal::RequestIdReused { request_id: name.2 })
    }

    /// Checks the answer to a call with an id, and remembers it.
    pub(crate) fn remember(&mut self, id: CallId, call: &Call, outcome: &Outcome) {
        let Some((name, fingerprint)) = request_name(call) else { return };
        let is_current = self.step.call.as_ref().is_some_and(|(current, _)| *current == id);
        let repeat = if is_current { self.step.repeat } else { Expected::Running };
        if repeat == Expected::Reused || (is_current && self.step.expected.is_some()) {
            return;
        }
        if let (Ok(reply), None) = (outcome, self.repeats.entries.get(&name)) {
            // It took so long that it was forgotten meanwhile, and is remembered anew.
            let done = Some(summary(reply));
            self.repeats.insert(name, Entry { fingerprint, since: call.arrived, done });
            return self.repeats.forget_oldest(name.0);
        }
        let entry = self.repeats.entries.get_mut(&name);
        // The id may have been given to a later request once this one was forgotten.
        let entry = entry.filter(|entry| entry.fingerprint == fingerprint && entry.since <= call.arrived);
        let Some(entry) = entry else { return };
        match (outcome, &entry.done) {
            (Ok(reply), None) => entry.done = Some(summary(reply)),
            (Ok(reply), Some(first)) => {
                let (first, again) = (first.clone(), summary(reply));
                self.expect(REPEATS, first == again, || format!("{id:?}: {again} after {first}"));
            }
            // The first request and all that joined it are refused together. A later one may find the queue
            // full.
            (Err(_), None) if !is_current || repeat == Expected::New => {
                self.repeats.remove(name);
                self.recall_as_new(name);
            }
            (Err(Refusal::QueueFull { .. }), None) => {}
            (Err(refusal), None) => {
                let detail =
                    format!("{id:?} repeats a request that is under way, and is refused: {refusal:?}");
                self.expect(REPEATS, false, || detail);
            }
            (Err(Refusal::AllocationNotFound { .. }), Some(_)) => {}
            (Err(refusal), Some(first)) => {
                let detail = format!("{id:?} is refused with {refusal:?} after {first}");
                // Requests that joined the first are answered with it; only later ones repeat a finished
                // request.
                self.expect(REPEATS, !is_current, || detail);
            }
        }
    }

    /// Recalls the current call as new: the one that it would repeat was refused first, since its deadline passed just
    /// then.
    fn recall_as_new(&mut self, refused: RequestName) {
        let repeats = matches!(self.step.repeat, Expected::Running | Expected::Reused);
        let unanswered = self.step.answer.is_none() && repeats;
        let Some((id, mut call)) = self.step.call.clone().filter(|_| unanswered) else { return };
        if request_name(&call).is_some_and(|(name, _)| name == refused) {
            self.step.expected = self.recall(&call);
            call.joined = false;
            self.facts.calls.insert(id, call.clone());
            self.step.call = Some((id, call));
        }
    }

    /// Checks that a repeated request made nothing, and that a finished one was answered at once.
    pub(crate) fn check_repeat(&mut self) {
        // A waiting batch may be made in the same event.
        let created = if self.step.retried_tenant.is_none() { self.step.created_count } else { 0 };
        let repeat = self.step.repeat;
        let asked = self.step.call.as_ref().filter(|_| repeat.is_new());
        if let Some(((requester, ..), _)) = asked.and_then(|(_, call)| request_name(call)) {
            self.repeats.forget_oldest(requester);
        }
        self.expect(REPEATS, repeat.is_new() || created == 0, || {
            format!("a repeated request made {created} extents")
        });
        let answered = self.step.answer.is_some();
        self.expect(REPEATS, repeat != Expected::Done || answered, || {
            "a repeated request that is done is not answered".to_owned()
        });
    }

    /// Whether the daemon has to recognise a client's request by this key.
    pub(crate) fn remembers(&self, key: &RequestKey) -> bool {
        let mut names = self.repeats.entries.iter().map(|((requester, _, id), _)| (requester, id));
        names.any(|(requester, id)| matches!(requester, Requester::Session(_)) && *id == key.id)
    }

    /// The oldest change of quotas by which the daemon has to recognise an operator, if that is its oldest
    /// request; and whether it deletes a quota.
    pub(crate) fn oldest_of_operator(&self, uid: u32) -> Option<(RequestKey, bool)> {
        let requester = Requester::Operator(uid);
        let (method, id) =
            *self.repeats.order.get(&requester).filter(|it| it.len() == REMEMBERED)?.front()?;
        let fingerprint = self.repeats.entries.get(&(requester, method, id))?.fingerprint;
        let is_change = method == SET_QUOTA || method == SET_QUOTA + 1;
        is_change.then_some((RequestKey { id, fingerprint }, method > SET_QUOTA))
    }
}
