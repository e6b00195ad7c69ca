//! What an observer of events and commands knows. It shares no code with the core: balances are plain integers, added
//! and taken away as things happen.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use broker_core::{
    CallId, ChannelId, ClientRequest, Hello, Kind, Lifetime, OperatorRequest, PartRef, Peer, Pressure,
    RequestKey, Slot, StoredQuotas, Tier, Time, WaitView,
};
use vramd_types::{AllocationId, CopyClass, ExtentId, PartIndex, Quantity, SessionId, Shares};

use super::links::shares::{ClassWaits, MissingOnBus};

/// A tenant, by its place in [`Facts::tenants`].
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
    /// The device's, or that of the device beside it.
    pub(crate) uuid: String,
    pub(crate) tier: Tier,
    pub(crate) share: u64,
    pub(crate) context: u64,
    pub(crate) unbrokered: u64,
    pub(crate) contexts: u64,
    /// What there is at most, since the driver had not so much more, until it is looked who holds it.
    pub(crate) available_max: Option<u64>,
    /// It is being looked at; and that look began before the driver had not what was asked.
    pub(crate) surveying: bool,
    pub(crate) survey_outdated: bool,
    /// After so many looks nobody waits any more only since the driver had none.
    pub(crate) surveys_left: u8,
    /// Files that are nobody's: nothing is ever charged there.
    pub(crate) in_files: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapPhase {
    /// Sent, and not answered.
    Offered,
    Mapped,
    /// Told to unmap, for good.
    Revoking,
    /// Told to unmap, and may ask for it again.
    Evicting,
}

#[derive(Clone, Debug)]
pub(crate) struct SessionFacts {
    pub(crate) tenant: Tenant,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) channel: ChannelId,
    pub(crate) gone: bool,
    /// An operator has ended it.
    pub(crate) ending: bool,
    pub(crate) kill_asked: bool,
    /// Devices that it sees.
    pub(crate) devices: Vec<usize>,
    pub(crate) mappings: BTreeMap<PartRef, (MapPhase, ExtentId)>,
    /// What it is to be sent still.
    pub(crate) owed: BTreeSet<PartRef>,
    /// Since when it owes the answer to a packet.
    pub(crate) owes_since: Option<Time>,
    /// Since when it has not mapped its word table.
    pub(crate) owes_words: Option<Time>,
    /// Descriptors that lie in its socket.
    pub(crate) in_flight: usize,
    /// It has a word table.
    pub(crate) pins: bool,
    pub(crate) hears_pressure: bool,
    /// It does not answer, as the broker says.
    pub(crate) silent: bool,
    pub(crate) silent_since: Option<Time>,
    /// Evicted, or unheld and not pinned yet, and its own still.
    pub(crate) away: BTreeSet<PartRef>,
    /// What it asked to pin, and was not sent since: it may stand in the queue, though the call is over.
    pub(crate) pin_requested: BTreeSet<PartRef>,
    pub(crate) slots: BTreeMap<Slot, PartRef>,
    /// Told to unmap when nobody pinned.
    pub(crate) revoked_unpinned: BTreeSet<PartRef>,
    pub(crate) last_pin: Option<u64>,
    /// Pin calls that have not ended.
    pub(crate) pin_calls: BTreeMap<u64, PinFacts>,
}

#[derive(Clone, Debug)]
pub(crate) struct PinFacts {
    pub(crate) parts: Vec<PartRef>,
    /// The number of the event.
    pub(crate) arrived: u64,
    pub(crate) answered: bool,
    /// Since when all in its way wait themselves.
    pub(crate) stalled_since: Option<Time>,
    /// When it is refused at the latest, if it was given a time.
    pub(crate) until: Option<Time>,
}

/// A part that an operator fenced while everybody who mapped it was there to hear of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FenceFacts {
    pub(crate) call: CallId,
    pub(crate) arrived: u64,
    pub(crate) until: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentPhase {
    Creating,
    Live,
    Cached,
    Releasing,
    /// Released, and was cached before.
    GivenUp,
    Unreturned,
}

