//! Parses the cgroups of a process, and reads the memory limits of this process's cgroup and of those above it.
//!
//! The kernel kills processes of a cgroup that exceeds its limit, perhaps this one.

use std::{
    fs,
    path::{Path, PathBuf},
};

use vramd_types::Bytes;

/// The place of a process in one hierarchy: a line `number:controllers:path` of `/proc/PID/cgroup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership<'a> {
    controllers: &'a str,
    /// The path of the cgroup below the root of the hierarchy. It may contain colons.
    pub path: &'a str,
}

impl<'a> Membership<'a> {
    /// Returns the lines of the table that have this form.
    pub fn all_in(table: &'a str) -> impl Iterator<Item = Self> {
        let fields = table.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        fields.map(|(controllers, path)| Self { controllers, path })
    }

    /// Whether this is the unified hierarchy of version 2.
    pub fn is_unified(self) -> bool {
        self.controllers.is_empty()
    }

    /// Whether this is a hierarchy of version 1 with that controller, or with that name (`name=systemd`).
    pub fn has(self, controller: &str) -> bool {
        !self.is_unified() && self.controllers.split(',').any(|it| it == controller)
    }
}

/// The file names of a cgroup hierarchy.
struct Hierarchy {
    limit: &'static str,
    current: &'static str,
    /// In `memory.stat`: file pages without recent use, which the kernel reclaims first.
    cold: &'static str,
}

const UNIFIED: Hierarchy =
    Hierarchy { limit: "memory.max", current: "memory.current", cold: "inactive_file " };

/// The hierarchy of version 1, where that controls memory.
const VERSION_1: Hierarchy = Hierarchy {
    limit: "memory.limit_in_bytes",
    current: "memory.usage_in_bytes",
    cold: "total_inactive_file ",
};

/// Version 1 writes "no limit" as the number of whole pages in a signed number of bytes: anything from here on.
const NO_LIMIT: u64 = 1 << 62;

const CGROUPS: &str = "/sys/fs/cgroup";

/// The lowest limit of these cgroups. None if there is no limit.
pub fn memory_limit() -> Option<Bytes> {
    tightest(Path::new(CGROUPS), &table()?, limit_of)
}

/// The least memory that any of these cgroups has left.
pub fn memory_left() -> Option<Bytes> {
    tightest(Path::new(CGROUPS), &table()?, headroom_of)
}

fn table() -> Option<String> {
    fs::read_to_string("/proc/self/cgroup").ok()
}

/// The least value over the process's cgroup and all above it up to the root. The root itself has a limit
/// inside a container.
fn tightest(
    root: &Path,
    table: &str,
    of: impl Fn(&Path, &Hierarchy) -> Option<Bytes> + Copy,
) -> Option<Bytes> {
    let of_each = Membership::all_in(table).filter_map(|membership| {
        let (root, hierarchy) = hierarchy_of(root, membership)?;
        let own = root.join(membership.path.trim_start_matches('/'));
        own.ancestors()
            .take_while(|folder| folder.starts_with(&root))
            .filter_map(|it| of(it, hierarchy))
            .min()
    });
    of_each.min()
}

/// The folder of the hierarchy and its file names, if it limits memory.
fn hierarchy_of(root: &Path, membership: Membership<'_>) -> Option<(PathBuf, &'static Hierarchy)> {
    if membership.is_unified() {
        return Some((root.to_owned(), &UNIFIED));
    }
    membership.has("memory").then(|| (root.join("memory"), &VERSION_1))
}

fn limit_of(folder: &Path, hierarchy: &Hierarchy) -> Option<Bytes> {
    // Without a limit the file says `max`.
    number(folder, hierarchy.limit).filter(|limit| *limit < NO_LIMIT).map(Bytes::new)
}

fn headroom_of(folder: &Path, hierarchy: &Hierarchy) -> Option<Bytes> {
    let limit = limit_of(folder, hierarchy)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cold = stat.lines().find_map(|line| line.strip_prefix(hierarchy.cold)?.trim().parse().ok());
    let current = number(folder, hierarchy.current)?.saturating_sub(cold.unwrap_or(0));
    Some(limit.saturating_sub(Bytes::new(current)))
}

fn number(folder: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, path: &str, files: &[(&str, &str)]) {
        let folder = root.join(path);
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), format!("{text}\n")).unwrap();
        }
    }

    fn left(root: &Path, table: &str) -> Option<u64> {
        tightest(root, table, headroom_of).map(Bytes::get)
    }

    #[test]
    fn the_tightest_cgroup_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let is = |path, max, current| {
            group(root, path, &[("memory.max", max), ("memory.current", current)]);
        };
        let left = |path: &str| left(root, &format!("0::{path}\n"));
        is("pods/one/box", "max", "100");
        assert_eq!(left("/pods/one/box"), None);
        is("pods/one", "5000", "1000");
        is("pods", "9000", "8000");
        assert_eq!(left("/pods/one/box"), Some(1000));
        assert_eq!(tightest(root, "0::/pods/one/box\n", limit_of).map(Bytes::get), Some(5000));
        group(root, "pods", &[("memory.stat", "anon 5\ninactive_file 3500\nactive_file 9")]);
        assert_eq!(left("/pods/one/box"), Some(4000));
        is("pods/one", "5000", "6000");
        assert_eq!(left("/pods/one/box"), Some(0));
        is("", "300", "100");
        assert_eq!(
            (left("/"), left("/nowhere")),
            (Some(200), Some(200)),
            "the root of a container has a limit"
        );
    }

    #[test]
    fn a_memory_hierarchy_of_its_own_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let table = "9:name=systemd:/a\n4:cpu,memory:/pods/one\n0::/\n";
        let is = |path, limit, current| {
            let stat = "inactive_file 1\ntotal_inactive_file 50";
            let files =
                [("memory.limit_in_bytes", limit), ("memory.usage_in_bytes", current), ("memory.stat", stat)];
            group(root, path, &files);
        };
        is("memory/pods/one", "9223372036854771712", "10");
        assert_eq!(left(root, table), None, "that is no limit");
        is("memory/pods", "1000", "350");
        assert_eq!(left(root, table), Some(700));
        assert_eq!(tightest(root, table, limit_of).map(Bytes::get), Some(1000));
        assert_eq!(left(root, "1:name=systemd:/pods/one\n"), None);
    }
}
