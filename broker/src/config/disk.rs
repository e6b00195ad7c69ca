//! `[disk]`: the directory of extents on disk, and the size of the tier for each device.

use std::{collections::BTreeMap, path::PathBuf};

use broker_driver::{DirectoryError, DiskConfig, DiskEngine};
use serde::{Deserialize, Deserializer, de};
use toml::de::DeTable;
use vramd_types::Bytes;

use super::{ErrorLocation, host::for_all_devices, quantity};

/// The table `disk`. It has both directory and size, or there is no disk tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "DiskText")]
pub struct Disk {
    pub directory: Option<PathBuf>,
    /// The size for each device.
    pub size: Bytes,
    /// `None` means io_uring if the kernel allows it, else threads.
    pub engine: Option<DiskEngine>,
    /// The position of each key in the text, set once the whole text is parsed.
    pub(super) locations: BTreeMap<&'static str, ErrorLocation>,
    pub(super) file: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DiskText {
    directory: Option<PathBuf>,
    #[serde(deserialize_with = "quantity::whole_extents")]
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
            _ => Ok(Self {
                directory: text.directory,
                size: text.size,
                engine: text.engine,
                locations: BTreeMap::new(),
                file: None,
            }),
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

/// Finds the positions of the keys in a valid text.
pub(super) fn locations(text: &str) -> BTreeMap<&'static str, ErrorLocation> {
    let Ok(table) = DeTable::parse(text) else { return BTreeMap::new() };
    let disk = table.get_ref().get("disk").and_then(|disk| disk.get_ref().as_table());
    let location = |name| {
        let before = text.get(..disk?.get(name)?.span().start)?;
        Some((name, ErrorLocation::after(before, format!("disk.{name}"), String::new())))
    };
    ["directory", "size", "engine"].into_iter().filter_map(location).collect()
}

impl Disk {
    /// The driver's configuration of the disk for that number of devices.
    pub fn config(&self, devices: usize) -> Option<DiskConfig> {
        let directory = self.directory.clone()?;
        Some(DiskConfig { directory, capacity: for_all_devices(self.size, devices), engine: self.engine })
    }

    /// Formats an error of the directory with the line and key that the operator must change.
    pub fn explain(&self, problem: &DirectoryError) -> String {
        let name = match problem {
            DirectoryError::TooSmall { .. } => "size",
            DirectoryError::NoUring(_) => "engine",
            _ => "directory",
        };
        let location = self.locations.get(name).cloned().unwrap_or_default();
        let location = ErrorLocation { problem: problem.to_string(), ..location };
        match &self.file {
            Some(file) => format!("{}:{location}", file.display()),
            None => location.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn disk(lines: &str) -> Result<Disk, ErrorLocation> {
        parse(&format!("[memory]\nhost_size = \"1GiB\"\n[disk]\n{lines}")).map(|config| config.disk)
    }

    #[test]
    fn a_directory_error_names_the_line_of_its_key() {
        let read = disk("size = \"4MiB\"\nengine = \"threads\"\n  directory = \"/nowhere\"\n").unwrap();
        let config = read.config(3).unwrap();
        assert_eq!((config.capacity, config.engine), (Bytes::mib(12), Some(DiskEngine::Threads)));
        let wrong = |problem: DirectoryError| read.explain(&problem);
        let missing = DirectoryError::Missing("/nowhere".into());
        assert_eq!(wrong(missing), "6:15: disk.directory: directory /nowhere does not exist");
        let (free, capacity) = (Bytes::mib(1), Bytes::mib(12));
        let small = DirectoryError::TooSmall { directory: "/nowhere".into(), free, capacity };
        assert!(wrong(small).starts_with("4:8: disk.size: "));
        let blocked = wrong(DirectoryError::NoUring("it is blocked".to_owned()));
        assert!(blocked.starts_with("5:10: disk.engine: "), "{blocked}");
    }

    #[test]
    fn an_invalid_value_names_its_own_line() {
        for (lines, location, field) in [
            ("directory = \"/d\"\nsize = \"3MiB\"", (5, 8), "disk.size"),
            ("directory = \"/d\"\nsize = \"90%\"", (5, 8), "disk.size"),
            ("size = \"2MiB\"\nengine = \"fast\"", (5, 10), "disk.engine"),
            ("size = \"2MiB\"\ndirectory = 7", (5, 13), "disk.directory"),
        ] {
            let wrong = disk(lines).unwrap_err();
            assert_eq!(((wrong.line, wrong.column), &*wrong.field), (location, field), "{wrong}");
        }
    }

    #[test]
    fn the_disk_needs_both_directory_and_size() {
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
            ("directory = \"/d\"\nsize = \"3MiB\"", "3 MiB is not a multiple of 2 MiB"),
            ("engine = \"fast\"", "expected \"auto\", \"ring\" or \"threads\""),
        ] {
            assert_eq!(disk(lines).unwrap_err().problem, problem);
        }
    }
}
