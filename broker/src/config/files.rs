//! `[files]`: which files clients may load in place, as backing of their allocations.

use std::path::PathBuf;

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
