//! Loaded memory: consecutive pieces of a file, which are charged to no tenant and never written to. An
//! allocation is sealed once all of it was read, and leaves its device for its file without a copy.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{
    AllocationSpec, AllocationState, AllocationView, Broker, CallId, Cause, ClientRequest, FileId, FileSpan,
    PartRef, Target, Tier,
    invariants::{CALLS, EXTENT_USE, FILES, LOADED},
};
use vramd_types::{Bytes, ExtentId, SessionId};

use crate::oracle::{
    Oracle,
    facts::{AllocationFacts, Asked, BackingFacts, ExtentFacts, ExtentPhase, LoadFacts, SessionFacts},
};
use crate::world::Content;

/// A piece of a file that is to become an extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) id: ExtentId,
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) size: u64,
}

impl Oracle {
    /// Records a piece that is opened for the load that is being requested.
    pub(crate) fn record_open(&mut self, opened: Opened, broker: &Broker) {
        let Opened { id, size, .. } = opened;
        self.record_extent_id(id);
        self.step.ordered_count += 1;
        let owner = self.record_new_memory(id);
        let part = broker.part_of_extent(id);
        let view = part.and_then(|part| broker.show(&Target::Id(part.allocation)).ok());
        let device = view.and_then(|view| self.device_of(&view));
        let place = device.and_then(|device| self.facts.files_of(device));
        let Some((((part, owner), place), device)) = part.zip(owner).zip(place).zip(device) else {
            return self
                .expect(EXTENT_USE, false, || format!("{id} is opened without a tenant or without a place"));
        };
        let touched =
            [Some(device), self.facts.place(device, Tier::Host), self.facts.place(device, Tier::Disk)];
        self.step.changed_accounts.extend(touched.into_iter().flatten().map(|place| (owner, place)));
        self.facts.files_loaded.insert((owner, opened.file));
        self.check_next_piece(part, opened);
        let extent = ExtentFacts {
            place,
            size,
            owner,
            phase: ExtentPhase::Creating,
            part: Some(part),
            detached: false,
            copied: false,
            sent_to: Vec::new(),
            mappers: Default::default(),
            being_read: false,
            written_back: false,
            unacknowledged: false,
            reused: false,
            unwritten: false,
            debts: Vec::new(),
            in_file: true,
        };
        self.facts.extents.insert(id, extent);
    }

    /// Checks that a piece is of the requested file and begins where the one before it ended.
    fn check_next_piece(&mut self, part: PartRef, opened: Opened) {
        let Some((call, asked)) = self.step.call.clone() else { return };
        let Asked::Client { session, request: ClientRequest::Load { spec, file: span }, .. } = asked.asked
        else {
            return;
        };
        let new = LoadFacts { call, by: session, parts: Default::default(), bytes: 0 };
        let load = self.facts.loading.entry(part.allocation).or_insert(new);
        let begins = span.offset.get().saturating_add(load.bytes);
        let is_next = usize::try_from(part.part.0) == Ok(load.parts.len());
        load.parts.insert(part.part.0, opened.id);
        load.bytes += opened.bytes;
        let fits = opened.bytes <= opened.size && load.bytes <= spec.size.get();
        let of_it = (opened.file, opened.offset) == (span.file, begins);
        self.expect(LOADED, is_next && fits && of_it, || {
            format!("{part:?} is opened as {opened:?}; {span:?} of {} bytes was requested", spec.size)
        });
    }

    /// Checks a load's reply: the allocation is sealed. The session maps none of it, and is sent none, until
    /// it attaches it.
    pub(crate) fn check_loaded(
        &mut self,
        by: SessionId,
        (spec, span): (&AllocationSpec, &FileSpan),
        view: &AllocationView,
        broker: &Broker,
    ) {
        let id = view.id;
        if self.facts.allocations.contains_key(&id) {
            return;
        }
        self.record_allocation_id(id);
        let Some(load) = self.facts.loading.remove(&id) else {
            return self.expect(CALLS, false, || format!("{id} is loaded, but no file was opened for it"));
        };
        let read = self.facts.digests.get(&id).copied();
        let whole = load.by == by && load.bytes == spec.size.get() && load.parts.len() == view.parts.len();
        self.expect(CALLS, whole, || format!("{id} is loaded as {load:?}; {spec:?} was requested"));
        self.expect(LOADED, read.is_some() && view.digest == read, || {
            format!("{id} is sealed and was not read")
        });
        let rounded = Bytes::checked_sum(view.parts.iter().map(|part| part.size));
        let costs = (view.charged, Some(view.in_file)) != (Bytes::ZERO, rounded) || view.file.is_none();
        self.expect(FILES, !costs, || format!("{id} is file-backed, and is shown as {view:?}"));
        for shown in &view.parts {
            let part = PartRef { allocation: id, part: shown.index };
            let begins = span.offset.saturating_add(shown.offset);
            let content = Content::File { file: span.file, offset: begins };
            self.facts.contents.insert(part, content);
        }
        let made = self.new_allocation_facts(by, spec, view);
        let allocation = AllocationFacts {
            uninitialized: false,
            discardable: false,
            loaded: true,
            sealed: true,
            parts: load.parts,
            ..made
        };
        self.facts.allocations.insert(id, allocation);
        self.learn_name(id, broker);
        self.check_placement(by, spec, view);
        let is = broker.is_unpinned(id);
        self.expect(LOADED, is == spec.unpinned, || format!("{id} is loaded with unpinned = {is}"));
    }

