//! The accounts of the simulated devices and the host: which memory is live, awaited, free or unbrokered. Knows
//! nothing about how memory is made or surveyed.

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
    DeviceInfo, DriverError, FreePinnedFacts, HostLimit, PinPace,
    disk::DiskExtent,
    free_pinned::{FreeMemory, FreePinned, Step},
    location::Location,
};

/// Why an extent cannot be created, or not yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Only memory that other processes held at the last survey stands in the way: survey again.
    NeedsSurvey,
    Final(DriverError),
}

#[derive(Debug)]
pub(super) struct Accounts {
    devices: Vec<Balance>,
    host: Balance,
    live: HashMap<ExtentId, Arc<Memory>>,
    /// Released extents that some process held at the last survey.
    awaited: BTreeMap<ExtentId, Awaited>,
    /// Extents on disk; none while an extent is being created or deleted.
    on_disk: HashMap<ExtentId, Option<Arc<DiskExtent>>>,
    /// Host memory that no extent uses. It counts as room for new extents.
    free_pinned: FreePinned<Memory>,
    pins_ahead: bool,
    last_of_host: u64,
    /// All live, awaited and free memory.
    ours: HashSet<Identity>,
}

#[derive(Debug, Default)]
struct Balance {
    total: Bytes,
    live: Bytes,
    awaited: Bytes,
    /// As of the last survey.
    unbrokered: Bytes,
}

#[derive(Debug)]
struct Awaited {
    identity: Identity,
    size: Bytes,
}

impl Accounts {
    pub(super) fn new(devices: &[DeviceInfo], host: Bytes) -> Self {
        let balance = |total| Balance { total, ..Balance::default() };
        Self {
            devices: devices.iter().map(|info| balance(info.total)).collect(),
            host: balance(host),
            live: HashMap::new(),
            awaited: BTreeMap::new(),
            on_disk: HashMap::new(),
            free_pinned: FreePinned::default(),
            pins_ahead: false,
            last_of_host: 0,
            ours: HashSet::new(),
        }
    }

    /// Checks that an extent of that id and size can be created there now.
    pub(super) fn admit(&self, extent: ExtentId, location: Location, size: Bytes) -> Result<(), Refusal> {
        let failed = |problem: String| Err(Refusal::Final(DriverError::Failed(problem)));
        let balance = match location {
            Location::Host => Some(&self.host),
            Location::Device(device) => self.devices.get(usize::from(device.0)),
        };
        let Some(balance) = balance else { return failed(format!("{location} does not exist")) };
        if size.is_zero() || !size.is_multiple_of(GRANULARITY) {
            return failed(format!("{} bytes are not a multiple of 2 MiB", size.get()));
        }
        if self.is_id_used(extent) {
            return failed(format!("extent {extent} exists already"));
        }
        let with_live = balance.live.saturating_add(size);
        if with_live > balance.total {
            return Err(Refusal::Final(self.full_error(location)));
        }
        let with_all = with_live.saturating_add(balance.awaited).saturating_add(balance.unbrokered);
        if with_all > balance.total { Err(Refusal::NeedsSurvey) } else { Ok(()) }
    }

    fn is_id_used(&self, extent: ExtentId) -> bool {
        let in_memory = self.live.contains_key(&extent) || self.awaited.contains_key(&extent);
        in_memory || self.on_disk.contains_key(&extent)
    }

    pub(super) fn full_error(&self, location: Location) -> DriverError {
        match location {
            Location::Device(_) => DriverError::OutOfMemory,
            Location::Host => DriverError::OutOfHostMemory(HostLimit::Capacity(self.host.total)),
        }
    }

    /// Enters an admitted extent.
    pub(super) fn enter(&mut self, extent: ExtentId, memory: Arc<Memory>) {
        let balance = self.balance(memory.identity().location);
        balance.live = balance.live.saturating_add(memory.size());
        self.ours.insert(memory.identity());
        self.live.insert(extent, memory);
    }

    /// Limits the host memory, and pins ahead of need from now on.
    pub(super) fn set_pin_target(
        &mut self,
        size: Bytes,
        piece: Bytes,
        pieces_max: usize,
        pace: PinPace,
    ) -> Result<(), DriverError> {
        if mem::replace(&mut self.pins_ahead, true) {
            return Err(DriverError::Failed("host memory is already pinned ahead".to_owned()));
        }
        self.host.total = self.host.total.min(size);
        self.free_pinned = FreePinned::new(piece, pieces_max, pace);
        Ok(())
    }

