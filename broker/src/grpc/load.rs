//! Files that clients have loaded, before the core hears of them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use broker_core::{FileSpan, Refusal};
use tokio::{sync::Semaphore, time::timeout};
use vramd_types::Bytes;

use super::caller::Caller;
use crate::{
    platform::files::{self, Immutable, Unfit},
    reactor::{Files, Named},
};

/// So many are opened at once: a file system that hangs is to hold up no more threads than that.
const OPENED_TOGETHER: usize = 8;

/// With the wait for its turn.
const OPENED_WITHIN: Duration = Duration::from_secs(5);

/// Which files are loaded, and where those are that are being.
#[derive(Clone, Debug)]
pub struct Loading {
    files: Files,
    immutable: Arc<[PathBuf]>,
    /// `None` where no file is.
    opening: Option<Arc<Semaphore>>,
}

impl Loading {
    pub fn new(files: Files, immutable: &[PathBuf], any: bool) -> Self {
        let opening = any.then(|| Arc::new(Semaphore::new(OPENED_TOGETHER)));
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
        let opened = async {
            let seat = opening.acquire_owned().await.map_err(|_| unknown())?;
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
