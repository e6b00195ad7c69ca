//! What an observer of events and commands knows. It shares no code with the core: balances are plain integers, added
//! and taken away as things happen.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use broker_core::{
    CallId, ChannelId, ClientRequest, Hello, Kind, Lifetime, OperatorRequest, PartRef, Peer, Pressure,
    RequestKey, Slot, StoredQuotas, Tier, Time, WaitView,
};
use vramd_types::{AllocationId, CopyClass, ExtentId, PartIndex, Quantity, SessionId, Shares};

use super::links::{Lacks, Stands};

/// A tenant, by its place in [`Facts::tenants`].
pub(super) type Tenant = usize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Balance {
    pub(super) reserved: u64,
    pub(super) settled: u64,
    pub(super) unreturned: u64,
}

impl Balance {
    pub(super) const fn held(self) -> u64 {
        self.reserved + self.settled + self.unreturned
    }
}

/// A tier of a device.
#[derive(Clone, Debug)]
pub(super) struct PlaceFacts {
    /// The device's, or that of the device beside it.
    pub(super) uuid: String,
    pub(super) tier: Tier,
    pub(super) share: u64,
    pub(super) context: u64,
    pub(super) unbrokered: u64,
    pub(super) contexts: u64,
    /// What there is at most, since the driver had not so much more, until it is looked who holds it.
    pub(super) at_most: Option<u64>,
    /// It is being looked at; and that look began before the driver had not what was asked.
    pub(super) looking: bool,
    pub(super) looks_too_early: bool,
    /// After so many looks nobody waits any more only since the driver had none.
    pub(super) looks_left: u8,
    /// Files that are nobody's: nothing is ever charged there.
    pub(super) in_files: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// Sent, and not answered.
    Offered,
    Mapped,
    /// Told to unmap, for good.
    Revoking,
    /// Told to unmap, and may ask for it again.
    Evicting,
}

#[derive(Clone, Debug)]
pub(super) struct SessionFacts {
    pub(super) tenant: Tenant,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) channel: ChannelId,
    pub(super) gone: bool,
    /// An operator has ended it.
    pub(super) ending: bool,
    pub(super) kill_asked: bool,
    /// Devices that it sees.
    pub(super) devices: Vec<usize>,
    pub(super) holds: BTreeMap<PartRef, (Hold, ExtentId)>,
    /// What it is to be sent still.
    pub(super) owed: BTreeSet<PartRef>,
    /// Since when it owes the answer to a packet.
    pub(super) owes_since: Option<Time>,
    /// Since when it has not mapped its word table.
    pub(super) owes_words: Option<Time>,
    /// Descriptors that lie in its socket.
    pub(super) in_flight: usize,
    /// It has a word table.
    pub(super) pins: bool,
    pub(super) hears_pressure: bool,
    /// It does not answer, as the broker says.
    pub(super) silent: bool,
    pub(super) silent_since: Option<Time>,
    /// Evicted, or unheld and not pinned yet, and its own still.
    pub(super) away: BTreeSet<PartRef>,
    /// What it asked to pin, and was not sent since: it may stand in the queue, though the call is over.
    pub(super) coming: BTreeSet<PartRef>,
    pub(super) slots: BTreeMap<Slot, PartRef>,
    /// Told to unmap when nobody pinned.
    pub(super) prompt: BTreeSet<PartRef>,
    pub(super) last_pin: Option<u64>,
    /// Pin calls that have not ended.
    pub(super) pin_calls: BTreeMap<u64, PinFacts>,
}

#[derive(Clone, Debug)]
pub(super) struct PinFacts {
    pub(super) parts: Vec<PartRef>,
    /// The number of the event.
    pub(super) came: u64,
    pub(super) answered: bool,
    /// Since when all in its way wait themselves.
    pub(super) stuck: Option<Time>,
    /// When it is refused at the latest, if it was given a time.
    pub(super) until: Option<Time>,
}

/// A part that an operator fenced while everybody who mapped it was there to hear of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FenceFacts {
    pub(super) call: CallId,
    pub(super) came: u64,
    pub(super) until: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtentPhase {
    Creating,
    Live,
    Cached,
    Releasing,
    /// Released, and was cached before.
    GivenUp,
    Unreturned,
}

