//! Opens the files that clients load, before the core knows of them.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use broker_core::{FileSpan, Refusal};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use vramd_types::{Bytes, file_range_problem};

use super::caller::Caller;
use crate::{
    platform::client_files::{self, Immutable, NotLoadable},
    reactor::{Files, RegisteredFile},
};

/// Maximum files that are opened at once: a hanging file system can hold up no more threads.
const CONCURRENT_OPENS_MAX: usize = 8;

/// The same for one user, so that a user's own hanging file system leaves room for others.
const CONCURRENT_OPENS_PER_USER_MAX: usize = 2;

/// Maximum time to open a file, including the wait for a permit.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Which files may be loaded, and the table of those being loaded.
#[derive(Clone, Debug)]
pub struct Loading {
    files: Files,
    immutable: Arc<[PathBuf]>,
    /// `None` if no file may be loaded.
    opening: Option<Arc<OpenPermits>>,
}

/// Why a file was not opened.
#[derive(Debug)]
pub(super) enum NotOpened {
    /// The daemon could not look at it, or not in time. It may well be immutable.
    Unchecked {
        fd: u32,
    },
    Refused(Refusal),
}

impl From<NotOpened> for Refusal {
    fn from(why: NotOpened) -> Self {
        match why {
            NotOpened::Unchecked { fd } => {
                file_mutable(fd, "the daemon could not look at the file, or not within 5 s")
            }
            NotOpened::Refused(refusal) => refusal,
        }
    }
}

fn file_mutable(fd: u32, why: &str) -> Refusal {
    Refusal::FileMutable { path: format!("descriptor {fd}"), why: why.to_owned() }
}

/// Permits to open files.
#[derive(Debug)]
struct OpenPermits {
    all: Arc<Semaphore>,
    of_users: Mutex<BTreeMap<u32, Arc<Semaphore>>>,
}

/// One permit, given back when dropped.
#[derive(Debug)]
struct OpenPermit {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Loading {
    pub fn new(files: Files, immutable: &[PathBuf], any: bool) -> Self {
        let opening = any.then(|| Arc::new(OpenPermits::new()));
        Self { files, immutable: immutable.into(), opening }
    }

    /// Opens the file behind a descriptor of the caller and checks the requested range; 0 bytes mean everything from
    /// the offset on. Returns the registered file, the span and its size.
    pub(super) async fn open(
        &self,
        caller: &Caller,
        fd: u32,
        offset: Bytes,
        asked: Bytes,
    ) -> Result<(RegisteredFile, FileSpan, Bytes), NotOpened> {
        let opening = self.opening.clone().ok_or_else(|| {
            NotOpened::Refused(file_mutable(
                fd,
                "the daemon loads no files, since neither files.immutable_paths nor files.verity is set",
            ))
        })?;
        let unknown = || NotOpened::Unchecked { fd };
        let (immutable, caller) = (Arc::clone(&self.immutable), caller.clone());
        let uid = caller.with_peer(|peer| peer.uid).ok_or_else(unknown)?;
        let opened = async {
            let seat = opening.take(uid).await.ok_or_else(unknown)?;
            let opened = tokio::task::spawn_blocking(move || {
                let _seat = seat;
                caller.with_peer(|peer| client_files::open_of(peer, fd, &immutable))
            });
            opened.await.ok().flatten().ok_or_else(unknown)
        };
        // A hanging file system must not delay other clients: a file that cannot be checked in time counts as mutable.
        let opened = timeout(OPEN_TIMEOUT, opened).await.map_err(|_| unknown())??;
        let Immutable { file, path, size } = opened.map_err(|error| {
            NotOpened::Refused(match error {
                NotLoadable::Invalid(problem) => Refusal::FileInvalid { problem },
                NotLoadable::Mutable { path, why } => {
                    Refusal::FileMutable { path: path.display().to_string(), why }
                }
            })
        })?;
        let asked = Some(asked).filter(|asked| !asked.is_zero());
        if let Some(problem) = file_range_problem(size, offset, asked) {
            return Err(NotOpened::Refused(Refusal::FileInvalid { problem }));
        }
        let bytes = asked.unwrap_or_else(|| size.saturating_sub(offset));
        let named = self.files.register(file);
        let path = path.display().to_string().into();
        let span = FileSpan { file: named.id, path, offset };
        Ok((named, span, bytes))
    }
}

impl OpenPermits {
    fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(CONCURRENT_OPENS_MAX)), of_users: Mutex::default() }
    }

    /// Waits for a permit, first among the user's own, so that a waiting user keeps none from others.
    async fn take(&self, uid: u32) -> Option<OpenPermit> {
        let of_user = self.of_user(uid).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(OpenPermit { _of_user: of_user, _of_all: of_all })
    }

    fn of_user(&self, uid: u32) -> Arc<Semaphore> {
        let mut users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
        // No task has one of these permits, or waits for one.
        users.retain(|_, seats| Arc::strong_count(seats) > 1);
        Arc::clone(
            users.entry(uid).or_insert_with(|| Arc::new(Semaphore::new(CONCURRENT_OPENS_PER_USER_MAX))),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn at_once(seats: &OpenPermits, uid: u32) -> Option<OpenPermit> {
        match pin!(seats.take(uid)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(seat) => seat,
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_user_with_a_hanging_file_system_delays_no_other() {
        let seats = OpenPermits::new();
        let hang = [at_once(&seats, 7).unwrap(), at_once(&seats, 7).unwrap()];
        assert!(at_once(&seats, 7).is_none());
        let other = at_once(&seats, 8).unwrap();
        drop(hang);
        assert!(at_once(&seats, 7).is_some());
        drop(other);
        drop(at_once(&seats, 9));
        assert_eq!(seats.of_users.lock().unwrap().len(), 1, "a user without a permit takes no memory");
    }

    #[test]
    fn concurrent_opens_are_bounded() {
        let seats = OpenPermits::new();
        let taken: Vec<_> = (0..20).filter_map(|uid| at_once(&seats, uid)).collect();
        assert_eq!(taken.len(), CONCURRENT_OPENS_MAX);
        drop(taken);
        assert!(at_once(&seats, 20).is_some());
    }
}