#[derive(Clone, Debug)]
pub(crate) struct ExtentFacts {
    pub(crate) place: usize,
    pub(crate) size: u64,
    /// Whose session asked for it.
    pub(crate) owner: Tenant,
    pub(crate) phase: ExtentPhase,
    /// What it was made for to move there, or was first sent as, since it was made or used again.
    pub(crate) part: Option<PartRef>,
    /// Its part is not in it: it moves there, or was there.
    pub(crate) detached: bool,
    pub(crate) copied: bool,
    /// Tenants whose sessions were sent it, in that order.
    pub(crate) sent_to: Vec<Tenant>,
    pub(crate) mappers: BTreeSet<SessionId>,
    pub(crate) being_read: bool,
    /// It is an end of a write-back: who maps it goes on.
    pub(crate) written_back: bool,
    /// Some session that was sent it ended without saying that it let go.
    pub(crate) unacknowledged: bool,
    /// It was cached once: its content is not zero.
    pub(crate) reused: bool,
    /// It lies on disk, and nothing was copied there: it cannot be read.
    pub(crate) unwritten: bool,
    pub(crate) debts: Vec<(Tenant, u64)>,
    /// It is a piece of a file.
    pub(crate) in_file: bool,
}

impl ExtentFacts {
    /// What its tenant pays for it.
    pub(crate) const fn cost(&self) -> u64 {
        if self.in_file { 0 } else { self.size }
    }
}

/// What is being loaded: nobody has been told of it.
#[derive(Clone, Debug)]
pub(crate) struct LoadFacts {
    pub(crate) call: CallId,
    pub(crate) by: SessionId,
    /// Pieces that were opened, in their order.
    pub(crate) parts: BTreeMap<u32, ExtentId>,
    /// How much of the file that is.
    pub(crate) bytes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct AllocationFacts {
    pub(crate) tenant: Tenant,
    pub(crate) owner: SessionId,
    pub(crate) kind: Kind,
    /// Where it is mapped.
    pub(crate) device: usize,
    pub(crate) lifetime: Lifetime,
    pub(crate) readers: Vec<String>,
    pub(crate) size: u64,
    pub(crate) uninitialized: bool,
    pub(crate) discardable: bool,
    /// To be accessed by its device where it lies in the host's memory.
    pub(crate) in_place: bool,
    /// Its bytes are those of a file.
    pub(crate) loaded: bool,
    /// Its owner is sent what it pins, and nothing before.
    pub(crate) unpinned: bool,
    pub(crate) part_count: usize,
    pub(crate) sealed: bool,
    /// Its owner or an operator was told that it is freed.
    pub(crate) freed: bool,
    /// It is on its way out, whoever was told.
    pub(crate) leaving: bool,
    /// A part was dropped before anybody was sent it: which extent it left is not known here.
    pub(crate) left_unseen: bool,
    pub(crate) parts: BTreeMap<u32, ExtentId>,
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
    /// It repeats what is under way.
    pub(crate) joined: bool,
}

/// A part that is to move to an extent, as long as that may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveFacts {
    pub(crate) part: PartRef,
    /// Where it is copied from, once it is.
    pub(crate) from: Option<ExtentId>,
    /// The driver was told that it need not.
    pub(crate) cancelled: bool,
}

/// A part whose content is copied to what it has below, by where that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteBackFacts {
    pub(crate) part: PartRef,
    pub(crate) from: ExtentId,
    /// The driver was told that it need not.
    pub(crate) cancelled: bool,
}

/// What a part on its device has below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackingFacts {
    /// Bytes that are charged and in which nothing is made.
    Reserved { owner: Tenant, place: usize, size: u64 },
    /// What it came from, or was to go to.
    Kept(ExtentId),
    /// It is discardable, and needs none.
    Unneeded,
}

/// Guarantee and limit, by tenant, device (UUID or `*`) and tier.
pub(crate) type QuotaTable = BTreeMap<(String, String, Tier), (Quantity, Quantity)>;

pub(crate) fn quota_table(stored: &StoredQuotas) -> QuotaTable {
    let row = |row: &broker_core::StoredQuota| {
        ((row.tenant.clone(), row.device.clone(), row.tier), (row.guarantee, row.limit))
    };
    stored.quotas.iter().map(row).collect()
}

/// How often a driver had no memory for a batch, and since when it rests for that.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failed {
    pub(crate) times: u32,
    pub(crate) rests: Option<Rests>,
}