#[derive(Clone, Debug)]
pub(super) struct ExtentFacts {
    pub(super) place: usize,
    pub(super) size: u64,
    /// Whose session asked for it.
    pub(super) owner: Tenant,
    pub(super) phase: ExtentPhase,
    /// What it was made for to move there, or was first sent as, since it was made or used again.
    pub(super) part: Option<PartRef>,
    /// Its part is not in it: it moves there, or was there.
    pub(super) stray: bool,
    pub(super) copied: bool,
    /// Tenants whose sessions were sent it, in that order.
    pub(super) sent_to: Vec<Tenant>,
    pub(super) mappers: BTreeSet<SessionId>,
    pub(super) being_read: bool,
    /// It is an end of a write-back: who maps it goes on.
    pub(super) written_back: bool,
    /// Some session that was sent it ended without saying that it let go.
    pub(super) unacknowledged: bool,
    /// It was cached once: its content is not zero.
    pub(super) recycled: bool,
    /// It lies on disk, and nothing was copied there: it cannot be read.
    pub(super) unwritten: bool,
    pub(super) debts: Vec<(Tenant, u64)>,
    /// It is a piece of a file.
    pub(super) in_file: bool,
}

impl ExtentFacts {
    /// What its tenant pays for it.
    pub(super) const fn cost(&self) -> u64 {
        if self.in_file { 0 } else { self.size }
    }
}

/// What is being loaded: nobody has been told of it.
#[derive(Clone, Debug)]
pub(super) struct LoadFacts {
    pub(super) call: CallId,
    pub(super) by: SessionId,
    /// Pieces that were opened, in their order.
    pub(super) parts: BTreeMap<u32, ExtentId>,
    /// How much of the file that is.
    pub(super) bytes: u64,
}

#[derive(Clone, Debug)]
pub(super) struct AllocationFacts {
    pub(super) tenant: Tenant,
    pub(super) owner: SessionId,
    pub(super) kind: Kind,
    /// Where it is mapped.
    pub(super) device: usize,
    pub(super) lifetime: Lifetime,
    pub(super) readers: Vec<String>,
    pub(super) size: u64,
    pub(super) uninitialized: bool,
    pub(super) discardable: bool,
    /// To be accessed by its device where it lies in the host's memory.
    pub(super) in_place: bool,
    /// Its bytes are those of a file.
    pub(super) loaded: bool,
    /// Its owner is sent what it pins, and nothing before.
    pub(super) unheld: bool,
    pub(super) part_count: usize,
    pub(super) sealed: bool,
    /// Its owner or an operator was told that it is freed.
    pub(super) freed: bool,
    /// It is on its way out, whoever was told.
    pub(super) leaving: bool,
    /// A part was dropped before anybody was sent it: which extent it left is not known here.
    pub(super) left_unseen: bool,
    pub(super) parts: BTreeMap<u32, ExtentId>,
}

#[derive(Clone, Debug)]
pub(super) enum Asked {
    Client { session: SessionId, peer: Peer, request: ClientRequest },
    Operator { uid: u32, request: OperatorRequest },
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) asked: Asked,
    pub(super) key: Option<RequestKey>,
    pub(super) at: Time,
    /// The number of the event.
    pub(super) came: u64,
    /// It repeats what is under way.
    pub(super) joined: bool,
}

/// A part that is to move to an extent, as long as that may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoveFacts {
    pub(super) part: PartRef,
    /// Where it is copied from, once it is.
    pub(super) from: Option<ExtentId>,
    /// The driver was told that it need not.
    pub(super) cancelled: bool,
}

/// A part whose content is copied to what it has below, by where that is.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteBackFacts {
    pub(super) part: PartRef,
    pub(super) from: ExtentId,
    /// The driver was told that it need not.
    pub(super) cancelled: bool,
}

/// What a part on its device has below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackingFacts {
    /// Bytes that are charged and in which nothing is made.
    Reserved { owner: Tenant, place: usize, size: u64 },
    /// What it came from, or was to go to.
    Kept(ExtentId),
    /// It is discardable, and needs none.
    Needless,
}

/// Guarantee and limit, by tenant, device (UUID or `*`) and tier.
pub(super) type Book = BTreeMap<(String, String, Tier), (Quantity, Quantity)>;

pub(super) fn book_of(stored: &StoredQuotas) -> Book {
    let row = |row: &broker_core::StoredQuota| {
        ((row.tenant.clone(), row.device.clone(), row.tier), (row.guarantee, row.limit))
    };
    stored.quotas.iter().map(row).collect()
}

/// How often a driver had no memory for a batch, and since when it rests for that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Failed {
    pub(super) times: u32,
    pub(super) rests: Option<Rests>,
}

