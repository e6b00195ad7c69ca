//! A client pins one part in the host while the device has room for it.

use anyhow::Result;
use vramd_proto::v1::Tier;

use super::bare::Bare;
use crate::bench::{
    measure::Measure,
    scene::{Answer, Holder, Scene},
};

const MS_MAX: f64 = 1.0;
/// Each round takes milliseconds.
const ROUNDS: usize = 3;

pub(super) fn ask(scene: &Scene, bare: &mut dyn Bare) -> Result<Answer> {
    let mut holder = Holder::start(scene, None)?;
    holder.fill()?;
    let mut indexes = (0..u32::try_from(scene.parts)?).cycle();
    let ours = || {
        let index = indexes.next().unwrap_or_default();
        scene.operator.move_parts(holder.memory(), &[index], Tier::Host)?;
        // While the device clears released memory, no copy arrives at full speed.
        scene.operator.wait_until_charged(scene.bytes() - scene.part)?;
        Ok((holder.pin(index)?, vec![]))
    };
    let measure = Measure::take(None, ROUNDS * scene.pairs, ours, || bare.part_in())?;
    holder.check()?;
    holder.leave();
    let overhead = measure.median_difference_ms();
    let verdict = if overhead <= MS_MAX { "within" } else { "MISSED" };
    Ok(Answer {
        figures: vec![("pin_overhead_ms", overhead)],
        samples: measure.json_of(scene.part),
        lines: vec![
            measure.line("pin"),
            format!("pin_overhead {overhead:.2} ms beyond the copy; target {MS_MAX:.2}: {verdict}"),
        ],
    })
}
