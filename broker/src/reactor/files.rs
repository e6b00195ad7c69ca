//! Files that clients load. The core knows them only by number.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use broker_core::FileId;

/// Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Files(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    last: u64,
    open: BTreeMap<FileId, Weak<OwnedFd>>,
}

/// A registered file. It can be found as long as this lives, which is until the call is answered. An extent that was
/// opened from it has its own reference.
#[derive(Debug)]
pub struct RegisteredFile {
    pub id: FileId,
    _file: Arc<OwnedFd>,
    table: Files,
}

impl Files {
    pub fn register(&self, file: OwnedFd) -> RegisteredFile {
        let file = Arc::new(file);
        let mut table = self.lock();
        table.last += 1;
        let id = FileId(table.last);
        table.open.insert(id, Arc::downgrade(&file));
        RegisteredFile { id, _file: file, table: self.clone() }
    }

    pub(super) fn find(&self, id: FileId) -> Option<Arc<OwnedFd>> {
        self.lock().open.get(&id)?.upgrade()
    }

    /// Every change is complete before any code could panic, so the data behind a poisoned lock is valid.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        self.table.lock().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_file_is_found_while_it_is_registered() {
        let files = Files::default();
        let open = || files.register(File::open("/dev/null").unwrap().into());
        let (one, two) = (open(), open());
        assert!(one.id != two.id && files.find(one.id).is_some());
        let id = one.id;
        let kept = files.find(id);
        drop(one);
        assert!(files.find(id).is_none() && kept.is_some());
        assert!(files.find(two.id).is_some());
        drop(two);
        assert!(files.lock().open.is_empty());
    }
}