    /// Takes free memory for an admitted host extent, if some fits. Otherwise it makes room for new memory.
    pub(super) fn take_free_pinned(
        &mut self,
        size: Bytes,
        zeroed: bool,
    ) -> Result<Option<Memory>, DriverError> {
        if let Some(FreeMemory { memory, is_zero }) = self.free_pinned.take(size, zeroed) {
            if zeroed && !is_zero {
                memory.zero()?;
            }
            return Ok(Some(memory));
        }
        let room = self.room_in_host().saturating_sub(size);
        for memory in self.free_pinned.shrink_to(room) {
            self.ours.remove(&memory.identity());
        }
        Ok(None)
    }

    pub(super) fn host_memory(&mut self, uuid: &str, size: Bytes) -> io::Result<Memory> {
        self.last_of_host += 1;
        Memory::new(uuid, Location::Host, self.last_of_host, size)
    }

    /// Does one step of pinning ahead: creates a piece, or frees what stands in its way. Returns whether there
    /// was a step.
    pub(super) fn pin_step(&mut self, uuid: &str) -> io::Result<bool> {
        match self.free_pinned.step(self.room_ahead()) {
            None => return Ok(false),
            Some(Step::Unpin(memory)) => {
                self.ours.remove(&memory.identity());
            }
            Some(Step::Pin(size)) => {
                let memory = self.host_memory(uuid, size).inspect_err(|_| self.free_pinned.pin_failed())?;
                self.add_free(memory, true);
            }
        }
        Ok(true)
    }

    /// The free memory, if it is pinned ahead.
    pub(super) fn free_pinned(&self, node: HostNode) -> Option<FreePinnedFacts> {
        self.pins_ahead.then(|| self.free_pinned.facts(node))
    }

    /// Returns the free bytes once, when nothing is left to pin ahead.
    pub(super) fn take_filled(&mut self) -> Option<Bytes> {
        let room = self.room_ahead();
        self.free_pinned.take_filled(room).then(|| self.free_pinned.bytes())
    }

    /// Stops pinning ahead. Returns the free bytes, unless they were returned before.
    pub(super) fn stop_pinning_ahead(&mut self) -> Option<Bytes> {
        self.free_pinned.stop();
        self.take_filled()
    }

    fn add_free(&mut self, memory: Memory, is_zero: bool) {
        let identity = memory.identity();
        self.ours.insert(identity);
        if self.free_pinned.add(memory.size(), FreeMemory { memory, is_zero }).is_err() {
            self.ours.remove(&identity);
        }
    }

    /// The host memory that extents and other processes leave.
    fn room_in_host(&self) -> Bytes {
        let Balance { total, live, awaited, unbrokered } = self.host;
        total.saturating_sub(live).saturating_sub(awaited).saturating_sub(unbrokered)
    }

    /// The part of that room that is pinned ahead.
    fn room_ahead(&self) -> Bytes {
        self.free_pinned.room_ahead(self.room_in_host(), self.host.live)
    }

    pub(super) fn live(&self, extent: ExtentId) -> Option<Arc<Memory>> {
        self.live.get(&extent).map(Arc::clone)
    }

    pub(super) fn on_disk(&self, extent: ExtentId) -> Option<Arc<DiskExtent>> {
        self.on_disk.get(&extent).cloned().flatten()
    }

    /// Reserves an id. `false` if it is in use.
    pub(super) fn claim_on_disk(&mut self, extent: ExtentId) -> bool {
        let is_free = !self.is_id_used(extent);
        if is_free {
            self.on_disk.insert(extent, None);
        }
        is_free
    }

    pub(super) fn enter_on_disk(&mut self, extent: ExtentId, made: Arc<DiskExtent>) {
        self.on_disk.insert(extent, Some(made));
    }

    /// Removes the extent from the table. Its id stays in use until the file is deleted.
    pub(super) fn retire_on_disk(&mut self, extent: ExtentId) -> Option<Arc<DiskExtent>> {
        self.on_disk.get_mut(&extent).and_then(Option::take)
    }

    pub(super) fn forget_on_disk(&mut self, extent: ExtentId) {
        self.on_disk.remove(&extent);
    }

    /// Moves an extent from live to awaited, and returns the driver's own reference for the caller to drop.
    /// Memory that no other process can have stays free instead, if memory is pinned ahead.
    pub(super) fn retire(&mut self, extent: ExtentId) -> Option<Arc<Memory>> {
        let memory = self.live.remove(&extent)?;
        let (identity, size) = (memory.identity(), memory.size());
        let balance = self.balance(identity.location);
        balance.live = balance.live.saturating_sub(size);
        let memory = match Arc::try_unwrap(memory) {
            Ok(memory) if self.pins_ahead && identity.location == Location::Host && memory.is_sole() => {
                self.add_free(memory, false);
                return None;
            }
            Ok(memory) => Arc::new(memory),
            Err(shared) => shared,
        };
        let balance = self.balance(identity.location);
        balance.awaited = balance.awaited.saturating_add(size);
        self.awaited.insert(extent, Awaited { identity, size });
        Some(memory)
    }

