//! The cost of moving clients' memory, with a real daemon and real clients. `docs/benchmarks/residency/README.md` says what is timed.
//!
//! On the simulated driver the same questions are asked of a few MiB, which shows on any machine that they can be answered. Those figures
//! mean nothing.

mod bare;
mod clean;
mod duplex;
mod neighbour;
mod one_way;
mod peers;
mod pin;
mod slowdown;

use anyhow::Result;
use serde_json::{Value, json};

use self::bare::{Bare, InMemory};
use super::{
    plain::Plain,
    scene::{Answer, Driver, Scene, is_asked, prepare},
};
use crate::{cuda::Gpu, machine, nvml::Witness};

pub(crate) use neighbour::run as neighbour;

type Question = fn(&Scene, &mut dyn Bare) -> Result<Answer>;
const QUESTIONS: [(&str, Question); 9] = [
    ("one_way_out", one_way::out),
    ("one_way_in", one_way::back),
    ("pin_in", one_way::by_pin),
    ("duplex", duplex::inside),
    ("duplex_within_limit", duplex::within_limit),
    ("duplex_across", duplex::across),
    ("neighbour_slowdown", slowdown::ask),
    ("pin_overhead_ms", pin::ask),
    ("evict_clean", clean::ask),
];

/// Asks these questions, or all if none is named. Returns true if every question has an answer, of any value, and every byte was where it
/// should be.
pub(crate) fn run(
    driver: Driver,
    asked: &[String],
    quick: bool,
    save: impl Fn(&Value) -> Result<()>,
) -> Result<bool> {
    prepare(asked, &QUESTIONS.map(|(name, _)| name))?;
    match driver {
        Driver::Sim => {
            let scene = Scene::above_host(driver, quick, None)?;
            let mut report = scene.report(json!("none: the simulated driver"));
            let good =
                ask_all(&scene, asked, &mut InMemory::new(scene.parts, scene.part), &mut report, &save)?;
            report["peers"] = json!({ "absent": "no GPU" });
            save(&report)?;
            Ok(good)
        }
        Driver::Cuda => {
            let gpu = Gpu::open(None)?;
            let scene = Scene::above_host(driver, quick, None)?;
            let mut report = scene.report(machine::facts(&Witness::new()?)?);
            let mut plain = Plain::new(&gpu, scene.parts, scene.part)?;
            let good = ask_all(&scene, asked, &mut plain, &mut report, &save)?;
            let (parts, part, pairs) = (scene.parts, scene.part, scene.pairs);
            // The peers need its memory from now on.
            drop(scene);
            if !asked.is_empty() {
                return Ok(good);
            }
            let compared = peers::run(&gpu, &mut plain, parts, part, pairs, &mut report);
            save(&report)?;
            Ok(compared? && good)
        }
    }
}

fn ask_all(
    scene: &Scene,
    asked: &[String],
    bare: &mut dyn Bare,
    report: &mut Value,
    save: impl Fn(&Value) -> Result<()>,
) -> Result<bool> {
    let mut good = true;
    for (name, question) in QUESTIONS.into_iter().filter(|(name, _)| is_asked(name, asked)) {
        good &= scene.ask(name, || question(scene, bare), report, &save)?;
    }
    Ok(good)
}
