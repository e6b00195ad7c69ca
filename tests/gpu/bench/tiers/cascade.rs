//! A client pins all its memory, which is on disk. Dirty memory of another client fills the device, and a third client's memory fills the
//! host. Each arriving part waits for one that is written.

use std::mem;

use anyhow::{Result, ensure};
use serde_json::json;
use vramd_proto::v1::Tier;

use super::plain_disk::PlainDisk;
use crate::bench::{
    measure::{Measure, WARM_UP},
    scene::{Answer, Holder, Left, Scene},
};

/// The target: 85 % of the speed of the slower direction alone.
const TARGET: f64 = 1.0 / 0.85;
/// Each takes half a minute.
const PAIRS_MAX: usize = 7;
/// How often a plain program runs both directions at once.
const AT_ONCE: usize = 3;

pub(super) fn ask(scene: &Scene, plain: &mut PlainDisk) -> Result<Answer> {
    let (bytes, pairs) = (scene.bytes(), scene.pairs.min(PAIRS_MAX));
    let mut filler = scene.fill_host()?;
    let mut absent = Holder::start(scene, None)?;
    absent.fill()?;
    // The device has no room for both.
    scene.operator.move_all(absent.memory(), Tier::Disk)?;
    let mut resident = Holder::start(scene, None)?;
    resident.fill()?;
    // Other questions may have left other content in a part.
    plain.write(bytes)?;
    let before = Left::of(&scene.daemon);
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let ours = || {
        scene.operator.wait_until_idle()?;
        let took = absent.check()?;
        mem::swap(&mut resident, &mut absent);
        resident.fill()?;
        Ok((took, vec![]))
    };
    let bare = || {
        let (read, write) = (plain.read(bytes)?, plain.write(bytes)?);
        reads.push(read.as_secs_f64() * 1e3);
        writes.push(write.as_secs_f64() * 1e3);
        Ok(read.max(write))
    };
    let measure = Measure::take(TARGET, pairs, ours, bare)?;
    let after = Left::of(&scene.daemon);
    let (clean, copied) = (after.clean - before.clean, after.copied - before.copied);
    let all = (scene.parts * (WARM_UP + pairs)) as u64;
    ensure!(clean == 0 && copied >= all, "{copied} parts left with a copy and {clean} without, of {all}");
    let at_once = (0..AT_ONCE).map(|_| Ok(plain.read_and_write(bytes)?.as_secs_f64() * 1e3));
    let at_once = at_once.collect::<Result<Vec<_>>>()?;
    ensure!(scene.operator.host_left()? < scene.part as u64, "the host was not full to the end");
    absent.check()?;
    filler.check()?;
    filler.leave();
    absent.leave();
    resident.leave();
    let mut samples = measure.json_of(bytes);
    samples["plain_read_ms"] = json!(reads.split_off(WARM_UP));
    samples["plain_write_ms"] = json!(writes.split_off(WARM_UP));
    samples["plain_both_at_once_ms"] = json!(at_once);
    Ok(Answer { figures: vec![("cascade", measure.median())], samples, lines: vec![measure.line("cascade")] })
}