    pub(super) fn is_awaited(&self, extent: ExtentId) -> bool {
        self.awaited.contains_key(&extent)
    }

    /// Applies a survey. Awaited extents that it did not see are free, and are returned. Memory that it saw and
    /// that is neither live nor awaited is unbrokered. The survey must have begun after every awaited extent
    /// was retired. Extents created since it began are in the accounts already, so they are never counted as
    /// unbrokered.
    pub(super) fn apply_survey(&mut self, seen: &Sightings) -> Vec<ExtentId> {
        let (free, returned): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.awaited)
            .into_iter()
            .partition(|(_, it)| seen.contains_key(&it.identity));
        self.awaited = free;
        for it in returned.values() {
            let balance = self.balance(it.identity.location);
            balance.awaited = balance.awaited.saturating_sub(it.size);
            self.ours.remove(&it.identity);
        }
        for balance in self.devices.iter_mut().chain([&mut self.host]) {
            balance.unbrokered = Bytes::ZERO;
        }
        for (identity, size) in seen {
            if !self.ours.contains(identity) {
                let balance = self.balance(identity.location);
                balance.unbrokered = balance.unbrokered.saturating_add(*size);
            }
        }
        returned.into_keys().collect()
    }

    /// As of the last survey: unbrokered memory of a device, and its share of the unbrokered host memory.
    pub(super) fn unbrokered(&self, device: DeviceIndex) -> (Bytes, Bytes) {
        let of_device = self.devices.get(usize::from(device.0)).map_or(Bytes::ZERO, |it| it.unbrokered);
        let devices = u64::try_from(self.devices.len()).unwrap_or(1).max(1);
        let share = Bytes::new(self.host.unbrokered.get().div_ceil(devices));
        (of_device, share.checked_round_up(GRANULARITY).unwrap_or(share))
    }

    /// The balance of a location from an identity, which always exists.
    fn balance(&mut self, location: Location) -> &mut Balance {
        match location {
            Location::Device(device) => &mut self.devices[usize::from(device.0)],
            Location::Host => &mut self.host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceIndex = DeviceIndex(0);
    const FIRST: Location = Location::Device(DEVICE);
    const FULL: Result<(), Refusal> = Err(Refusal::Final(DriverError::OutOfMemory));

    fn accounts(total: Bytes) -> Accounts {
        let info = DeviceInfo {
            uuid: "GPU-books-test".to_owned(),
            name: String::new(),
            total,
            context: Bytes::ZERO,
        };
        Accounts::new(&[info.clone(), info], Bytes::mib(2))
    }

    fn id(raw: u64) -> ExtentId {
        ExtentId::from_raw(raw)
    }

    fn enter(accounts: &mut Accounts, raw: u64, size: Bytes) -> Identity {
        let memory = Arc::new(Memory::new("GPU-books-test", FIRST, raw, size).unwrap());
        let identity = memory.identity();
        accounts.enter(id(raw), memory);
        identity
    }

    #[test]
    fn a_device_admits_exactly_its_total() {
        let mut accounts = accounts(Bytes::mib(4));
        assert_eq!(accounts.admit(id(1), FIRST, Bytes::mib(4)), Ok(()));
        enter(&mut accounts, 1, Bytes::mib(4));
        assert_eq!(accounts.admit(id(2), FIRST, Bytes::mib(2)), FULL);
        assert_eq!(
            accounts.admit(id(2), Location::Device(DeviceIndex(1)), Bytes::mib(4)),
            Ok(()),
            "another device"
        );
        assert_eq!(accounts.admit(id(2), Location::Device(DeviceIndex(1)), Bytes::new(u64::MAX << 21)), FULL);
    }

    #[test]
    fn the_host_has_its_own_capacity_and_says_what_it_is() {
        let mut accounts = accounts(Bytes::mib(4));
        enter(&mut accounts, 1, Bytes::mib(4));
        assert_eq!(accounts.admit(id(2), Location::Host, Bytes::mib(2)), Ok(()));
        let full = DriverError::OutOfHostMemory(HostLimit::Capacity(Bytes::mib(2)));
        assert_eq!(accounts.admit(id(2), Location::Host, Bytes::mib(4)), Err(Refusal::Final(full)));
    }

    #[test]
    fn free_pinned_memory_leaves_room_for_creates() {
        let mut accounts = Accounts {
            host: Balance { total: Bytes::mib(8), ..Balance::default() },
            ..accounts(Bytes::ZERO)
        };
        accounts.set_pin_target(Bytes::mib(6), Bytes::mib(2), 10, PinPace::FromStart).unwrap();
        assert!(
            accounts.set_pin_target(Bytes::mib(8), Bytes::mib(2), 10, PinPace::FromStart).is_err(),
            "once"
        );
        let pin_step = |accounts: &mut Accounts| while accounts.pin_step("GPU-books-test").unwrap() {};
        pin_step(&mut accounts);
        assert_eq!((accounts.take_filled(), accounts.take_filled()), (Some(Bytes::mib(6)), None));

        assert_eq!(
            accounts.admit(id(1), Location::Host, Bytes::mib(4)),
            Ok(()),
            "free memory counts as room"
        );
        assert!(accounts.take_free_pinned(Bytes::mib(4), true).unwrap().is_none());
        assert_eq!(accounts.free_pinned.bytes(), Bytes::mib(2));
        let memory = accounts.host_memory("GPU-books-test", Bytes::mib(4)).unwrap();
        let identity = memory.identity();
        accounts.enter(id(1), Arc::new(memory));
        pin_step(&mut accounts);
        assert_eq!(accounts.free_pinned.bytes(), Bytes::mib(2), "and no more than there is room for");
        assert!(accounts.retire(id(1)).is_none(), "it stays pinned");
        assert!(!accounts.is_awaited(id(1)));
        let again = accounts.take_free_pinned(Bytes::mib(4), true).unwrap().unwrap();
        assert_eq!(again.identity(), identity);
        accounts.enter(id(2), Arc::new(again));
        assert!(accounts.live(id(2)).unwrap().export().fd().is_some());
        assert!(accounts.retire(id(2)).is_some(), "a lent descriptor may be held elsewhere");
        assert!(accounts.is_awaited(id(2)));
    }

    #[test]
    fn invalid_creates_are_refused() {
        let mut accounts = accounts(Bytes::mib(4));
        enter(&mut accounts, 1, Bytes::mib(2));
        let refused = |extent, location, size| {
            matches!(accounts.admit(extent, location, size), Err(Refusal::Final(DriverError::Failed(_))))
        };
        assert!(refused(id(2), Location::Device(DeviceIndex(2)), Bytes::mib(2)));
        assert!(refused(id(2), FIRST, Bytes::ZERO));
        assert!(refused(id(2), FIRST, Bytes::new(4096)));
        assert!(refused(id(1), FIRST, Bytes::mib(2)));
    }

    #[test]
    fn released_memory_is_free_once_no_holder_is_seen() {
        let mut accounts = accounts(Bytes::mib(4));
        let identity = enter(&mut accounts, 1, Bytes::mib(4));
        drop(accounts.retire(id(1)));
        assert!(accounts.live(id(1)).is_none());
        assert_eq!(accounts.apply_survey(&Sightings::from([(identity, Bytes::mib(4))])), []);
        assert!(accounts.is_awaited(id(1)));
        assert_eq!(accounts.unbrokered(DEVICE), (Bytes::ZERO, Bytes::ZERO), "awaited memory is explained");
        assert_eq!(accounts.admit(id(2), FIRST, Bytes::mib(2)), Err(Refusal::NeedsSurvey));
        assert_eq!(accounts.apply_survey(&Sightings::new()), [id(1)]);
        assert_eq!(accounts.admit(id(2), FIRST, Bytes::mib(4)), Ok(()));
        assert_eq!(accounts.apply_survey(&Sightings::new()), [], "reported once");
    }

    #[test]
    fn only_unexplained_memory_is_unbrokered() {
        let mut accounts = accounts(Bytes::mib(8));
        let live = enter(&mut accounts, 1, Bytes::mib(2));
        let reused_id = Identity { inode: live.inode + 1, ..live };
        let seen = [(live, Bytes::mib(2)), (reused_id, Bytes::mib(4))];
        accounts.apply_survey(&seen.into_iter().collect());
        assert_eq!(accounts.unbrokered(DEVICE), (Bytes::mib(4), Bytes::ZERO));
        assert_eq!(accounts.admit(id(2), FIRST, Bytes::mib(2)), Ok(()));
        assert_eq!(accounts.admit(id(2), FIRST, Bytes::mib(4)), Err(Refusal::NeedsSurvey));
        accounts.apply_survey(&Sightings::new());
        assert_eq!(accounts.unbrokered(DEVICE), (Bytes::ZERO, Bytes::ZERO));
    }
}
