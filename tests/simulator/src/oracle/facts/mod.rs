//! The oracle's knowledge of the broker, from events and commands alone. It shares no code with the core:
//! balances are plain integers, added to and subtracted from as events and commands pass.

mod memory;
mod sessions;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use broker_core::{
    CallId, ChannelId, ClientRequest, FileId, Hello, OperatorRequest, PartRef, Peer, Pressure, RequestKey,
    Standing, StoredQuotas, Tier, Time, WaitView,
};
use vramd_types::{AllocationId, CopyClass, ExtentId, PartIndex, Quantity, SessionId, Shares, WaitId};

use super::{
    accounting::{
        managed::ManagedFacts,
        managed_orders::BatchFacts,
        stored::{Staged, StoredRequests},
    },
    line::{
        entries::{BatchKey, Failed},
        needs::WaiterNeeds,
    },
    links::shares::{ClassWaits, MissingOnBus},
    mappings::LinkFacts,
    prefetch::{PrefetchFacts, SpeculationFacts},
    sessions::silences::Silences,
    turns::AllTurns,
};
use crate::world::Content;
pub(crate) use memory::{
    AllocationFacts, BackingFacts, ExtentFacts, ExtentPhase, LoadFacts, MoveFacts, WriteBackFacts,
};
pub(crate) use sessions::{FenceFacts, MapPhase, PinFacts, RevocationFacts, SessionFacts};

/// A tenant, as index into [`Facts::tenants`].
pub(crate) type Tenant = usize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) reserved: u64,
    pub(crate) settled: u64,
    pub(crate) unreturned: u64,
}

impl Balance {
    pub(crate) const fn charged(self) -> u64 {
        self.reserved + self.settled + self.unreturned
    }
}

/// A tier of a device.
#[derive(Clone, Debug)]
pub(crate) struct PlaceFacts {
    /// The UUID of the device, for the tiers below it too.
    pub(crate) uuid: String,
    pub(crate) tier: Tier,
    pub(crate) share: u64,
    pub(crate) context: u64,
    pub(crate) unbrokered: u64,
    pub(crate) contexts: u64,
    /// Upper bound of the capacity after the driver ran out of memory. `None` once a survey has reported.
    pub(crate) available_max: Option<u64>,
    /// A survey is under way; and it began before the driver ran out of memory.
    pub(crate) surveying: bool,
    pub(crate) survey_outdated: bool,
    /// After this many surveys no waiter waits only because the driver ran out of memory.
    pub(crate) surveys_left: u8,
    /// The files of clients: the ledger charges nothing there.
    pub(crate) in_files: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Client { session: SessionId, peer: Peer, request: ClientRequest },
    Operator { uid: u32, request: OperatorRequest },
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) asked: Asked,
    pub(crate) key: Option<RequestKey>,
    pub(crate) at: Time,
    /// The number of the event.
    pub(crate) arrived: u64,
    /// It repeats a call that is under way.
    pub(crate) joined: bool,
    /// The allocation that had the name that the call gives, when it arrived.
    pub(crate) named: Option<AllocationId>,
}

/// Guarantee and limit, by tenant, device (UUID or `*`) and tier.
pub(crate) type QuotaTable = BTreeMap<(String, String, Tier), (Quantity, Quantity)>;

