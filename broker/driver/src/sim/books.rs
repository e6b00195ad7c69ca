//! What each device and the host have, and what of it is held by whom. Says nothing about how memory is made or looked for.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io, mem,
    sync::Arc,
};

use vramd_types::{Bytes, DeviceIndex, ExtentId, GRANULARITY, HostNode};

use super::{
    holders::Sightings,
    memory::{Identity, Memory},
};
use crate::{
    DeviceInfo, DriverError, HostLimit, KeptFacts,
    disk::DiskExtent,
    place::Place,
    pool::{Kept, Pool, Step},
};

/// Why an extent can't be made, or not yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is room but for memory that other processes were last seen to hold: look again.
    Tight,
    Final(DriverError),
}

#[derive(Debug)]
pub(super) struct Books {
    devices: Vec<Account>,
    host: Account,
    live: HashMap<ExtentId, Arc<Memory>>,
    /// Released, and still held by somebody when last looked for.
    awaited: BTreeMap<ExtentId, Awaited>,
    /// None of what is being made or deleted.
    on_disk: HashMap<ExtentId, Option<Arc<DiskExtent>>>,
    /// Memory of the host that no extent has. It is room to who asks for some.
    pool: Pool<Memory>,
    is_keeping: bool,
    last_of_host: u64,
    /// All that is live, awaited or kept.
    ours: HashSet<Identity>,
}

#[derive(Debug, Default)]
struct Account {
    total: Bytes,
    live: Bytes,
    awaited: Bytes,
    /// As of the last look.
    unbrokered: Bytes,
}

#[derive(Debug)]
struct Awaited {
    identity: Identity,
    size: Bytes,
}

impl Books {
    pub(super) fn new(devices: &[DeviceInfo], host: Bytes) -> Self {
        let account = |total| Account { total, ..Account::default() };
        Self {
            devices: devices.iter().map(|info| account(info.total)).collect(),
            host: account(host),
            live: HashMap::new(),
            awaited: BTreeMap::new(),
            on_disk: HashMap::new(),
            pool: Pool::default(),
            is_keeping: false,
            last_of_host: 0,
            ours: HashSet::new(),
        }
    }

    /// Whether an extent of that id and size can be made there now.
    pub(super) fn admit(&self, extent: ExtentId, place: Place, size: Bytes) -> Result<(), Refusal> {
        let failed = |problem: String| Err(Refusal::Final(DriverError::Failed(problem)));
        let account = match place {
            Place::Host => Some(&self.host),
            Place::Device(device) => self.devices.get(usize::from(device.0)),
        };
        let Some(account) = account else { return failed(format!("there is no {place}")) };
        if size.is_zero() || !size.is_multiple_of(GRANULARITY) {
            return failed(format!("{} bytes are no multiple of 2 MiB", size.get()));
        }
        if self.is_used(extent) {
            return failed(format!("{extent} exists"));
        }
        let with_live = account.live.saturating_add(size);
        if with_live > account.total {
            return Err(Refusal::Final(self.is_full(place)));
        }
        let with_all = with_live.saturating_add(account.awaited).saturating_add(account.unbrokered);
        if with_all > account.total { Err(Refusal::Tight) } else { Ok(()) }
    }

    fn is_used(&self, extent: ExtentId) -> bool {
        let in_memory = self.live.contains_key(&extent) || self.awaited.contains_key(&extent);
        in_memory || self.on_disk.contains_key(&extent)
    }

    pub(super) fn is_full(&self, place: Place) -> DriverError {
        match place {
            Place::Device(_) => DriverError::OutOfMemory,
            Place::Host => DriverError::OutOfHostMemory(HostLimit::Capacity(self.host.total)),
        }
    }

    /// Enters an admitted extent.
    pub(super) fn enter(&mut self, extent: ExtentId, memory: Arc<Memory>) {
        let account = self.account(memory.identity().place);
        account.live = account.live.saturating_add(memory.size());
        self.ours.insert(memory.identity());
        self.live.insert(extent, memory);
    }

    /// From now on memory of the host is kept, and never more than this.
    pub(super) fn keep_host(
        &mut self,
        size: Bytes,
        piece: Bytes,
        pieces_max: usize,
    ) -> Result<(), DriverError> {
        if mem::replace(&mut self.is_keeping, true) {
            return Err(DriverError::Failed("memory of the host is kept already".to_owned()));
        }
        self.host.total = self.host.total.min(size);
        self.pool = Pool::new(piece, pieces_max);
        Ok(())
    }

