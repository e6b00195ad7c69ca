//! `[files]`: which files clients may load in place, as backing of their allocations.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, de};

/// The table `files`. Without keys no file is loaded in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Files {
    /// Files below these paths never change, by the operator's word.
    #[serde(deserialize_with = "absolute")]
    pub immutable_paths: Vec<PathBuf>,
    /// Whether files with fs-verity are loaded in place, wherever they are. With immutable paths they always are.
    pub verity: bool,
}

impl Files {
    pub fn are_loaded(&self) -> bool {
        self.verity || !self.immutable_paths.is_empty()
    }

    /// The immutable paths that do not exist here.
    pub fn missing_paths(&self) -> impl Iterator<Item = &Path> {
        self.immutable_paths.iter().map(PathBuf::as_path).filter(|path| !path.exists())
    }

    /// Immutable paths with links that lead out of all of them, each with one folder that the links lead to. A file
    /// counts by its own place, so the daemon copies the files behind such links. Looks at the first entries only.
    pub fn paths_with_links_out(&self) -> Vec<(&Path, PathBuf)> {
        let roots: BTreeSet<PathBuf> =
            self.immutable_paths.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
        let is_listed = |target: &Path| roots.iter().any(|root| target.starts_with(root));
        let found = |path: &'_ PathBuf| {
            let mut left = LINKS_LOOKED_AT;
            find_link(path, FOLDERS_DEEP, &mut left, &|target| !is_listed(target))
        };
        self.immutable_paths.iter().filter_map(|path| Some((path.as_path(), found(path)?))).collect()
    }
}

/// How many entries below an immutable path are looked at, and how many folders deep.
const LINKS_LOOKED_AT: usize = 10_000;
const FOLDERS_DEEP: usize = 4;

/// Finds a link to a file for which `leads_out` holds, and returns that file's folder.
fn find_link(
    folder: &Path,
    deep: usize,
    left: &mut usize,
    leads_out: &dyn Fn(&Path) -> bool,
) -> Option<PathBuf> {
    for entry in fs::read_dir(folder).ok()?.filter_map(Result::ok) {
        *left = left.checked_sub(1)?;
        let kind = entry.file_type().ok()?;
        if kind.is_symlink() {
            let target = fs::canonicalize(entry.path()).ok();
            let target = target.filter(|target| target.is_file() && leads_out(target));
            if let Some(folder) = target.as_deref().and_then(Path::parent) {
                return Some(folder.to_owned());
            }
        } else if kind.is_dir() && deep > 0 {
            let found = find_link(&entry.path(), deep - 1, left, leads_out);
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

fn absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    let paths = Vec::<PathBuf>::deserialize(deserializer)?;
    match paths.iter().find(|path| !path.is_absolute()) {
        Some(path) => Err(de::Error::custom(format!("`{}` is not an absolute path", path.display()))),
        None => Ok(paths),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn missing_paths_and_links_into_a_sibling_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let (snapshots, blobs) = (root.join("snapshots"), root.join("blobs"));
        fs::create_dir_all(snapshots.join("main")).unwrap();
        fs::create_dir(&blobs).unwrap();
        fs::write(blobs.join("7"), b"weights").unwrap();
        std::os::unix::fs::symlink("../../blobs/7", snapshots.join("main/model")).unwrap();
        let files = |paths: &[&PathBuf]| Files {
            immutable_paths: paths.iter().map(|path| (*path).clone()).collect(),
            verity: false,
        };
        let absent = root.join("not/there");
        let alone = files(&[&snapshots, &absent]);
        assert_eq!(alone.missing_paths().collect::<Vec<_>>(), [absent.as_path()]);
        assert_eq!(alone.paths_with_links_out(), [(snapshots.as_path(), blobs.clone())]);
        assert_eq!(files(&[&snapshots, &blobs]).paths_with_links_out(), []);
        assert_eq!(files(&[&root]).paths_with_links_out(), []);
    }

    #[test]
    fn paths_are_absolute_and_without_any_nothing_is_loaded() {
        let files = |lines: &str| parse(&format!("[files]\n{lines}")).map(|config| config.files);
        assert!(!files("").unwrap().are_loaded());
        assert!(files("verity = true").unwrap().are_loaded());
        let given = files("immutable_paths = [\"/models\", \"/data/weights\"]").unwrap();
        assert_eq!(given.immutable_paths, ["/models", "/data/weights"].map(PathBuf::from));
        assert!(given.are_loaded());
        let wrong = files("immutable_paths = [\"/models\", \"weights\"]").unwrap_err();
        assert_eq!((wrong.line, &*wrong.field), (2, "files.immutable_paths"), "{wrong}");
        assert!(wrong.problem.contains("`weights`"), "{wrong}");
        assert_eq!(files("path = \"/m\"").unwrap_err().line, 2);
    }
}