pub(crate) fn quota_table(stored: &StoredQuotas) -> QuotaTable {
    let row = |row: &broker_core::StoredQuota| {
        ((row.tenant.clone(), row.device.clone(), row.tier), (row.guarantee, row.limit))
    };
    stored.quotas.iter().map(row).collect()
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) now: Time,
    /// How long a session may take to answer a packet.
    pub(crate) answer_timeout: Duration,
    pub(crate) tenants: Vec<String>,
    /// The devices in their order, then the places below them.
    pub(crate) places: Vec<PlaceFacts>,
    pub(crate) quotas_in_force: QuotaTable,
    /// Classes and weights that operators have set.
    pub(crate) standings: BTreeMap<String, Standing>,
    /// Quotas in force by tenant and place, filled on first use.
    pub(crate) quotas: RefCell<BTreeMap<(Tenant, usize), (u64, u64)>>,
    /// The change of quotas that is being stored.
    pub(crate) staged: Option<Staged>,
    /// Requests that are stored with the quotas.
    pub(crate) stored_requests: StoredRequests,
    pub(crate) draining: bool,
    pub(crate) hellos: BTreeMap<ChannelId, Hello>,
    pub(crate) open_channels: BTreeSet<ChannelId>,
    pub(crate) on_channel: BTreeMap<ChannelId, SessionId>,
    pub(crate) sessions: BTreeMap<SessionId, SessionFacts>,
    pub(crate) allocations: BTreeMap<AllocationId, AllocationFacts>,
    pub(crate) loading: BTreeMap<AllocationId, LoadFacts>,
    /// Files of which each tenant has had a piece.
    pub(crate) files_loaded: BTreeSet<(Tenant, FileId)>,
    /// Full names, with the allocation that has each, since a client was told of it.
    pub(crate) names: BTreeMap<String, AllocationId>,
    pub(crate) extents: BTreeMap<ExtentId, ExtentFacts>,
    pub(crate) balances: BTreeMap<(Tenant, usize), Balance>,
    /// Bytes that are charged and cached.
    pub(crate) cached: BTreeMap<(Tenant, usize), u64>,
    /// Bytes that were cached and are being released.
    pub(crate) cached_leaving: BTreeMap<(Tenant, usize), u64>,
    pub(crate) calls: BTreeMap<CallId, Call>,
    pub(crate) fences: BTreeMap<PartRef, FenceFacts>,
    /// Number of the event in which the last revocation of a part began, at the earliest, that was a fence or
    /// that a fence joined.
    pub(crate) fences_began: BTreeMap<PartRef, u64>,
    /// Number of the event in which the words of a part were last to be revoked.
    pub(crate) words_asked: BTreeMap<PartRef, u64>,
    /// Orders of operators to revoke or move parts, and evictions by owners, by call.
    pub(crate) revoking: BTreeMap<CallId, RevocationFacts>,
    /// Sessions that were told to unmap a part, may pin it again, and have not answered.
    pub(crate) evicting: BTreeSet<(SessionId, PartRef)>,
    /// Parts whose words are being revoked.
    pub(crate) words_pending: BTreeSet<PartRef>,
    /// Moves by target extent.
    pub(crate) moves: BTreeMap<ExtentId, MoveFacts>,
    pub(crate) write_backs: BTreeMap<ExtentId, WriteBackFacts>,
    /// Class of each ordered copy by target extent, as ordered or hastened since.
    pub(crate) copies: BTreeMap<ExtentId, CopyClass>,
    /// When a client last waited for a part of each device, or in its line.
    pub(crate) waited: BTreeMap<usize, Time>,
    /// Classes that wait in lanes.
    pub(crate) class_waits: ClassWaits,
    /// Shortage of each class on the link that lanes share.
    pub(crate) missing_on_bus: MissingOnBus,
    /// The shares of links, once they were changed.
    pub(crate) shares: Option<Shares>,
    /// Backing of parts on their devices.
    pub(crate) backings: BTreeMap<PartRef, BackingFacts>,
    /// Parts on their device that have no backing for want of bytes: tenant, device, size.
    pub(crate) missing_backing: BTreeMap<PartRef, (Tenant, usize, u64)>,
    /// Parts that are to be written back once the driver has cleared WRITTEN in a pin word.
    pub(crate) words_checked: BTreeSet<PartRef>,
    /// Parts that are leaving their devices, or are about to.
    pub(crate) departing: BTreeSet<PartRef>,
    /// Dropped parts, with their size and the tier that the core shows for them.
    pub(crate) dropped: BTreeMap<PartRef, (u64, Tier)>,
    /// Parts that sessions still map in host memory although their owner no longer wants them there.
    pub(crate) in_place_to_unmap: BTreeSet<PartRef>,
    /// Parts that are read in host memory since a move does not pay.
    pub(crate) read_in_place: BTreeSet<PartRef>,
    /// Copies from host memory to each device, as measured.
    pub(crate) links: BTreeMap<usize, LinkFacts>,
    pub(crate) speculation: SpeculationFacts,
    /// Parts of tenants that gave advice which could certainly leave their devices after the last event.
    pub(crate) advised_leavable: Vec<(PartRef, Tenant, usize)>,
    /// In worlds with unequal tenants: parts that could certainly leave their devices after the last event.
    pub(crate) leavable_by_class: Vec<(PartRef, Tenant, usize)>,
    /// How often each part was dropped.
    pub(crate) drop_counts: BTreeMap<PartRef, u64>,
    /// Parts that operators hold.
    pub(crate) operator_holds: BTreeSet<PartRef>,
    /// Sessions that pinned a part at the last harvest.
    pub(crate) pinned: BTreeSet<(PartRef, SessionId)>,
    /// Of these, pins of parts that could leave but for that.
    pub(crate) evictable_pins: BTreeSet<(PartRef, SessionId)>,
    /// Pins that their sessions said are over, until they are seen again.
    pub(crate) claimed_pins: BTreeSet<(PartRef, SessionId)>,
    /// Pins of sets whose turns were yielded, until they are seen again. These parts can leave at once for a waiter,
    /// where parts of a step that is over may be needed in a later one.
    pub(crate) yielded_pins: BTreeSet<(PartRef, SessionId)>,
    /// The line after the last event.
    pub(crate) waits: BTreeMap<WaitId, WaitView>,
    /// The same in its order.
    pub(crate) line: Vec<WaitId>,
    /// The needs of its waiters.
    pub(crate) needs: BTreeMap<WaitId, WaiterNeeds>,
    /// Batches for which a driver had no memory.
    pub(crate) failed_batches: BTreeMap<BatchKey, Failed>,
    /// Charges of managed memory.
    pub(crate) managed: BTreeMap<AllocationId, ManagedFacts>,
    /// Orders for it that were sent and not answered.
    pub(crate) batches: Vec<BatchFacts>,
    /// The limit of extents was reached since the last survey.
    pub(crate) extents_ran_out: bool,
    /// Content that was last written to each part, where the oracle knows it.
    pub(crate) contents: BTreeMap<PartRef, Content>,
    /// Parts off their device that a session wants, with the number of the event since which it does.
    pub(crate) part_waiters: BTreeMap<PartRef, u64>,
    /// Parts that could not be moved since the last survey. The core tries them again after the next.
    pub(crate) failed_parts: BTreeSet<PartRef>,
    /// Sessions that did not answer in time.
    pub(crate) silences: Silences,
    /// Prefetch requests.
    pub(crate) prefetches: PrefetchFacts,
    /// Working sets, and turns on them.
    pub(crate) turns: AllTurns,
    /// At least one pin call is stalled.
    pub(crate) any_stalled: bool,
    /// Number of events so far.
    pub(crate) clock: u64,
    /// Waiters that certainly had room after the last event, once what was leaving had left.
    pub(crate) helped: BTreeSet<WaitId>,
    /// The time of the last event.
    pub(crate) before: Time,
    /// Number of the last event after which each tenant had descriptor budget left.
    pub(crate) budget_at: Vec<u64>,
    /// At least one session waits for descriptor budget.
    pub(crate) any_starved: bool,
    /// Pressure of each place as last reported.
    pub(crate) pressure: BTreeMap<usize, Pressure>,
    /// When each place was last at level high or above.
    pub(crate) high_until: BTreeMap<usize, Time>,
    /// By full place: idle parts that could leave, and since when.
    pub(crate) idle_since: BTreeMap<usize, BTreeMap<PartRef, Time>>,
    /// By full place: cached extents, and since when.
    pub(crate) cached_since: BTreeMap<usize, BTreeMap<ExtentId, Time>>,
    /// Pressure that each channel was last sent, by place.
    pub(crate) reported_pressure: BTreeMap<(ChannelId, usize), Pressure>,
    /// When each part was last used, or arrived where it is.
    pub(crate) used: BTreeMap<PartRef, Time>,
    /// When parts came to be, got a backing that they lacked at first, or stayed although they had begun to leave.
    pub(crate) backed: BTreeMap<PartRef, Time>,
    pub(crate) digesting: BTreeMap<AllocationId, Vec<ExtentId>>,
    /// Digests by what the driver read, of each allocation that was ever hashed.
    pub(crate) digests: BTreeMap<AllocationId, [u8; 32]>,
}