/// Until it is time to look at all devices, and one more look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rests {
    pub(crate) until: Time,
    pub(crate) surveys_left: u8,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) now: Time,
    /// How long the answer to a packet may take.
    pub(crate) answer_timeout: Duration,
    pub(crate) tenants: Vec<String>,
    /// The devices in their order, and then what is below them.
    pub(crate) places: Vec<PlaceFacts>,
    pub(crate) quotas_in_force: QuotaTable,
    /// What holds of these now, worked out when it is first asked for.
    pub(crate) quotas: RefCell<BTreeMap<(Tenant, usize), (u64, u64)>>,
    /// What is being written.
    pub(crate) staged: Option<QuotaTable>,
    pub(crate) draining: bool,
    pub(crate) hellos: BTreeMap<ChannelId, Hello>,
    pub(crate) open_channels: BTreeSet<ChannelId>,
    pub(crate) on_channel: BTreeMap<ChannelId, SessionId>,
    pub(crate) sessions: BTreeMap<SessionId, SessionFacts>,
    pub(crate) allocations: BTreeMap<AllocationId, AllocationFacts>,
    pub(crate) loading: BTreeMap<AllocationId, LoadFacts>,
    pub(crate) extents: BTreeMap<ExtentId, ExtentFacts>,
    pub(crate) balances: BTreeMap<(Tenant, usize), Balance>,
    /// Of what is held, what backs nothing.
    pub(crate) cached: BTreeMap<(Tenant, usize), u64>,
    /// Of what is held, what was cached and is on its way to the driver.
    pub(crate) cached_leaving: BTreeMap<(Tenant, usize), u64>,
    pub(crate) calls: BTreeMap<CallId, Call>,
    /// By part.
    pub(crate) fences: BTreeMap<PartRef, FenceFacts>,
    /// When a fence of a part was asked for last, and one of an allocation that was named: the number of the event.
    pub(crate) fenced_at: BTreeMap<PartRef, u64>,
    pub(crate) named_fence_at: u64,
    /// Parts whose last fence may have joined one that had begun before, and whether the last one by name may have: then
    /// it is not known here which calls came before it.
    pub(crate) fences_joined: BTreeSet<PartRef>,
    pub(crate) named_fence_joined: bool,
    /// When the words of a part were asked for last: the number of the event.
    pub(crate) words_asked: BTreeMap<PartRef, u64>,
    /// Allocations of which mappings are being revoked, by the call; `None` of some that was named.
    pub(crate) revoking: BTreeMap<CallId, Option<AllocationId>>,
    /// Who was told to unmap what for a while, and has not.
    pub(crate) evicting: BTreeSet<(SessionId, PartRef)>,
    /// Parts whose words are being revoked.
    pub(crate) words_pending: BTreeSet<PartRef>,
    /// By the extent that they go to.
    pub(crate) moves: BTreeMap<ExtentId, MoveFacts>,
    pub(crate) write_backs: BTreeMap<ExtentId, WriteBackFacts>,
    /// Copies that were ordered, by where they go: as what, or hastened since.
    pub(crate) copies: BTreeMap<ExtentId, CopyClass>,
    /// Who waits in lanes.
    pub(crate) class_waits: ClassWaits,
    /// And lacks its share of the link that these share.
    pub(crate) missing_on_bus: MissingOnBus,
    /// How links are shared, once that was changed.
    pub(crate) shares: Option<Shares>,
    /// What parts on their devices have below.
    pub(crate) backings: BTreeMap<PartRef, BackingFacts>,
    /// Parts on their device for which there were no bytes below: whose, below which device, and how large.
    pub(crate) missing_backing: BTreeMap<PartRef, (Tenant, usize, u64)>,
    /// Parts that are on their way out of their devices, or about to set out.
    pub(crate) departing: BTreeSet<PartRef>,
    /// Discardable parts that are nowhere, how large they are, and in which tier they are said to be.
    pub(crate) dropped: BTreeMap<PartRef, (u64, Tier)>,
    /// Parts that are mapped in the host's memory still, and are not to be any more.
    pub(crate) in_place_to_unmap: BTreeSet<PartRef>,
    /// How often the content of each was given up.
    pub(crate) drop_counts: BTreeMap<PartRef, u64>,
    /// What operators hold.
    pub(crate) operator_holds: BTreeSet<PartRef>,
    /// Who was seen to pin what, when it was looked at last.
    pub(crate) pinned: BTreeSet<(PartRef, SessionId)>,
    /// Who stood in the line after the last event.
    pub(crate) waits: BTreeMap<u64, WaitView>,
    /// Batches for which a driver had no memory, by who asked and until when.
    pub(crate) failed_batches: BTreeMap<(Option<SessionId>, Option<Time>), Failed>,
    /// There were too many extents since devices were looked at last.
    pub(crate) extents_ran_out: bool,
    /// What was last written to each part, where that is known.
    pub(crate) contents: BTreeMap<PartRef, u64>,
    /// Since which event somebody wants a part that is elsewhere.
    pub(crate) part_waiters: BTreeMap<PartRef, u64>,
    /// What could not be brought to its device since others were last looked for there: it is tried again then.
    pub(crate) failed_parts: BTreeSet<PartRef>,
    /// Some pin call is in somebody's way who waits itself.
    pub(crate) any_stalled: bool,
    /// How many events there were.
    pub(crate) clock: u64,
    /// What was said last of each place.
    pub(crate) pressure: BTreeMap<usize, Pressure>,
    /// Until when places were full last.
    pub(crate) high_until: BTreeMap<usize, Time>,
    /// By full place: parts of it that could leave, and since when that has been seen.
    pub(crate) idle_since: BTreeMap<usize, BTreeMap<PartRef, Time>>,
    /// The same of what is cached there.
    pub(crate) cached_since: BTreeMap<usize, BTreeMap<ExtentId, Time>>,
    /// What who wants to hear of it was told last.
    pub(crate) reported_pressure: BTreeMap<(ChannelId, usize), Pressure>,
    /// When each part was seen to be used last, or came to where it is.
    pub(crate) used: BTreeMap<PartRef, Time>,
    pub(crate) digesting: BTreeMap<AllocationId, Vec<ExtentId>>,
    /// What was read of each allocation that was ever hashed.
    pub(crate) digests: BTreeMap<AllocationId, [u8; 32]>,
}

