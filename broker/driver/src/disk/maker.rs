//! Creates and deletes the files of extents, and opens ranges of foreign files, on a thread of its own: a file
//! system takes its time for either.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use vramd_types::{Bytes, ExtentId};

use super::{Disk, extent::DiskExtent};
use crate::{Completion, DriverError, FileSpan};

/// How often released extents are checked for the end of their copies.
const POLL_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) enum DiskOrder {
    Make {
        extent: ExtentId,
        size: Bytes,
        /// A scheduled failure.
        failure: Option<DriverError>,
    },
    /// An extent that is a range of a foreign file.
    Open { extent: ExtentId, size: Bytes, span: FileSpan },
    /// Deletes a released extent, which is no longer in the driver's table.
    Release { extent: ExtentId, released: Arc<DiskExtent> },
}

/// The driver's table of extents, and its sink.
pub(crate) trait Registry {
    /// Reserves an id. `false` if it is in use.
    fn claim(&self, extent: ExtentId) -> bool;

    /// Enters a created extent under its reserved id.
    fn enter(&self, extent: ExtentId, made: Arc<DiskExtent>);

    /// Frees the id.
    fn forget(&self, extent: ExtentId);

    fn report(&self, completion: Completion);
}

/// Runs until all senders are gone.
pub(crate) fn run(disk: Option<&Disk>, registry: &impl Registry, orders: &Receiver<DiskOrder>) {
    let mut in_use: Vec<(ExtentId, Arc<DiskExtent>)> = Vec::new();
    loop {
        let order = match in_use.is_empty() {
            true => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => orders.recv_timeout(POLL_EVERY),
        };
        match order {
            Ok(DiskOrder::Make { extent, size, failure }) => {
                let made = || enter(registry, extent, || own(disk, extent, size));
                let result = failure.map_or_else(made, Err);
                registry.report(Completion::DiskCreated { extent, result });
            }
            Ok(DiskOrder::Open { extent, size, span }) => {
                let opened = || disk.map(|_| DiskExtent::of_file(extent, size, span)).unwrap_or_else(no_disk);
                let result = enter(registry, extent, opened);
                registry.report(Completion::DiskCreated { extent, result });
            }
            Ok(DiskOrder::Release { extent, released }) => in_use.push((extent, released)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if in_use.is_empty() => return,
            Err(RecvTimeoutError::Disconnected) => thread::sleep(POLL_EVERY),
        }
        in_use = in_use.into_iter().filter_map(|(extent, it)| delete(registry, extent, it)).collect();
    }
}

fn own(disk: Option<&Disk>, extent: ExtentId, size: Bytes) -> Result<DiskExtent, DriverError> {
    let store = disk.and_then(|disk| disk.store.as_ref());
    store.map_or_else(no_disk, |store| DiskExtent::new(&store.directory, extent, size))
}

fn no_disk<T>() -> Result<T, DriverError> {
    Err(DriverError::Failed("no directory for extents on disk is configured".to_owned()))
}

fn enter(
    registry: &impl Registry,
    extent: ExtentId,
    make: impl FnOnce() -> Result<DiskExtent, DriverError>,
) -> Result<(), DriverError> {
    if !registry.claim(extent) {
        return Err(DriverError::Failed(format!("extent {extent} exists already")));
    }
    match make() {
        Ok(made) => registry.enter(extent, Arc::new(made)),
        Err(error) => {
            registry.forget(extent);
            return Err(error);
        }
    }
    Ok(())
}

/// Deletes an extent, unless a copy of it is in flight. Then the thread deletes it once that has ended.
fn delete(
    registry: &impl Registry,
    extent: ExtentId,
    released: Arc<DiskExtent>,
) -> Option<(ExtentId, Arc<DiskExtent>)> {
    match Arc::try_unwrap(released) {
        Ok(sole) => {
            let (size, deleted) = (sole.size().get(), sole.delete());
            match &deleted {
                Ok(()) => registry.forget(extent),
                Err(why) => {
                    let problem = format!(
                        "the file of extent {extent} cannot be deleted, its {size} bytes stay in use: {why}"
                    );
                    registry.report(Completion::Warning { problem });
                }
            }
            registry.report(Completion::Released { extent, returned: deleted.is_ok() });
            None
        }
        Err(shared) => Some((extent, shared)),
    }
}