    /// Kept memory for an admitted extent of the host, if there is some. Else there is room for it after this.
    pub(super) fn take_kept(&mut self, size: Bytes, zeroed: bool) -> Result<Option<Memory>, DriverError> {
        if let Some(Kept { memory, is_zero }) = self.pool.take(size, zeroed) {
            if zeroed && !is_zero {
                memory.zero()?;
            }
            return Ok(Some(memory));
        }
        let room = self.room_in_host().saturating_sub(size);
        for memory in self.pool.give_up(room) {
            self.ours.remove(&memory.identity());
        }
        Ok(None)
    }

    pub(super) fn host_memory(&mut self, uuid: &str, size: Bytes) -> io::Result<Memory> {
        self.last_of_host += 1;
        Memory::new(uuid, Place::Host, self.last_of_host, size)
    }

    /// Whether a piece was missing, and is made now, or what stood in its way has gone. If it can't be, no other will be
    /// tried.
    pub(super) fn fill(&mut self, uuid: &str) -> io::Result<bool> {
        match self.pool.step(self.room_in_host()) {
            None => return Ok(false),
            Some(Step::GiveUp(memory)) => {
                self.ours.remove(&memory.identity());
            }
            Some(Step::Pin(size)) => {
                let memory = self.host_memory(uuid, size).inspect_err(|_| self.pool.stop())?;
                self.keep(memory, true);
            }
        }
        Ok(true)
    }

    /// Where memory is kept.
    pub(super) fn kept(&self, node: HostNode) -> Option<KeptFacts> {
        self.is_keeping.then(|| self.pool.facts(node))
    }

    /// How much is kept, once, when nothing is missing any more.
    pub(super) fn is_filled(&mut self) -> Option<Bytes> {
        let room = self.room_in_host();
        self.pool.is_filled(room).then(|| self.pool.bytes())
    }

    /// Nothing more is made ahead of need. How much is kept, if that has not been said.
    pub(super) fn give_up_filling(&mut self) -> Option<Bytes> {
        self.pool.stop();
        self.is_filled()
    }

    fn keep(&mut self, memory: Memory, is_zero: bool) {
        let identity = memory.identity();
        self.ours.insert(identity);
        if self.pool.keep(memory.size(), Kept { memory, is_zero }).is_err() {
            self.ours.remove(&identity);
        }
    }

    /// What extents and other processes leave of the host.
    fn room_in_host(&self) -> Bytes {
        let Account { total, live, awaited, unbrokered } = self.host;
        total.saturating_sub(live).saturating_sub(awaited).saturating_sub(unbrokered)
    }

    pub(super) fn live(&self, extent: ExtentId) -> Option<Arc<Memory>> {
        self.live.get(&extent).map(Arc::clone)
    }

    pub(super) fn on_disk(&self, extent: ExtentId) -> Option<Arc<DiskExtent>> {
        self.on_disk.get(&extent).cloned().flatten()
    }

    /// `false` where the id is in use.
    pub(super) fn claim_on_disk(&mut self, extent: ExtentId) -> bool {
        let is_free = !self.is_used(extent);
        if is_free {
            self.on_disk.insert(extent, None);
        }
        is_free
    }

    pub(super) fn enter_on_disk(&mut self, extent: ExtentId, made: Arc<DiskExtent>) {
        self.on_disk.insert(extent, Some(made));
    }

    /// Nobody finds it any more; its id is in use until it is deleted.
    pub(super) fn retire_on_disk(&mut self, extent: ExtentId) -> Option<Arc<DiskExtent>> {
        self.on_disk.get_mut(&extent).and_then(Option::take)
    }

    pub(super) fn forget_on_disk(&mut self, extent: ExtentId) {
        self.on_disk.remove(&extent);
    }