/// Until it is time to look at all devices, and one more look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rests {
    pub(super) until: Time,
    pub(super) looks_left: u8,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) now: Time,
    /// How long the answer to a packet may take.
    pub(super) answer_timeout: Duration,
    pub(super) tenants: Vec<String>,
    /// The devices in their order, and then what is below them.
    pub(super) places: Vec<PlaceFacts>,
    pub(super) book: Book,
    /// What holds of these now, worked out when it is first asked for.
    pub(super) quotas: BTreeMap<(Tenant, usize), (u64, u64)>,
    /// What is being written.
    pub(super) staged: Option<Book>,
    pub(super) draining: bool,
    pub(super) hellos: BTreeMap<ChannelId, Hello>,
    pub(super) open_channels: BTreeSet<ChannelId>,
    pub(super) on_channel: BTreeMap<ChannelId, SessionId>,
    pub(super) sessions: BTreeMap<SessionId, SessionFacts>,
    pub(super) allocations: BTreeMap<AllocationId, AllocationFacts>,
    pub(super) loading: BTreeMap<AllocationId, LoadFacts>,
    pub(super) extents: BTreeMap<ExtentId, ExtentFacts>,
    pub(super) balances: BTreeMap<(Tenant, usize), Balance>,
    /// Of what is held, what backs nothing.
    pub(super) cached: BTreeMap<(Tenant, usize), u64>,
    /// Of what is held, what was cached and is on its way to the driver.
    pub(super) going: BTreeMap<(Tenant, usize), u64>,
    pub(super) calls: BTreeMap<CallId, Call>,
    /// By part.
    pub(super) fences: BTreeMap<PartRef, FenceFacts>,
    /// When a fence of a part was asked for last, and one of an allocation that was named: the number of the event.
    pub(super) fenced_at: BTreeMap<PartRef, u64>,
    pub(super) named_fence_at: u64,
    /// Parts whose last fence may have joined one that had begun before, and whether the last one by name may have: then
    /// it is not known here which calls came before it.
    pub(super) fences_joined: BTreeSet<PartRef>,
    pub(super) named_fence_joined: bool,
    /// When the words of a part were asked for last: the number of the event.
    pub(super) words_asked: BTreeMap<PartRef, u64>,
    /// Allocations of which mappings are being revoked, by the call; `None` of some that was named.
    pub(super) revoking: BTreeMap<CallId, Option<AllocationId>>,
    /// Who was told to unmap what for a while, and has not.
    pub(super) evicting: BTreeSet<(SessionId, PartRef)>,
    /// Parts whose words are being revoked.
    pub(super) words_pending: BTreeSet<PartRef>,
    /// By the extent that they go to.
    pub(super) moves: BTreeMap<ExtentId, MoveFacts>,
    pub(super) write_backs: BTreeMap<ExtentId, WriteBackFacts>,
    /// Copies that were ordered, by where they go: as what, or hastened since.
    pub(super) copies: BTreeMap<ExtentId, CopyClass>,
    /// Who waits in lanes.
    pub(super) stands: Stands,
    /// And lacks its share of the link that these share.
    pub(super) lacks: Lacks,
    /// How links are shared, once that was changed.
    pub(super) shares: Option<Shares>,
    /// What parts on their devices have below.
    pub(super) backings: BTreeMap<PartRef, BackingFacts>,
    /// Parts on their device for which there were no bytes below: whose, below which device, and how large.
    pub(super) lacking: BTreeMap<PartRef, (Tenant, usize, u64)>,
    /// Parts that are on their way out of their devices, or about to set out.
    pub(super) departing: BTreeSet<PartRef>,
    /// Discardable parts that are nowhere, how large they are, and in which tier they are said to be.
    pub(super) dropped: BTreeMap<PartRef, (u64, Tier)>,
    /// Parts that are mapped in the host's memory still, and are not to be any more.
    pub(super) lingering: BTreeSet<PartRef>,
    /// How often the content of each was given up.
    pub(super) losses: BTreeMap<PartRef, u64>,
    /// What operators hold.
    pub(super) held_by_hand: BTreeSet<PartRef>,
    /// Who was seen to pin what, when it was looked at last.
    pub(super) pinned: BTreeSet<(PartRef, SessionId)>,
    /// Who stood in the line after the last event.
    pub(super) waits: BTreeMap<u64, WaitView>,
    /// Batches for which a driver had no memory, by who asked and until when.
    pub(super) failed: BTreeMap<(Option<SessionId>, Option<Time>), Failed>,
    /// There were too many extents since devices were looked at last.
    pub(super) extents_ran_out: bool,
    /// What was last written to each part, where that is known.
    pub(super) contents: BTreeMap<PartRef, u64>,
    /// Since which event somebody wants a part that is elsewhere.
    pub(super) demands: BTreeMap<PartRef, u64>,
    /// What could not be brought to its device since others were last looked for there: it is tried again then.
    pub(super) unlucky: BTreeSet<PartRef>,
    /// Some pin call is in somebody's way who waits itself.
    pub(super) some_stuck: bool,
    /// How many events there were.
    pub(super) clock: u64,
    /// What was said last of each place.
    pub(super) pressure: BTreeMap<usize, Pressure>,
    /// Until when places were full last.
    pub(super) high_until: BTreeMap<usize, Time>,
    /// By full place: parts of it that could leave, and since when that has been seen.
    pub(super) idle_since: BTreeMap<usize, BTreeMap<PartRef, Time>>,
    /// The same of what is cached there.
    pub(super) cached_since: BTreeMap<usize, BTreeMap<ExtentId, Time>>,
    /// What who wants to hear of it was told last.
    pub(super) told: BTreeMap<(ChannelId, usize), Pressure>,
    /// When each part was seen to be used last, or came to where it is.
    pub(super) used: BTreeMap<PartRef, Time>,
    pub(super) digesting: BTreeMap<AllocationId, Vec<ExtentId>>,
    /// What was read of each allocation that was ever hashed.
    pub(super) digests: BTreeMap<AllocationId, [u8; 32]>,
}

