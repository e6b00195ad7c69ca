//! The default directories. The SDK has the same rule for the socket directory.

use std::path::{Path, PathBuf};

/// The inputs of the rules, so that tests can set them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    pub uid: u32,
    /// `VRAMD_SOCKET_DIR`.
    pub socket_dir: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// `XDG_STATE_HOME`.
    pub state_home: Option<PathBuf>,
    pub home: Option<PathBuf>,
}

/// The default path of the configuration.
pub const CONFIG: &str = "/etc/vramd/vramd.toml";

impl Environment {
    /// Reads the environment of this process.
    pub fn of_process() -> Self {
        let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            uid: rustix::process::geteuid().as_raw(),
            socket_dir: path("VRAMD_SOCKET_DIR"),
            runtime_dir: path("XDG_RUNTIME_DIR"),
            state_home: path("XDG_STATE_HOME"),
            home: path("HOME"),
        }
    }

    /// Returns `VRAMD_SOCKET_DIR`, else the configured directory, else the default. The variable comes first, so that
    /// daemon and clients of one shell agree.
    pub fn socket_dir(&self, configured: Option<&Path>) -> PathBuf {
        if let Some(dir) = self.socket_dir.as_deref().or(configured) {
            return dir.to_owned();
        }
        if self.uid == 0 {
            return PathBuf::from("/run/vramd");
        }
        match &self.runtime_dir {
            Some(dir) => dir.join("vramd"),
            None => PathBuf::from(format!("/tmp/vramd-{}", self.uid)),
        }
    }

    /// Names what chose that directory.
    pub fn socket_dir_chooser(&self, configured: Option<&Path>) -> &'static str {
        match (&self.socket_dir, configured) {
            (Some(_), Some(_)) => "VRAMD_SOCKET_DIR, which goes before daemon.socket_dir",
            (Some(_), None) => "VRAMD_SOCKET_DIR",
            (None, Some(_)) => "daemon.socket_dir",
            (None, None) => "the default, since neither VRAMD_SOCKET_DIR nor daemon.socket_dir is set",
        }
    }

    /// Returns the configured directory, else the default. `None` if there is none, because the user has no home.
    pub fn state_dir(&self, configured: Option<&Path>) -> Option<PathBuf> {
        if let Some(dir) = configured {
            return Some(dir.to_owned());
        }
        if self.uid == 0 {
            return Some(PathBuf::from("/var/lib/vramd"));
        }
        let home = || self.home.as_ref().map(|home| home.join(".local/state"));
        Some(self.state_home.clone().or_else(home)?.join("vramd"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> Environment {
        Environment { uid: 1000, ..Environment::default() }
    }

    #[test]
    fn sockets() {
        let root = Environment::default();
        assert_eq!(root.socket_dir(None), Path::new("/run/vramd"));
        assert_eq!(user().socket_dir(None), Path::new("/tmp/vramd-1000"));
        let runtime = Environment { runtime_dir: Some("/run/user/1000".into()), ..user() };
        assert_eq!(runtime.socket_dir(None), Path::new("/run/user/1000/vramd"));
        assert_eq!(runtime.socket_dir(Some(Path::new("/a"))), Path::new("/a"));
        let variable = Environment { socket_dir: Some("/b".into()), ..runtime };
        assert_eq!(variable.socket_dir(Some(Path::new("/a"))), Path::new("/b"));
    }

    #[test]
    fn state() {
        assert_eq!(Environment::default().state_dir(None).unwrap(), Path::new("/var/lib/vramd"));
        assert_eq!(user().state_dir(None), None);
        let home = Environment { home: Some("/home/u".into()), ..user() };
        assert_eq!(home.state_dir(None).unwrap(), Path::new("/home/u/.local/state/vramd"));
        let state = Environment { state_home: Some("/s".into()), ..home };
        assert_eq!(state.state_dir(None).unwrap(), Path::new("/s/vramd"));
        assert_eq!(state.state_dir(Some(Path::new("/c"))).unwrap(), Path::new("/c"));
    }
}