impl Facts {
    pub(crate) fn tenant(&mut self, name: &str) -> Tenant {
        match self.tenants.iter().position(|known| known == name) {
            Some(at) => at,
            None => {
                self.tenants.push(name.to_owned());
                self.tenants.len() - 1
            }
        }
    }

    /// A tier of a device.
    pub(crate) fn place(&self, device: usize, tier: Tier) -> Option<usize> {
        self.place_of(&self.places.get(device)?.uuid, tier)
    }

    /// What is below a device, the nearest first.
    pub(crate) fn below(&self, device: usize) -> Vec<usize> {
        [Tier::Host, Tier::Disk].into_iter().filter_map(|tier| self.place(device, tier)).collect()
    }

    /// By its UUID or index.
    pub(crate) fn device_named(&self, text: &str) -> Option<usize> {
        let devices = self.places.iter().enumerate().filter(|(_, place)| place.tier == Tier::Device);
        let mut named = devices.filter(|(at, place)| place.uuid == text || at.to_string() == text);
        named.next().map(|(at, _)| at)
    }

    pub(crate) fn place_of(&self, uuid: &str, tier: Tier) -> Option<usize> {
        let is = |place: &PlaceFacts| !place.in_files && (place.uuid.as_str(), place.tier) == (uuid, tier);
        self.places.iter().position(is)
    }

    /// Where files are that are loaded on a device.
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

    /// All parts of an allocation that somebody was told of.
    pub(crate) fn parts_of(&self, id: AllocationId) -> impl Iterator<Item = PartRef> + use<> {
        let count = self.allocations.get(&id).map_or(0, |it| it.part_count);
        (0..).map(PartIndex).take(count).map(move |part| PartRef { allocation: id, part })
    }

    /// Descriptors in flight to the sessions of one tenant, or to all.
    pub(crate) fn in_flight(&self, tenant: Option<Tenant>) -> usize {
        let sessions = self.sessions.values().filter(|it| tenant.is_none_or(|tenant| tenant == it.tenant));
        sessions.map(|session| session.in_flight).sum()
    }

    /// Whether the session's channel can be heard: its time may be up in this very moment, which goes first.
    pub(crate) fn is_heard(&self, session: &SessionFacts) -> bool {
        let due = self.due_of(session);
        self.open_channels.contains(&session.channel) && due.is_none_or(|due| due > self.now)
    }

    /// By when it is to have answered what it was sent.
    pub(crate) fn due_of(&self, session: &SessionFacts) -> Option<Time> {
        let since = [session.owes_since, session.owes_words].into_iter().flatten().min();
        since.map(|since| since.after(self.answer_timeout))
    }

    /// A session lets go of a part.
    pub(crate) fn drop_mapping(&mut self, id: SessionId, part: PartRef) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some((phase, extent)) = session.mappings.remove(&part) {
            session.revoked_unpinned.remove(&part);
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
        self.evicting.remove(&(id, part));
        self.pinned.remove(&(part, id));
        if self.fences.contains_key(&part)
            && !self.sessions.values().any(|session| session.mappings.contains_key(&part))
        {
            self.fences.remove(&part);
        }
    }

    /// The session maps nothing any more, for certain.
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
