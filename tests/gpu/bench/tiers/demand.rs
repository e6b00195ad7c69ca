//! A client pins one part in the host: on an idle link that was just used, and while an operator moves gigabytes in both directions.

use std::{cell::RefCell, mem, time::Duration};

use anyhow::{Result, bail};
use serde_json::json;
use vramd_proto::v1::Tier;

use crate::bench::{
    measure::{Measure, WARM_UP},
    scene::{Answer, Driver, Holder, Scene},
};

const TARGET: f64 = 1.3;
/// How often the other moves may end before the part arrives. Such a pin is void.
const VOID_MAX: usize = 20;
/// The speed of a simulated link. As on a card, the load takes a quarter of a second.
const SIMULATED_LINK: &str = "128MiB";

/// Both clients of the load have much memory, also in a quick run, since the load must last longer than the pin.
pub(super) fn scene(driver: Driver) -> Result<Scene> {
    Scene::above_host(driver, false, Some(SIMULATED_LINK))
}

pub(super) fn ask(scene: &Scene) -> Result<Answer> {
    let small = || Holder::with_parts(scene, 1, None);
    let small = RefCell::new([small()?, small()?]);
    let mut load = Load::ready(scene)?;
    let (void, mut asleep) = (RefCell::new(0), Vec::new());
    let ours = || loop {
        let small = &mut *small.borrow_mut();
        leave(scene, small)?;
        let [_, one] = small;
        if let Some(took) = load.beside(scene, || one.check())? {
            return Ok((took, vec![]));
        }
        *void.borrow_mut() += 1;
        if *void.borrow() > VOID_MAX {
            bail!("{VOID_MAX} times the load was over before the pin was");
        }
    };
    let bare = || {
        let small = &mut *small.borrow_mut();
        leave(scene, small)?;
        let [first, one] = small;
        // Another pin wakes the link first.
        asleep.push(first.check()?.as_secs_f64() * 1e3);
        one.check()
    };
    let measure = Measure::take(TARGET, scene.pairs, ours, bare)?;
    load.end()?;
    small.into_inner().into_iter().for_each(Holder::leave);
    let mut samples = measure.json_of(scene.part);
    samples["load_bytes_each_way"] = json!(scene.bytes());
    samples["pin_before_bare_ms"] = json!(asleep.split_off(WARM_UP));
    samples["void"] = json!(void.into_inner());
    Ok(Answer {
        figures: vec![("demand_under_load", measure.median())],
        samples,
        lines: vec![measure.line("demand_under_load")],
    })
}

/// Writes their parts anew, evicts them to the host, and waits until the device has its memory back.
fn leave(scene: &Scene, small: &mut [Holder]) -> Result<()> {
    for one in small {
        one.fill()?;
        scene.operator.move_all(one.memory(), Tier::Host)?;
    }
    scene.operator.wait_until_charged(scene.bytes())
}

/// The two clients of the load, one with its memory on the device.
struct Load {
    resident: Holder,
    absent: Holder,
}

impl Load {
    fn ready(scene: &Scene) -> Result<Self> {
        let mut load = Self { resident: Holder::start(scene, None)?, absent: Holder::start(scene, None)? };
        load.resident.fill()?;
        load.absent.fill()?;
        scene.operator.move_all(load.absent.memory(), Tier::Host)?;
        Ok(load)
    }

    /// Runs the action while both change places. Returns `None` if they had done so before it ended.
    fn beside(&mut self, scene: &Scene, act: impl FnOnce() -> Result<Duration>) -> Result<Option<Duration>> {
        // Memory that was only read would leave without a copy.
        self.resident.fill()?;
        let (out, back) = (self.resident.memory(), self.absent.memory());
        let took = scene.operator.while_both_move(out, back, act)?;
        mem::swap(&mut self.resident, &mut self.absent);
        self.resident.check()?;
        Ok(took)
    }

    fn end(mut self) -> Result<()> {
        self.resident.check()?;
        self.absent.check()?;
        self.resident.leave();
        self.absent.leave();
        Ok(())
    }
}
