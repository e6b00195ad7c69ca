//! Which driver runs, and why.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use broker_driver::{Driver, Sink, sim};

use crate::{
    config::{self, Config, DriverKind, SimDevices},
    exit::Failure,
};

/// A driver that runs.
#[derive(Debug)]
pub struct Chosen {
    pub driver: Arc<dyn Driver>,
    /// For operators: one sentence.
    pub reason: String,
}

/// Opens the driver that the configuration asks for, with the devices that it names. Completions go to `sink`.
pub fn open(config: &Config, socket_dir: &Path, sink: Sink) -> Result<Chosen, Failure> {
    let reason = match config.driver.kind {
        DriverKind::Cuda => return Err(Failure::NoCuda),
        DriverKind::Sim => "configured".to_owned(),
        DriverKind::Auto => why_simulated(Path::new("/dev")),
    };
    let mut node = SimDevices { sim: &config.driver.sim, socket_dir }.config();
    node.devices = config::choose(&config.memory.devices, node.devices)?;
    Ok(Chosen { driver: Arc::new(sim::open(node, sink)?), reason })
}

/// Why `auto` is `sim`: this build has no other.
fn why_simulated(dev: &Path) -> String {
    let control: PathBuf = dev.join("nvidiactl");
    if control.exists() {
        format!("auto: {} says there is a GPU, but this build has no cuda back-end", control.display())
    } else {
        "auto: no GPU on this node".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DeviceChoice;

    fn open_with(change: impl FnOnce(&mut Config)) -> Result<Chosen, Failure> {
        let mut config = Config::default();
        change(&mut config);
        let dir = tempfile::tempdir().unwrap();
        open(&config, dir.path(), Arc::new(|_| {}))
    }

    #[test]
    fn the_reason_is_told() {
        assert_eq!(open_with(|config| config.driver.kind = DriverKind::Sim).unwrap().reason, "configured");
        let auto = open_with(|_| {}).unwrap();
        assert_eq!((auto.driver.name(), auto.driver.devices().len()), ("sim", 1));
        let dev = tempfile::tempdir().unwrap();
        assert!(why_simulated(dev.path()).contains("no GPU"));
        std::fs::write(dev.path().join("nvidiactl"), "").unwrap();
        assert!(why_simulated(dev.path()).contains("no cuda back-end"));
    }

    #[test]
    fn what_cannot_be_opened_has_its_own_failure() {
        let cuda = open_with(|config| config.driver.kind = DriverKind::Cuda);
        assert!(matches!(cuda, Err(Failure::NoCuda)));
        let absent = open_with(|config| config.memory.devices = DeviceChoice::These(vec!["7".into()]));
        assert!(matches!(absent, Err(Failure::Device(_))));
        let twice = open_with(|config| {
            config.driver.sim.devices[0].uuid = Some("GPU-x".into());
            let again = config.driver.sim.devices[0].clone();
            config.driver.sim.devices.push(again);
        });
        assert!(matches!(twice, Err(Failure::Driver(_))));
    }
}