impl Facts {
    pub(crate) fn tenant(&mut self, name: &str) -> Tenant {
        match self.tenants.iter().position(|known| known == name) {
            Some(at) => at,
            None => {
                self.tenants.push(name.to_owned());
                self.budget_at.push(self.clock);
                self.tenants.len() - 1
            }
        }
    }

    /// A tier of a device.
    pub(crate) fn place(&self, device: usize, tier: Tier) -> Option<usize> {
        self.place_of(&self.places.get(device)?.uuid, tier)
    }

    /// The places below a device, the nearest first.
    pub(crate) fn below(&self, device: usize) -> Vec<usize> {
        [Tier::Host, Tier::Disk].into_iter().filter_map(|tier| self.place(device, tier)).collect()
    }

    /// The device with this UUID or index.
    pub(crate) fn device_named(&self, text: &str) -> Option<usize> {
        let devices = self.places.iter().enumerate().filter(|(_, place)| place.tier == Tier::Device);
        let mut named = devices.filter(|(at, place)| place.uuid == text || at.to_string() == text);
        named.next().map(|(at, _)| at)
    }

    pub(crate) fn place_of(&self, uuid: &str, tier: Tier) -> Option<usize> {
        let matches =
            |place: &PlaceFacts| !place.in_files && (place.uuid.as_str(), place.tier) == (uuid, tier);
        self.places.iter().position(matches)
    }

