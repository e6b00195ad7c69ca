//! All of a client's memory in one direction.

use anyhow::Result;
use vramd_proto::v1::Tier;

use super::bare::Bare;
use crate::bench::{
    measure::Measure,
    scene::{Answer, Holder, Scene},
};

/// 97 % of a plain copy's speed.
const ONE_WAY: f64 = 1.0 / 0.97;

/// Times an eviction by an operator's command, to its answer.
pub(super) fn out(scene: &Scene, bare: &mut dyn Bare) -> Result<Answer> {
    let mut holder = Holder::start(scene, None)?;
    let ours = || {
        holder.fill()?;
        let took = scene.operator.move_all(holder.memory(), Tier::Host)?;
        scene.operator.move_all(holder.memory(), Tier::Device)?;
        holder.check()?;
        Ok((took, vec![]))
    };
    let measure = Measure::take(ONE_WAY, scene.pairs, ours, || bare.copy(true, false))?;
    holder.leave();
    Ok(Answer::ratio("one_way_out", &measure, scene.bytes()))
}

/// Times the fetch. The client maps the memory with its next pin, which is reported beside.
pub(super) fn back(scene: &Scene, bare: &mut dyn Bare) -> Result<Answer> {
    let mut holder = Holder::start(scene, None)?;
    let ours = || {
        holder.fill()?;
        scene.operator.move_all(holder.memory(), Tier::Host)?;
        let took = scene.operator.move_all(holder.memory(), Tier::Device)?;
        Ok((took, vec![("pin_afterwards", holder.check()?)]))
    };
    let measure = Measure::take(ONE_WAY, scene.pairs, ours, || bare.copy(false, true))?;
    holder.leave();
    Ok(Answer::ratio("one_way_in", &measure, scene.bytes()))
}

/// Times a pin that fetches and maps all of it, from the client's call to its return.
pub(super) fn by_pin(scene: &Scene, bare: &mut dyn Bare) -> Result<Answer> {
    let mut holder = Holder::start(scene, None)?;
    let ours = || {
        holder.fill()?;
        scene.operator.move_all(holder.memory(), Tier::Host)?;
        Ok((holder.check()?, vec![]))
    };
    let measure = Measure::take(ONE_WAY, scene.pairs, ours, || bare.copy(false, true))?;
    holder.leave();
    Ok(Answer::ratio("pin_in", &measure, scene.bytes()))
}
