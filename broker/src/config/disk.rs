//! Where extents lie on disk, if they may: one directory for the daemon, and how much of it each device has.

use std::path::PathBuf;

use broker_driver::{DirectoryError, DiskConfig, DiskEngine};
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;
use vramd_types::Bytes;

use super::{Place, host::of_all, quantity};

/// The table `disk`. Both of directory and size, or there is no disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "DiskText")]
pub struct Disk {
    pub directory: Option<PathBuf>,
    /// For each device.
    pub size: Bytes,
    /// `None` is what works.
    pub engine: Option<DiskEngine>,
    /// Where the text names the directory.
    pub(super) at: usize,
    /// The same, for people: once the whole text is known.
    pub(super) place: Option<Place>,
    pub(super) file: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DiskText {
    directory: Option<Spanned<PathBuf>>,
    #[serde(deserialize_with = "quantity::bytes")]
    size: Bytes,
    #[serde(deserialize_with = "engine")]
    engine: Option<DiskEngine>,
}

impl TryFrom<DiskText> for Disk {
    type Error = &'static str;

    fn try_from(text: DiskText) -> Result<Self, &'static str> {
        match (&text.directory, text.size.is_zero()) {
            (Some(_), true) => Err("`directory` needs `size`"),
            (None, false) => Err("`size` needs `directory`"),
            _ if text.size.is_multiple_of(vramd_types::GRANULARITY) => Ok(Self {
                at: text.directory.as_ref().map_or(0, |directory| directory.span().start),
                directory: text.directory.map(Spanned::into_inner),
                size: text.size,
                engine: text.engine,
                place: None,
                file: None,
            }),
            _ => Err("`size` is no multiple of 2 MiB"),
        }
    }
}

fn engine<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DiskEngine>, D::Error> {
    match &*String::deserialize(deserializer)? {
        "auto" => Ok(None),
        "ring" => Ok(Some(DiskEngine::Uring)),
        "threads" => Ok(Some(DiskEngine::Threads)),
        _ => Err(de::Error::custom("expected \"auto\", \"ring\" or \"threads\"")),
    }
}

impl Disk {
    /// What the driver is opened with, for so many devices.
    pub fn config(&self, devices: usize) -> Option<DiskConfig> {
        let directory = self.directory.clone()?;
        Some(DiskConfig { directory, capacity: of_all(self.size, devices), engine: self.engine })
    }

    /// What is wrong with it, and where that is to be mended.
    pub fn wrong(&self, problem: &DirectoryError) -> String {
        let place = self.place.clone().unwrap_or_default();
        let field = match problem {
            DirectoryError::TooSmall { .. } => "disk.size",
            DirectoryError::NoUring(_) => "disk.engine",
            _ => "disk.directory",
        };
        let place = Place { field: field.to_owned(), problem: problem.to_string(), ..place };
        match &self.file {
            Some(file) => format!("{}:{place}", file.display()),
            None => place.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn disk(lines: &str) -> Result<Disk, Place> {
        parse(&format!("[memory]\nhost_size = \"1GiB\"\n[disk]\n{lines}")).map(|config| config.disk)
    }

    #[test]
    fn what_is_wrong_with_the_directory_names_its_line() {
        let read = disk("size = \"4MiB\"\nengine = \"threads\"\n  directory = \"/nowhere\"\n").unwrap();
        let config = read.config(3).unwrap();
        assert_eq!((config.capacity, config.engine), (Bytes::mib(12), Some(DiskEngine::Threads)));
        let wrong = |problem: DirectoryError| read.wrong(&problem);
        let missing = DirectoryError::Missing("/nowhere".into());
        assert_eq!(wrong(missing), "6:15: disk.directory: there is no /nowhere");
        let (free, capacity) = (Bytes::mib(1), Bytes::mib(12));
        let small = DirectoryError::TooSmall { directory: "/nowhere".into(), free, capacity };
        assert!(wrong(small).starts_with("6:15: disk.size: "));
        assert!(
            wrong(DirectoryError::NoUring("it is blocked".to_owned())).starts_with("6:15: disk.engine: ")
        );
    }

    #[test]
    fn there_is_none_unless_both_are_given() {
        assert_eq!(disk("").unwrap(), Disk::default());
        assert_eq!(Disk::default().config(1), None);
        for engine in ["auto", "ring"] {
            let lines = format!("directory = \"/d\"\nsize = \"2MiB\"\nengine = \"{engine}\"");
            let should = (engine == "ring").then_some(DiskEngine::Uring);
            assert_eq!(disk(&lines).unwrap().engine, should);
        }
        for (lines, problem) in [
            ("directory = \"/d\"", "`directory` needs `size`"),
            ("size = \"2MiB\"", "`size` needs `directory`"),
            ("directory = \"/d\"\nsize = \"3MiB\"", "`size` is no multiple of 2 MiB"),
            ("engine = \"fast\"", "expected \"auto\", \"ring\" or \"threads\""),
        ] {
            assert_eq!(disk(lines).unwrap_err().problem, problem);
        }
    }
}