impl Facts {
    pub(super) fn tenant(&mut self, name: &str) -> Tenant {
        match self.tenants.iter().position(|known| known == name) {
            Some(at) => at,
            None => {
                self.tenants.push(name.to_owned());
                self.tenants.len() - 1
            }
        }
    }

    /// A tier of a device.
    pub(super) fn place(&self, device: usize, tier: Tier) -> Option<usize> {
        self.place_of(&self.places.get(device)?.uuid, tier)
    }

    /// What is below a device, the nearest first.
    pub(super) fn below(&self, device: usize) -> Vec<usize> {
        [Tier::Host, Tier::Disk].into_iter().filter_map(|tier| self.place(device, tier)).collect()
    }

    /// By its UUID or index.
    pub(super) fn device_named(&self, text: &str) -> Option<usize> {
        let devices = self.places.iter().enumerate().filter(|(_, place)| place.tier == Tier::Device);
        let mut named = devices.filter(|(at, place)| place.uuid == text || at.to_string() == text);
        named.next().map(|(at, _)| at)
    }

    pub(super) fn place_of(&self, uuid: &str, tier: Tier) -> Option<usize> {
        let is = |place: &PlaceFacts| !place.in_files && (place.uuid.as_str(), place.tier) == (uuid, tier);
        self.places.iter().position(is)
    }

    /// Where files are that are loaded on a device.
    pub(super) fn files_of(&self, device: usize) -> Option<usize> {
        let uuid = &self.places.get(device)?.uuid;
        self.places.iter().position(|place| place.in_files && place.uuid == *uuid)
    }

    pub(super) fn balance(&mut self, tenant: Tenant, place: usize) -> &mut Balance {
        self.balances.entry((tenant, place)).or_default()
    }

    pub(super) fn held(&self, tenant: Tenant, place: usize) -> u64 {
        self.balances.get(&(tenant, place)).copied().unwrap_or_default().held()
    }

    /// All parts of an allocation that somebody was told of.
    pub(super) fn parts_of(&self, id: AllocationId) -> impl Iterator<Item = PartRef> + use<> {
        let count = self.allocations.get(&id).map_or(0, |it| it.part_count);
        (0..).map(PartIndex).take(count).map(move |part| PartRef { allocation: id, part })
    }

    /// Descriptors in flight to the sessions of one tenant, or to all.
    pub(super) fn in_flight(&self, tenant: Option<Tenant>) -> usize {
        let sessions = self.sessions.values().filter(|it| tenant.is_none_or(|tenant| tenant == it.tenant));
        sessions.map(|session| session.in_flight).sum()
    }

    /// Whether the session's channel can be heard: its time may be up in this very moment, which goes first.
    pub(super) fn is_heard(&self, session: &SessionFacts) -> bool {
        let due = self.due_of(session);
        self.open_channels.contains(&session.channel) && due.is_none_or(|due| due > self.now)
    }

    /// By when it is to have answered what it was sent.
    pub(super) fn due_of(&self, session: &SessionFacts) -> Option<Time> {
        let since = [session.owes_since, session.owes_words].into_iter().flatten().min();
        since.map(|since| since.after(self.answer_timeout))
    }

    /// A session lets go of a part.
    pub(super) fn drop_hold(&mut self, id: SessionId, part: PartRef) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some((hold, extent)) = session.holds.remove(&part) {
            session.prompt.remove(&part);
            if hold == Hold::Evicting {
                session.away.insert(part);
            }
            if hold == Hold::Offered {
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
            && !self.sessions.values().any(|session| session.holds.contains_key(&part))
        {
            self.fences.remove(&part);
        }
    }

    /// The session maps nothing any more, for certain.
    pub(super) fn session_gone(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.gone = true;
        for (_, extent) in session.holds.values() {
            if let Some(extent) = self.extents.get_mut(extent) {
                extent.unacknowledged = true;
            }
        }
        let parts: Vec<_> = session.holds.keys().copied().collect();
        parts.into_iter().for_each(|part| self.drop_hold(id, part));
    }
}
