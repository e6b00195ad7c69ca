//! Sessions that this process has had.
//!
//! The daemon keeps the charge of a session whose channel has ended, for all it knows the process still maps what it
//! was sent. A new session of the same process can say that an earlier one maps nothing any more; this is where it
//! learns which.

use std::{
    path::{Path, PathBuf},
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use vramd_types::SessionId;

use crate::{mapping::Table, process::fork::Gate};

/// More than this is left for the next session to say.
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

/// Sessions there that have ended and map nothing any more.
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

/// The daemon has been told of these.
pub(crate) fn forget(socket_dir: &Path, reported: &[SessionId]) {
    with(|sessions| {
        sessions.retain(|entry| entry.socket_dir != socket_dir || !reported.contains(&entry.session))
    });
}

fn with<T>(work: impl FnOnce(&mut MutexGuard<'_, Vec<OpenedSession>>) -> T) -> T {
    // A fork waits, so that no child finds the list locked for ever.
    let _gate = Gate::hold();
    work(&mut SESSIONS.lock().unwrap_or_else(PoisonError::into_inner))
}
