//! Files that clients have loaded, before the core hears of them.

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
use vramd_types::Bytes;

use super::caller::Caller;
use crate::{
    platform::files::{self, Immutable, Unfit},
    reactor::{Files, Named},
};

/// So many are opened at once: a file system that hangs is to hold up no more threads than that.
const OPENED_TOGETHER: usize = 8;

/// Of one user: a file system of its own that hangs is to leave room for others.
const OPENED_OF_ONE_USER: usize = 2;

/// With the wait for its turn.
const OPENED_WITHIN: Duration = Duration::from_secs(5);

/// Which files are loaded, and where those are that are being.
#[derive(Clone, Debug)]
pub struct Loading {
    files: Files,
    immutable: Arc<[PathBuf]>,
    /// `None` where no file is.
    opening: Option<Arc<Seats>>,
}

/// Who may have a file opened now.
#[derive(Debug)]
struct Seats {
    all: Arc<Semaphore>,
    of_users: Mutex<BTreeMap<u32, Arc<Semaphore>>>,
}

/// Given back when it is dropped.
#[derive(Debug)]
struct Seat {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Loading {
    pub fn new(files: Files, immutable: &[PathBuf], any: bool) -> Self {
        let opening = any.then(|| Arc::new(Seats::new()));
        Self { files, immutable: immutable.into(), opening }
    }

    /// So many bytes of what that process has open, from there on; zero is all there are. With it its size, and what keeps it open.
    pub(super) async fn open(
        &self,
        caller: &Caller,
        fd: u32,
        offset: Bytes,
        asked: Bytes,
    ) -> Result<(Named, FileSpan, Bytes), Refusal> {
        let unknown = || Refusal::FileMutable { path: format!("descriptor {fd}") };
        let opening = self.opening.clone().ok_or_else(unknown)?;
        let (immutable, caller) = (Arc::clone(&self.immutable), caller.clone());
        let uid = caller.with_peer(|peer| peer.uid).ok_or_else(unknown)?;
        let opened = async {
            let seat = opening.take(uid).await.ok_or_else(unknown)?;
            let opened = tokio::task::spawn_blocking(move || {
                let _seat = seat;
                caller.with_peer(|peer| files::open_of(peer, fd, &immutable))
            });
            opened.await.ok().flatten().ok_or_else(unknown)
        };
        // A file system that hangs is to hold up nobody: what is not known to stand still is copied.
        let opened = timeout(OPENED_WITHIN, opened).await.map_err(|_| unknown())??;
        let Immutable { file, path, size } = opened.map_err(|unfit| match unfit {
            Unfit::Invalid(problem) => Refusal::FileInvalid { problem },
            Unfit::Mutable(path) => Refusal::FileMutable { path: path.display().to_string() },
        })?;
        let there = size.saturating_sub(offset);
        let bytes = if asked.is_zero() { there } else { asked };
        if bytes > there || bytes.is_zero() {
            let (asked, offset, size) = (bytes.get(), offset.get(), size.get());
            let problem = format!("{asked} bytes from {offset} on are asked for, and it has {size} bytes");
            return Err(Refusal::FileInvalid { problem });
        }
        let named = self.files.name(file);
        let path = path.display().to_string().into();
        let span = FileSpan { file: named.id, path, offset };
        Ok((named, span, bytes))
    }
}

impl Seats {
    fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(OPENED_TOGETHER)), of_users: Mutex::default() }
    }

    /// Waits for one. First among the user's own: who waits there keeps nothing from others.
    async fn take(&self, uid: u32) -> Option<Seat> {
        let of_user = self.of_user(uid).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Seat { _of_user: of_user, _of_all: of_all })
    }

    fn of_user(&self, uid: u32) -> Arc<Semaphore> {
        let mut users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody has one of theirs, or waits for it.
        users.retain(|_, seats| Arc::strong_count(seats) > 1);
        Arc::clone(users.entry(uid).or_insert_with(|| Arc::new(Semaphore::new(OPENED_OF_ONE_USER))))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn at_once(seats: &Seats, uid: u32) -> Option<Seat> {
        match pin!(seats.take(uid)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(seat) => seat,
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_has_a_file_system_that_hangs_keeps_nobody_else_waiting() {
        let seats = Seats::new();
        let hang = [at_once(&seats, 7).unwrap(), at_once(&seats, 7).unwrap()];
        assert!(at_once(&seats, 7).is_none());
        let other = at_once(&seats, 8).unwrap();
        drop(hang);
        assert!(at_once(&seats, 7).is_some());
        drop(other);
        drop(at_once(&seats, 9));
        assert_eq!(seats.of_users.lock().unwrap().len(), 1, "who has none takes no memory");
    }

    #[test]
    fn all_together_have_no_more_than_that() {
        let seats = Seats::new();
        let taken: Vec<_> = (0..20).filter_map(|uid| at_once(&seats, uid)).collect();
        assert_eq!(taken.len(), OPENED_TOGETHER);
        drop(taken);
        assert!(at_once(&seats, 20).is_some());
    }
}
