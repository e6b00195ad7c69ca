//! The paths of the daemon's sockets.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The folder of the three sockets: `VRAMD_SOCKET_DIR`; else `/run/vramd` for root; else `vramd` in
/// `XDG_RUNTIME_DIR`; else `/tmp/vramd-UID`.
pub fn socket_dir() -> PathBuf {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    choose(variable("VRAMD_SOCKET_DIR"), variable("XDG_RUNTIME_DIR"), rustix::process::geteuid().as_raw())
}

fn choose(given: Option<PathBuf>, runtime_dir: Option<PathBuf>, uid: u32) -> PathBuf {
    match (given, runtime_dir) {
        (Some(dir), _) => dir,
        (None, _) if uid == 0 => PathBuf::from("/run/vramd"),
        (None, Some(dir)) => dir.join("vramd"),
        (None, None) => PathBuf::from(format!("/tmp/vramd-{uid}")),
    }
}

pub(crate) fn memory_socket(dir: &Path) -> PathBuf {
    dir.join("vramd.sock")
}

pub(crate) fn channel_socket(dir: &Path) -> PathBuf {
    dir.join("channel.sock")
}

pub(crate) fn admin_socket(dir: &Path) -> PathBuf {
    dir.join("admin.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_explicit_socket_dir_wins() {
        let dir = |text: &str| Some(PathBuf::from(text));
        assert_eq!(choose(dir("/x"), dir("/run/user/7"), 0), Path::new("/x"));
        assert_eq!(choose(None, dir("/run/user/0"), 0), Path::new("/run/vramd"));
        assert_eq!(choose(None, dir("/run/user/7"), 7), Path::new("/run/user/7/vramd"));
        assert_eq!(choose(None, None, 7), Path::new("/tmp/vramd-7"));
    }
}
