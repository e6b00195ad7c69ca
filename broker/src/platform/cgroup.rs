//! Reads the cgroup of a process, and matches it with operators' patterns.
//!
//! The path is that of `/proc/PID/cgroup` as the kernel shows it to the daemon, relative to the daemon's cgroup
//! namespace. The daemon does not trust the peer's `/proc/PID/mountinfo`: a process that makes itself a user namespace
//! can mount anything there, and could choose its tenant that way.

use std::{fmt, io, os::unix::fs::MetadataExt, path::Path, str::FromStr};

use broker_driver::cgroup::Membership;

/// Returns the path of a process's cgroup, like `/system.slice/jupyter.service`.
pub fn of_process(pid: u32) -> io::Result<String> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    parse(&table).map(ToOwned::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns the path in the unified hierarchy. If a node runs both versions and keeps processes in version 1, returns
/// the path in its `systemd` hierarchy, else in `memory`.
fn parse(table: &str) -> Option<&str> {
    let named = |name| Membership::all_in(table).find(|it| it.has(name));
    let unified = Membership::all_in(table).find(|it| it.is_unified());
    let its = unified
        .filter(|it| it.path != "/")
        .or_else(|| named("name=systemd"))
        .or_else(|| named("memory"))
        .or(unified);
    its.map(|it| it.path)
}

/// The inode of the host's cgroup namespace, which the kernel fixes.
const HOST_NAMESPACE: u64 = 0xeffffffb;
/// Where the hierarchies are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// How the kernel shows a cgroup that is not below the namespace's root.
const OUTSIDE: &str = "/..";

/// Whether the daemon is in a cgroup namespace of its own: the kernel shows it paths that begin at the namespace's root,
/// and a client that makes cgroups below that root chooses what the daemon sees.
pub fn is_namespaced() -> bool {
    // Kernels without these namespaces have one hierarchy.
    std::fs::metadata("/proc/self/ns/cgroup").is_ok_and(|namespace| namespace.ino() != HOST_NAMESPACE)
}

/// Whether the cgroup exists now, in any hierarchy of this machine. `None` if none is mounted.
pub fn exists(path: &str) -> Option<bool> {
    let roots =
        [ROOT.to_owned(), format!("{ROOT}/unified"), format!("{ROOT}/systemd"), format!("{ROOT}/memory")];
    let mut roots = roots.iter().filter(|root| Path::new(root).join("cgroup.procs").exists()).peekable();
    roots.peek()?;
    Some(roots.any(|root| Path::new(&format!("{root}{path}")).is_dir()))
}

/// Whether the path is one of another cgroup namespace.
pub fn is_outside(path: &str) -> bool {
    path == OUTSIDE || path.starts_with("/../")
}

/// A cgroup path with `*` for any run of characters inside one component, and `**` for any run at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// A pattern must begin with `/` or `**`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError(String);

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a cgroup pattern like `/system.slice/*.service` or `/kubepods.slice/**`",
            self.0
        )
    }
}

impl std::error::Error for PatternError {}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if (text.starts_with('/') || text.starts_with("**")) && !text.contains("***") {
            Ok(Self(text.to_owned()))
        } else {
            Err(PatternError(text.to_owned()))
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pattern {
    /// Whether the pattern matches every path.
    pub fn matches_all(&self) -> bool {
        matches!(self.0.as_str(), "**" | "/**")
    }

    /// The directory below which every match lies: the components before the first star.
    pub fn directory(&self) -> &str {
        let literal = self.0.split('*').next().unwrap_or_default();
        literal.rsplit_once('/').filter(|_| self.0.contains('*')).map_or(literal, |(directory, _)| directory)
    }

    /// Whether the pattern matches the whole path.
    ///
    /// Computes one row of the usual table of (pattern, path) prefixes, so the time is the product of their lengths.
    /// Users name cgroups, and a pattern of many stars must not hang on one of them.
    pub fn matches(&self, path: &str) -> bool {
        let path = path.as_bytes();
        // reached[i]: the pattern so far matches the first i bytes of the path.
        let mut reached = vec![false; path.len() + 1];
        reached[0] = true;
        let mut pattern = self.0.as_bytes();
        while let Some((&first, rest)) = pattern.split_first() {
            if first == b'*' {
                let across = rest.first() == Some(&b'*');
                pattern = if across { &rest[1..] } else { rest };
                for at in 1..=path.len() {
                    reached[at] |= reached[at - 1] && (across || path[at - 1] != b'/');
                }
            } else {
                pattern = rest;
                for at in (1..=path.len()).rev() {
                    reached[at] = reached[at - 1] && path[at - 1] == first;
                }
                reached[0] = false;
            }
        }
        reached[path.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_path_where_there_is_one() {
        assert_eq!(parse("0::/system.slice/a.service\n"), Some("/system.slice/a.service"));
        assert_eq!(parse("0::/a:b\n"), Some("/a:b"));
        assert_eq!(parse("0::/\n"), Some("/"));
        assert_eq!(parse("12:memory:/m\n1:name=systemd:/s\n0::/\n"), Some("/s"));
        assert_eq!(parse("4:cpu,cpuacct:/c\n3:memory,hugetlb:/m\n"), Some("/m"));
        assert_eq!(parse("garbage\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_process_is_in_one() {
        assert!(of_process(std::process::id()).unwrap().starts_with('/'));
        assert!(of_process(u32::MAX).is_err());
    }

    #[test]
    fn a_star_stays_inside_its_component() {
        let matches = |pattern: &str, path| pattern.parse::<Pattern>().unwrap().matches(path);
        for (pattern, path) in [
            ("/a", "/a"),
            ("/*", "/a"),
            ("/system.slice/*.service", "/system.slice/jupyter.service"),
            ("/kubepods.slice/*/*.scope", "/kubepods.slice/pod1/cri-2.scope"),
            ("/kubepods.slice/**", "/kubepods.slice/pod1/cri-2.scope"),
            ("**/pod1/*", "/kubepods.slice/x/pod1/y"),
            ("/a*b*c", "/aXbYbZc"),
            ("/a**", "/a"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("/a", "/a/b"),
            ("/a", "/"),
            ("/*", "/a/b"),
            ("/a/*", "/a"),
            ("/system.slice/*.service", "/system.slice/x/y.service"),
            ("/a/**", "/ab"),
            ("/team-a.slice/**", "/user.slice/team-a.slice/x"),
        ] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn a_pattern_knows_where_its_matches_lie() {
        let directory = |text: &str| text.parse::<Pattern>().unwrap().directory().to_owned();
        for (pattern, within) in [
            ("/a/b", "/a/b"),
            ("/a/b*", "/a"),
            ("/a/*/c", "/a"),
            ("/kubepods.slice/**", "/kubepods.slice"),
            ("**/pod1/*", ""),
            ("/*", ""),
        ] {
            assert_eq!(directory(pattern), within, "{pattern}");
        }
        assert!("**".parse::<Pattern>().unwrap().matches_all());
        assert!(!"/a/**".parse::<Pattern>().unwrap().matches_all());
        assert!(is_outside("/../b") && is_outside("/..") && !is_outside("/..b") && !is_outside("/a"));
    }

    #[test]
    fn many_stars_do_not_hang() {
        let pattern: Pattern = format!("/{}b", "a*".repeat(500)).parse().unwrap();
        assert!(!pattern.matches(&format!("/{}", "a".repeat(4000))));
    }

    #[test]
    fn malformed_patterns_are_refused() {
        for bad in ["", "a/b", "*", "/a/***"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }
}
