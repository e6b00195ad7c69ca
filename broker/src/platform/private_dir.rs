//! Directories in which no other user can put or change anything.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process,
};

use rustix::fs::{Access, access};
use thiserror::Error;

/// Why a directory is not private.
#[derive(Debug, Error)]
pub enum PrivateDirError {
    #[error("{0} is not a directory that belongs to this user or root and that only its owner may write to")]
    NotPrivate(PathBuf),
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// Makes the directory with that mode. An existing directory must belong to this user or root, and only its owner may
/// write to it.
pub fn take(dir: &Path, mode: u32) -> Result<(), PrivateDirError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| PrivateDirError::Io { action, path, source }
    };
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).map_err(failed("make", parent))?;
    }
    match fs::DirBuilder::new().mode(mode).create(dir) {
        // The mode does not depend on the daemon's umask.
        Ok(()) => {
            return fs::set_permissions(dir, fs::Permissions::from_mode(mode)).map_err(failed("open", dir));
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("make", dir)(error)),
    }
    check(dir).map(drop)
}

/// Checks a directory as [`take`] would, and leaves none. Returns whether it exists; if it does not, it could be made.
pub fn check(dir: &Path) -> Result<bool, PrivateDirError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| PrivateDirError::Io { action, path, source }
    };
    // A link is refused: in /tmp another user could have made it, and could point it elsewhere later.
    let found = match fs::symlink_metadata(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent =
                dir.ancestors().skip(1).find(|parent| parent.exists()).unwrap_or_else(|| Path::new("/"));
            // Whether it could be made shows only by making one: some file systems refuse it to every user.
            let probe = parent.join(format!(".vramd-check-{}", process::id()));
            let made = fs::DirBuilder::new().mode(0o700).create(&probe);
            made.and_then(|()| fs::remove_dir(&probe)).map_err(failed("make", dir))?;
            return Ok(false);
        }
        Err(error) => return Err(failed("look at", dir)(error)),
    };
    let ours = found.uid() == rustix::process::geteuid().as_raw() || found.uid() == 0;
    if !found.is_dir() || !ours || found.mode() & 0o022 != 0 {
        return Err(PrivateDirError::NotPrivate(dir.to_owned()));
    }
    access(dir, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| failed("write to", dir)(error.into()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("a/b");
        take(&dir, 0o700).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
        take(&dir, 0o755).unwrap();
        assert_eq!(
            fs::metadata(&dir).unwrap().mode() & 0o7777,
            0o700,
            "an existing directory keeps its mode"
        );
        for mode in [0o770, 0o702, 0o1777] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(take(&dir, 0o700), Err(PrivateDirError::NotPrivate(_))), "{mode:o}");
        }
        let link = outer.path().join("link");
        std::os::unix::fs::symlink(outer.path().join("a"), &link).unwrap();
        assert!(matches!(take(&link, 0o700), Err(PrivateDirError::NotPrivate(_))));
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let outer = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(outer.path(), Some(12_345), None).unwrap();
        assert!(matches!(take(outer.path(), 0o700), Err(PrivateDirError::NotPrivate(_))));
    }
}
