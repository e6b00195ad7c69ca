//! Finds out whether the machine has an NVIDIA device, without its driver.

use std::{fs, path::Path};

/// NVIDIA's vendor number on the PCI bus.
const NVIDIA: &str = "0x10de";
/// The class of display controllers, which those without a display have too.
const DISPLAY: &str = "0x03";

/// Names an NVIDIA device of the machine whose root directory is `root`: a device file, or a device on the PCI bus.
pub fn nvidia_device(root: &Path) -> Option<String> {
    device_file(&root.join("dev")).or_else(|| pci_device(&root.join("sys/bus/pci/devices")))
}

/// `/dev/nvidia0` and further ones. `/dev/nvidiactl` says nothing about a device.
fn device_file(dev: &Path) -> Option<String> {
    let is_device = |name: &str| {
        let number = name.strip_prefix("nvidia")?;
        (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| format!("/dev/{name}"))
    };
    fs::read_dir(dev).ok()?.flatten().find_map(|entry| is_device(entry.file_name().to_str()?))
}

fn pci_device(devices: &Path) -> Option<String> {
    let begins = |path: &Path, with: &str| {
        fs::read_to_string(path).is_ok_and(|text| text.trim_start().starts_with(with))
    };
    let is_gpu = |path: &Path| begins(&path.join("vendor"), NVIDIA) && begins(&path.join("class"), DISPLAY);
    let found = fs::read_dir(devices).ok()?.flatten().find(|entry| is_gpu(&entry.path()))?;
    Some(format!("PCI device {}", found.file_name().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_files_and_pci_devices_are_found_and_others_not() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(nvidia_device(root), None);
        fs::create_dir(root.join("dev")).unwrap();
        for other in ["nvidiactl", "nvidia-uvm", "nvidia", "null"] {
            fs::write(root.join("dev").join(other), "").unwrap();
        }
        let pci = root.join("sys/bus/pci/devices");
        for (name, vendor, class) in [("a", "0x10de\n", "0x040300\n"), ("b", "0x8086\n", "0x030000\n")] {
            fs::create_dir_all(pci.join(name)).unwrap();
            fs::write(pci.join(name).join("vendor"), vendor).unwrap();
            fs::write(pci.join(name).join("class"), class).unwrap();
        }
        assert_eq!(nvidia_device(root), None, "a GPU's sound, and another maker's GPU");
        fs::write(pci.join("a/class"), "0x030000\n").unwrap();
        assert_eq!(nvidia_device(root).as_deref(), Some("PCI device a"));
        fs::write(root.join("dev/nvidia3"), "").unwrap();
        assert_eq!(nvidia_device(root).as_deref(), Some("/dev/nvidia3"));
    }
}
