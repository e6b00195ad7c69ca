//! What each device and the host have, and what of it is held by whom. Says nothing about how memory is made or looked for.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use vramd_types::{Bytes, DeviceIndex, ExtentId, GRANULARITY};

use super::{
    holders::Sightings,
    memory::{Identity, Memory},
};
use crate::{DeviceInfo, DriverError, HostLimit, place::Place};

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
        if self.live.contains_key(&extent) || self.awaited.contains_key(&extent) {
            return failed(format!("{extent} exists"));
        }
        let with_live = account.live.saturating_add(size);
        if with_live > account.total {
            return Err(Refusal::Final(self.is_full(place)));
        }
        let with_all = with_live.saturating_add(account.awaited).saturating_add(account.unbrokered);
        if with_all > account.total { Err(Refusal::Tight) } else { Ok(()) }
    }

    pub(super) fn is_full(&self, place: Place) -> DriverError {
        match place {
            Place::Device(_) => DriverError::OutOfMemory,
            Place::Host => DriverError::OutOfHostMemory(HostLimit::Capacity(self.host.total)),
        }
    }

    /// Enters an admitted extent.
    pub(super) fn enter(&mut self, memory: Arc<Memory>) {
        let Identity { place, extent, .. } = memory.identity();
        let account = self.account(place);
        account.live = account.live.saturating_add(memory.size());
        self.live.insert(extent, memory);
    }

    pub(super) fn live(&self, extent: ExtentId) -> Option<Arc<Memory>> {
        self.live.get(&extent).map(Arc::clone)
    }

    /// From live to awaited. The caller drops what it gets, which is the driver's own hold on the memory.
    pub(super) fn retire(&mut self, extent: ExtentId) -> Option<Arc<Memory>> {
        let memory = self.live.remove(&extent)?;
        let (identity, size) = (memory.identity(), memory.size());
        let account = self.account(identity.place);
        account.live = account.live.saturating_sub(size);
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
        }
        for account in self.devices.iter_mut().chain([&mut self.host]) {
            account.unbrokered = Bytes::ZERO;
        }
        for (identity, size) in seen {
            if !self.explains(identity) {
                let account = self.account(identity.place);
                account.unbrokered = account.unbrokered.saturating_add(*size);
            }
        }
        returned.into_keys().collect()
    }

    /// As of the last look.
    pub(super) fn unbrokered(&self, device: DeviceIndex) -> Bytes {
        self.devices.get(usize::from(device.0)).map_or(Bytes::ZERO, |account| account.unbrokered)
    }

    fn explains(&self, identity: &Identity) -> bool {
        let live = self.live.get(&identity.extent).is_some_and(|memory| memory.identity() == *identity);
        live || self.awaited.get(&identity.extent).is_some_and(|it| it.identity == *identity)
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
        let memory = Arc::new(Memory::new("GPU-books-test", FIRST, id(raw), size).unwrap());
        let identity = memory.identity();
        books.enter(memory);
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
        assert_eq!(books.unbrokered(DEVICE), Bytes::ZERO, "awaited memory is explained");
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
        assert_eq!(books.unbrokered(DEVICE), Bytes::mib(4));
        assert_eq!(books.admit(id(2), FIRST, Bytes::mib(2)), Ok(()));
        assert_eq!(books.admit(id(2), FIRST, Bytes::mib(4)), Err(Refusal::Tight));
        books.settle(&Sightings::new());
        assert_eq!(books.unbrokered(DEVICE), Bytes::ZERO);
    }
}
