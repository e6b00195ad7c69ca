//! The cost of the tiers below a device beside the plain disk, and waits under load. `docs/benchmarks/tiers/README.md` says what is timed.
//!
//! On the simulated driver the same questions are asked of a few MiB on a real disk. Those figures mean nothing.

mod cascade;
mod demand;
mod disk;
mod in_place;
mod plain_disk;
mod room;

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use self::plain_disk::PlainDisk;
use super::scene::{Answer, Driver, Scene, is_asked, prepare};
use crate::{machine, nvml::Witness};

type OfDisk = fn(&Scene, &mut PlainDisk) -> Result<Answer>;
type OfHost = fn(&Scene) -> Result<Answer>;
const OF_DISK: [(&str, OfDisk); 2] = [("disk", disk::ask), ("cascade", cascade::ask)];
const OF_HOST: [(&str, OfHost); 2] = [("demand_under_load", demand::ask), ("in_place", in_place::ask)];

/// Asks these questions, or all if none is named, on the directory's disk or the daemon's own. Returns true if every question has an
/// answer, of any value, and every byte was where it should be.
pub(crate) fn run(
    driver: Driver,
    asked: &[String],
    directory: Option<&Path>,
    quick: bool,
    save: impl Fn(&Value) -> Result<()>,
) -> Result<bool> {
    let of_host = OF_HOST.iter().map(|(name, _)| *name);
    let names: Vec<&str> = OF_DISK.iter().map(|(name, _)| *name).chain(of_host).collect();
    prepare(asked, &names)?;
    let machine = match driver {
        Driver::Cuda => machine::facts(&Witness::new()?)?,
        Driver::Sim => json!("none: the simulated driver"),
    };
    let mut report =
        json!({ "machine": machine, "driver_kind": driver.name(), "quick": quick, "samples": {} });
    let mut good = true;
    // Questions of the disk take longest, so they come last: if the time runs out, the others are done.
    if OF_HOST.iter().any(|(name, _)| is_asked(name, asked)) {
        let scene = demand::scene(driver)?;
        for (name, question) in OF_HOST.into_iter().filter(|(name, _)| is_asked(name, asked)) {
            good &= scene.ask(name, || question(&scene), &mut report, &save)?;
        }
    }
    if OF_DISK.iter().any(|(name, _)| is_asked(name, asked)) {
        let scene = Scene::above_disk(driver, quick, directory)?;
        let home = directory.unwrap_or_else(|| scene.daemon.home().path());
        let mut plain = PlainDisk::new(home, scene.bytes())?;
        report["plain_disk"] = plain.facts();
        for (name, question) in OF_DISK.into_iter().filter(|(name, _)| is_asked(name, asked)) {
            good &= scene.ask(name, || question(&scene, &mut plain), &mut report, &save)?;
        }
    }
    Ok(good)
}
