//! How tables name devices: by index where the node lists the device, and by UUID on demand.

use std::collections::BTreeMap;

use vramd_proto::v1;

/// Fewest characters of a shortened UUID: `GPU-` and its first eight digits.
const PREFIX_MIN: usize = 12;

/// The names of devices in tables.
#[derive(Debug, Default)]
pub(crate) struct DeviceNames {
    /// By UUID. A UUID that is missing here is shown in full.
    short: BTreeMap<String, String>,
}

impl DeviceNames {
    /// Names every device by its UUID.
    pub(crate) fn uuids() -> Self {
        Self::default()
    }

    /// Names the listed devices by index, which every command takes for a device. A mentioned UUID of no listed device
    /// becomes the shortest prefix that tells it from all others.
    pub(crate) fn short<'a>(
        devices: &[v1::DeviceStatus],
        mentioned: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let listed = devices.iter().filter_map(|status| status.device.as_ref());
        let mut short: BTreeMap<_, _> =
            listed.map(|device| (device.uuid.clone(), device.index.to_string())).collect();
        let mut all: Vec<String> = short.keys().cloned().collect();
        all.extend(mentioned.into_iter().map(str::to_owned));
        for uuid in &all {
            if uuid.len() > PREFIX_MIN && !short.contains_key(uuid) {
                short.insert(uuid.clone(), shortest_prefix(uuid, &all));
            }
        }
        Self { short }
    }

    /// The name of a device in a table. `*` and an empty text stay as they are.
    pub(crate) fn name(&self, uuid: &str) -> String {
        self.short.get(uuid).cloned().unwrap_or_else(|| uuid.to_owned())
    }
}

/// The shortest prefix of `uuid` that no other UUID begins with, followed by `…`.
fn shortest_prefix(uuid: &str, all: &[String]) -> String {
    let is_unique = |prefix: &str| all.iter().all(|other| other == uuid || !other.starts_with(prefix));
    let ends = (PREFIX_MIN..uuid.len()).filter(|end| uuid.is_char_boundary(*end));
    let mut prefixes = ends.map(|end| &uuid[..end]);
    prefixes.find(|prefix| is_unique(prefix)).map_or_else(|| uuid.to_owned(), |prefix| format!("{prefix}…"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(uuid: &str, index: u32) -> v1::DeviceStatus {
        let device = v1::Device { uuid: uuid.to_owned(), index, ..Default::default() };
        v1::DeviceStatus { device: Some(device), ..Default::default() }
    }

    #[test]
    fn listed_devices_are_named_by_index_and_others_by_prefix() {
        let listed = [device("GPU-5eed0000-0000-4000-8000-000000000000", 3)];
        let absent = ["GPU-5eed0000-0000-4000-8000-00000000000a", "GPU-77777777-0000-4000-8000-000000000000"];
        let names = DeviceNames::short(&listed, absent.into_iter().chain(["*", ""]));
        assert_eq!(names.name("GPU-5eed0000-0000-4000-8000-000000000000"), "3");
        assert_eq!(names.name(absent[0]), absent[0], "no shorter prefix is unique");
        assert_eq!(names.name(absent[1]), "GPU-77777777…");
        assert_eq!((names.name("*"), names.name("")), ("*".to_owned(), String::new()));
        assert_eq!(DeviceNames::uuids().name(absent[1]), absent[1]);
    }
}