    /// From live to awaited. The caller drops what it gets, which is the driver's own hold on the memory. What nobody
    /// else can have is kept, where memory is.
    pub(super) fn retire(&mut self, extent: ExtentId) -> Option<Arc<Memory>> {
        let memory = self.live.remove(&extent)?;
        let (identity, size) = (memory.identity(), memory.size());
        let account = self.account(identity.place);
        account.live = account.live.saturating_sub(size);
        let memory = match Arc::try_unwrap(memory) {
            Ok(memory) if self.is_keeping && identity.place == Place::Host && memory.is_sole() => {
                self.keep(memory, false);
                return None;
            }
            Ok(memory) => Arc::new(memory),
            Err(shared) => shared,
        };
        let account = self.account(identity.place);
        account.awaited = account.awaited.saturating_add(size);
        self.awaited.insert(extent, Awaited { identity, size });
        Some(memory)
    }

    pub(super) fn is_awaited(&self, extent: ExtentId) -> bool {
        self.awaited.contains_key(&extent)
    }

    /// Takes a look's findings: frees what is awaited and was not seen, and returns it; what was seen and is neither
    /// live nor awaited is unbrokered. The look must have begun after every awaited extent was retired. Extents made
    /// since it began are in the books already, so they are never taken for somebody else's.
    pub(super) fn settle(&mut self, seen: &Sightings) -> Vec<ExtentId> {
        let (kept, returned): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.awaited)
            .into_iter()
            .partition(|(_, it)| seen.contains_key(&it.identity));
        self.awaited = kept;
        for it in returned.values() {
            let account = self.account(it.identity.place);
            account.awaited = account.awaited.saturating_sub(it.size);
            self.ours.remove(&it.identity);
        }
        for account in self.devices.iter_mut().chain([&mut self.host]) {
            account.unbrokered = Bytes::ZERO;
        }
        for (identity, size) in seen {
            if !self.ours.contains(identity) {
                let account = self.account(identity.place);
                account.unbrokered = account.unbrokered.saturating_add(*size);
            }
        }
        returned.into_keys().collect()
    }

    /// As of the last look: of a device, and its share of what others took of the host's memory.
    pub(super) fn unbrokered(&self, device: DeviceIndex) -> (Bytes, Bytes) {
        let of_device = self.devices.get(usize::from(device.0)).map_or(Bytes::ZERO, |it| it.unbrokered);
        let devices = u64::try_from(self.devices.len()).unwrap_or(1).max(1);
        let share = Bytes::new(self.host.unbrokered.get().div_ceil(devices));
        (of_device, share.checked_round_up(GRANULARITY).unwrap_or(share))
    }

    /// Of a place that an identity names, which is always one of ours.
    fn account(&mut self, place: Place) -> &mut Account {
        match place {
            Place::Device(device) => &mut self.devices[usize::from(device.0)],
            Place::Host => &mut self.host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceIndex = DeviceIndex(0);
    const FIRST: Place = Place::Device(DEVICE);
    const FULL: Result<(), Refusal> = Err(Refusal::Final(DriverError::OutOfMemory));

    fn books(total: Bytes) -> Books {
        let info = DeviceInfo {
            uuid: "GPU-books-test".to_owned(),
            name: String::new(),
            total,
            context: Bytes::ZERO,
        };
        Books::new(&[info.clone(), info], Bytes::mib(2))
    }

    fn id(raw: u64) -> ExtentId {
        ExtentId::from_raw(raw)
    }

    fn enter(books: &mut Books, raw: u64, size: Bytes) -> Identity {
        let memory = Arc::new(Memory::new("GPU-books-test", FIRST, raw, size).unwrap());
        let identity = memory.identity();
        books.enter(id(raw), memory);
        identity
    }

    #[test]
    fn the_whole_device_and_not_a_byte_more() {
        let mut books = books(Bytes::mib(4));
        assert_eq!(books.admit(id(1), FIRST, Bytes::mib(4)), Ok(()));
        enter(&mut books, 1, Bytes::mib(4));
        assert_eq!(books.admit(id(2), FIRST, Bytes::mib(2)), FULL);
        assert_eq!(
            books.admit(id(2), Place::Device(DeviceIndex(1)), Bytes::mib(4)),
            Ok(()),
            "another device"
        );
        assert_eq!(books.admit(id(2), Place::Device(DeviceIndex(1)), Bytes::new(u64::MAX << 21)), FULL);
    }

    #[test]
    fn the_host_has_its_own_capacity_and_says_what_it_is() {
        let mut books = books(Bytes::mib(4));
        enter(&mut books, 1, Bytes::mib(4));
        assert_eq!(books.admit(id(2), Place::Host, Bytes::mib(2)), Ok(()));
        let full = DriverError::OutOfHostMemory(HostLimit::Capacity(Bytes::mib(2)));
        assert_eq!(books.admit(id(2), Place::Host, Bytes::mib(4)), Err(Refusal::Final(full)));
    }

    #[test]
    fn what_is_kept_leaves_room_for_what_is_asked() {
        let mut books =
            Books { host: Account { total: Bytes::mib(8), ..Account::default() }, ..books(Bytes::ZERO) };
        books.keep_host(Bytes::mib(6), Bytes::mib(2), 10).unwrap();
        assert!(books.keep_host(Bytes::mib(8), Bytes::mib(2), 10).is_err(), "once");
        let fill = |books: &mut Books| while books.fill("GPU-books-test").unwrap() {};
        fill(&mut books);
        assert_eq!((books.is_filled(), books.is_filled()), (Some(Bytes::mib(6)), None));

        assert_eq!(books.admit(id(1), Place::Host, Bytes::mib(4)), Ok(()), "kept memory is room");
        assert!(books.take_kept(Bytes::mib(4), true).unwrap().is_none());
        assert_eq!(books.pool.bytes(), Bytes::mib(2));
        let memory = books.host_memory("GPU-books-test", Bytes::mib(4)).unwrap();
        let identity = memory.identity();
        books.enter(id(1), Arc::new(memory));
        fill(&mut books);
        assert_eq!(books.pool.bytes(), Bytes::mib(2), "and no more than there is room for");
        assert!(books.retire(id(1)).is_none(), "it is kept");
        assert!(!books.is_awaited(id(1)));
        let again = books.take_kept(Bytes::mib(4), true).unwrap().unwrap();
        assert_eq!(again.identity(), identity);
        books.enter(id(2), Arc::new(again));
        assert!(books.live(id(2)).unwrap().handle().fd().is_some());
        assert!(books.retire(id(2)).is_some(), "who has asked for the descriptor may have it");
        assert!(books.is_awaited(id(2)));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut books = books(Bytes::mib(4));
        enter(&mut books, 1, Bytes::mib(2));
        let refused = |extent, place, size| {
            matches!(books.admit(extent, place, size), Err(Refusal::Final(DriverError::Failed(_))))
        };
        assert!(refused(id(2), Place::Device(DeviceIndex(2)), Bytes::mib(2)));
        assert!(refused(id(2), FIRST, Bytes::ZERO));
        assert!(refused(id(2), FIRST, Bytes::new(4096)));
        assert!(refused(id(1), FIRST, Bytes::mib(2)));
    }

    #[test]
    fn released_memory_is_free_when_nobody_is_seen_with_it() {
        let mut books = books(Bytes::mib(4));
        let identity = enter(&mut books, 1, Bytes::mib(4));
        drop(books.retire(id(1)));
        assert!(books.live(id(1)).is_none());
        assert_eq!(books.settle(&Sightings::from([(identity, Bytes::mib(4))])), []);
        assert!(books.is_awaited(id(1)));
        assert_eq!(books.unbrokered(DEVICE), (Bytes::ZERO, Bytes::ZERO), "awaited memory is explained");
        assert_eq!(books.admit(id(2), FIRST, Bytes::mib(2)), Err(Refusal::Tight));
        assert_eq!(books.settle(&Sightings::new()), [id(1)]);
        assert_eq!(books.admit(id(2), FIRST, Bytes::mib(4)), Ok(()));
        assert_eq!(books.settle(&Sightings::new()), [], "told once");
    }

    #[test]
    fn only_what_the_books_do_not_explain_is_unbrokered() {
        let mut books = books(Bytes::mib(8));
        let live = enter(&mut books, 1, Bytes::mib(2));
        let reused_id = Identity { inode: live.inode + 1, ..live };
        let seen = [(live, Bytes::mib(2)), (reused_id, Bytes::mib(4))];
        books.settle(&seen.into_iter().collect());
        assert_eq!(books.unbrokered(DEVICE), (Bytes::mib(4), Bytes::ZERO));
        assert_eq!(books.admit(id(2), FIRST, Bytes::mib(2)), Ok(()));
        assert_eq!(books.admit(id(2), FIRST, Bytes::mib(4)), Err(Refusal::Tight));
        books.settle(&Sightings::new());
        assert_eq!(books.unbrokered(DEVICE), (Bytes::ZERO, Bytes::ZERO));
    }
}
