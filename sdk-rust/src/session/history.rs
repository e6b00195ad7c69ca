//! The sessions that this process has opened.
//!
//! The daemon keeps the charge of a session whose channel has ended, since the process may still map its memory. A
//! new session of the same process can report that an earlier one maps nothing any more; this list says which ones.

use std::{
    path::{Path, PathBuf},
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use vramd_types::SessionId;

use crate::{mapping::Table, process::fork::Gate};

/// How many sessions one hello reports; the rest is left for the next session.
const REPORTED_AT_ONCE_MAX: usize = 1024;

#[derive(Debug)]
struct OpenedSession {
    pid: u32,
    socket_dir: PathBuf,
    session: SessionId,
    table: Arc<Table>,
}

static SESSIONS: Mutex<Vec<OpenedSession>> = Mutex::new(Vec::new());

pub(crate) fn remember(socket_dir: &Path, session: SessionId, table: &Arc<Table>) {
    let entry = OpenedSession {
        pid: process::id(),
        socket_dir: socket_dir.to_owned(),
        session,
        table: Arc::clone(table),
    };
    with(|sessions| sessions.push(entry));
}

/// The sessions with the daemon of that folder that have ended and map nothing any more.
pub(crate) fn unmapped_sessions(socket_dir: &Path) -> Vec<SessionId> {
    with(|sessions| {
        sessions
            .iter()
            .filter(|entry| {
                entry.pid == process::id() && entry.socket_dir == socket_dir && entry.table.is_unmapped()
            })
            .map(|entry| entry.session)
            .take(REPORTED_AT_ONCE_MAX)
            .collect()
    })
}

/// Removes sessions that were reported to the daemon.
pub(crate) fn forget(socket_dir: &Path, reported: &[SessionId]) {
    with(|sessions| {
        sessions.retain(|entry| entry.socket_dir != socket_dir || !reported.contains(&entry.session))
    });
}

fn with<T>(work: impl FnOnce(&mut MutexGuard<'_, Vec<OpenedSession>>) -> T) -> T {
    // A fork waits for this, so that no child finds the list locked for ever.
    let _gate = Gate::hold();
    work(&mut SESSIONS.lock().unwrap_or_else(PoisonError::into_inner))
}