    /// Checks that what was made for a failed load is being freed.
    pub(crate) fn check_failed_load(&mut self, call: CallId, broker: &Broker) {
        let (of_it, others) =
            std::mem::take(&mut self.facts.loading).into_iter().partition(|(_, it)| it.call == call);
        self.facts.loading = others;
        for id in BTreeMap::into_keys(of_it) {
            let state = broker.show(&Target::Id(id)).map(|view| view.state);
            let leaves = matches!(state, Err(_) | Ok(AllocationState::Freeing));
            self.expect(LOADED, leaves, || format!("{id} could not be loaded, and remains: {state:?}"));
        }
    }

    /// Checks that loaded memory is sent only to sessions that attached it, or do so now.
    pub(crate) fn expect_attached(&mut self, to: SessionId, part: PartRef) {
        let loaded = self.facts.allocations.get(&part.allocation).is_some_and(|it| it.loaded);
        let has = |session: &SessionFacts| session.owed.contains(&part) || session.away.contains(&part);
        let attaches = self.step.call.as_ref().is_some_and(|(_, call)| match &call.asked {
            Asked::Client { session, request: ClientRequest::Attach(_), .. } => *session == to,
            _ => false,
        });
        let attached = attaches || self.facts.sessions.get(&to).is_some_and(has);
        self.expect(LOADED, !loaded || attached, || {
            format!("{part:?} is sent to {to}, which has not attached it")
        });
    }

    pub(crate) fn expect_not_file(&mut self, to: ExtentId) {
        let in_file = self.facts.extents.get(&to).is_some_and(|extent| extent.in_file);
        self.expect(FILES, !in_file, || format!("{to} is a piece of a file, and is the target of a copy"));
    }

    /// Checks that a part that left its device for its file was not copied.
    pub(crate) fn check_departure_to_file(&mut self, part: PartRef, tier: Tier, copied: bool) {
        let leaves = tier == Tier::Disk && self.has_file(part);
        self.expect(LOADED, !(leaves && copied), || format!("{part:?} left for its file with a copy"));
    }

    /// Checks that a file-backed part gets memory below its device only in the host, and only for an
    /// operator or its owner.
    pub(crate) fn check_memory_below(&mut self, part: PartRef, to: ExtentId, tier: Tier, broker: &Broker) {
        if !self.has_file(part) && !self.lies_in_file(part) {
            return;
        }
        let by_hand = broker
            .moves()
            .iter()
            .any(|it| it.extent == to && matches!(it.cause, Cause::Operator | Cause::Owner));
        self.expect(LOADED, by_hand && tier == Tier::Host, || {
            format!("{part:?} is file-backed, and {to} is made for it in {tier}")
        });
    }

    /// Number of a tenant's allocations that are being read from files, or are to be.
    pub(crate) fn loads_under_way(&self, tenant: Option<usize>) -> usize {
        let of_session = |by| self.facts.sessions.get(by).map(|session| session.tenant);
        let loading = self.facts.loading.iter().filter(|(_, load)| of_session(&load.by) == tenant);
        let read = self.facts.extents.values().filter(|extent| {
            let is_read = extent.being_read || extent.phase == ExtentPhase::Creating;
            extent.in_file && is_read && Some(extent.owner) == tenant
        });
        let allocations = read.filter_map(|extent| extent.part).map(|part| part.allocation);
        loading.map(|(id, _)| *id).chain(allocations).collect::<BTreeSet<_>>().len()
    }

    fn lies_in_file(&self, part: PartRef) -> bool {
        let allocation = self.facts.allocations.get(&part.allocation);
        let extent = allocation.and_then(|it| self.facts.extents.get(it.parts.get(&part.part.0)?));
        extent.is_some_and(|extent| extent.in_file)
    }

    /// Whether a part on its device has a piece of a file as its backing.
    fn has_file(&self, part: PartRef) -> bool {
        let below = match self.facts.backings.get(&part) {
            Some(BackingFacts::Kept(id)) => self.facts.extents.get(id),
            _ => None,
        };
        below.is_some_and(|extent| extent.in_file)
    }
}