    /// The place of files that are loaded on a device.
    pub(crate) fn files_of(&self, device: usize) -> Option<usize> {
        let uuid = &self.places.get(device)?.uuid;
        self.places.iter().position(|place| place.in_files && place.uuid == *uuid)
    }

    pub(crate) fn balance(&mut self, tenant: Tenant, place: usize) -> &mut Balance {
        self.balances.entry((tenant, place)).or_default()
    }

    pub(crate) fn charged(&self, tenant: Tenant, place: usize) -> u64 {
        self.balances.get(&(tenant, place)).copied().unwrap_or_default().charged()
    }

    /// All parts of an allocation, if a client was told of it.
    pub(crate) fn parts_of(&self, id: AllocationId) -> impl Iterator<Item = PartRef> + use<> {
        let count = self.allocations.get(&id).map_or(0, |it| it.part_count);
        (0..).map(PartIndex).take(count).map(move |part| PartRef { allocation: id, part })
    }

    /// Descriptors in flight to the sessions of one tenant, or to all.
    pub(crate) fn in_flight(&self, tenant: Option<Tenant>) -> usize {
        let sessions = self.sessions.values().filter(|it| tenant.is_none_or(|tenant| tenant == it.tenant));
        sessions.map(|session| session.in_flight).sum()
    }

    /// Whether the daemon can still talk to the session. Its deadline may be reached in this very moment;
    /// that comes first.
    pub(crate) fn is_heard(&self, session: &SessionFacts) -> bool {
        let due = self.due_of(session);
        self.open_channels.contains(&session.channel) && due.is_none_or(|due| due > self.now)
    }

    /// When the session must have answered what it was sent.
    pub(crate) fn due_of(&self, session: &SessionFacts) -> Option<Time> {
        let since = [session.owes_since, session.owes_words].into_iter().flatten().min();
        since.map(|since| since.after(self.answer_timeout))
    }

    /// Ends a session's mapping of a part.
    pub(crate) fn drop_mapping(&mut self, id: SessionId, part: PartRef) {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some((phase, extent)) = session.mappings.remove(&part) {
            session.unmaps.end(part, phase, now);
            if phase == MapPhase::Evicting {
                session.away.insert(part);
            }
            if phase == MapPhase::Offered {
                session.in_flight -= 1;
                if session.in_flight == 0 {
                    session.owes_since = None;
                }
            }
            if let Some(extent) = self.extents.get_mut(&extent) {
                extent.mappers.remove(&id);
            }
        }
        let is_waiting = session.waits_since.is_some();
        self.evicting.remove(&(id, part));
        self.remove_pin(id, part);
        if let Some(fence) = self.fences.get_mut(&part).filter(|_| !is_waiting) {
            fence.progress = fence.progress.map(|_| self.now);
        }
        if self.fences.contains_key(&part)
            && !self.sessions.values().any(|session| session.mappings.contains_key(&part))
        {
            self.fences.remove(&part);
        }
    }

    /// Records that the session certainly maps nothing any longer.
    pub(crate) fn session_gone(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.gone = true;
        for (_, extent) in session.mappings.values() {
            if let Some(extent) = self.extents.get_mut(extent) {
                extent.unacknowledged = true;
            }
        }
        let parts: Vec<_> = session.mappings.keys().copied().collect();
        parts.into_iter().for_each(|part| self.drop_mapping(id, part));
    }
}
