//! A client pins memory in the host and reads it several times: in place, as it advised, and after a fetch, without advice. From how many
//! reads on is the device better?

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vramd_proto::v1::Tier;

use crate::bench::{
    measure::{Measure, WARM_UP},
    scene::{Answer, Holder, Scan, Scene},
};

/// The memory of each of both clients.
const PARTS: usize = 2;

/// How much is read: one line in `every`, `times` times.
#[derive(Clone, Copy, Debug)]
struct Reads {
    every: u64,
    times: u64,
}

const ALL: [Reads; 6] = [
    Reads { every: 10, times: 1 },
    Reads { every: 2, times: 1 },
    Reads { every: 1, times: 1 },
    Reads { every: 1, times: 2 },
    Reads { every: 1, times: 4 },
    Reads { every: 1, times: 8 },
];

impl Reads {
    /// Returns how often that is all of it.
    fn count(self) -> f64 {
        self.times as f64 / self.every as f64
    }
}

pub(super) fn ask(scene: &Scene) -> Result<Answer> {
    let mut lodger = Holder::with_parts(scene, PARTS, None)?;
    if !lodger.advise()? {
        lodger.leave();
        return Ok(Answer::absent("in_place", "clients cannot map the host's memory"));
    }
    leave(scene, &mut lodger)?;
    scene.operator.wait_until_charged(0)?;
    let mut mover = Holder::with_parts(scene, PARTS, None)?;
    let (mut samples, mut lines, mut slower_by) = (json!({ "parts": PARTS }), Vec::new(), Vec::new());
    for reads in ALL {
        let (measure, sample) = take(scene, reads, &mut lodger, &mut mover)?;
        let name = format!("reads_{}", reads.count());
        lines.push(measure.line(&format!("in_place {name}")));
        slower_by.push((reads.count(), measure.median_difference_ms()));
        samples[name] = sample;
    }
    lodger.leave();
    mover.leave();
    let crossover = crossover(&slower_by);
    samples["crossover_reads"] = json!(crossover);
    lines.push(match crossover {
        Some(reads) => format!("in_place  as fast as moved at {reads:.2} reads"),
        None => "in_place  and moved are equal at none of these".to_owned(),
    });
    Ok(Answer { figures: crossover.map(|reads| ("in_place", reads)).into_iter().collect(), samples, lines })
}

/// Times reads in place beside reads after a move.
fn take(scene: &Scene, reads: Reads, lodger: &mut Holder, mover: &mut Holder) -> Result<(Measure, Value)> {
    let bytes = (PARTS * scene.part) as u64;
    let ours = || {
        leave(scene, lodger)?;
        let before = scene.operator.charged()?;
        let Scan { pinned, scanned } = lodger.scan(reads.every, reads.times)?;
        let held = scene.operator.charged()?;
        ensure!(
            held == before,
            "it has come, and not stayed in place: {held} bytes are held, and {before} were"
        );
        Ok((scanned, vec![("pinned_in_place", pinned)]))
    };
    let mut pins = Vec::new();
    let bare = || {
        leave(scene, mover)?;
        scene.operator.wait_until_charged(0)?;
        let Scan { pinned, scanned } = mover.scan(reads.every, reads.times)?;
        let held = scene.operator.charged()?;
        ensure!(held >= bytes, "it has not come: {held} bytes are held");
        pins.push(pinned.as_secs_f64() * 1e3);
        Ok(scanned)
    };
    let measure = Measure::take(None, scene.pairs, ours, bare)?;
    let mut sample = measure.json_of(usize::try_from(bytes / reads.every * reads.times)?);
    sample["reads"] = json!(reads.count());
    sample["pinned_moved_ms"] = json!(pins.split_off(WARM_UP));
    Ok((measure, sample))
}

/// Writes the memory anew and evicts it to the host, where no session maps it.
fn leave(scene: &Scene, holder: &mut Holder) -> Result<()> {
    holder.fill()?;
    scene.operator.move_all(holder.memory(), Tier::Host)?;
    scene.operator.unmap(holder.memory())
}

/// Returns the number of reads at which both times are equal, interpolated between the first at which in place is slower and the one
/// before.
fn crossover(slower_by: &[(f64, f64)]) -> Option<f64> {
    let pairs = slower_by.iter().zip(slower_by.iter().skip(1));
    let mut changes = pairs.filter(|((_, before), (_, after))| *before <= 0.0 && *after > 0.0);
    changes.next().map(|((from, before), (to, after))| from + (to - from) * before / (before - after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossover_lies_between_faster_and_slower() {
        assert_eq!(crossover(&[(0.5, -2.0), (1.0, -1.0), (2.0, 3.0), (4.0, 9.0)]), Some(1.25));
        assert_eq!(crossover(&[(0.5, 0.0), (1.0, 1.0)]), Some(0.5));
    }

    #[test]
    fn where_one_of_them_is_always_faster_there_is_none() {
        assert_eq!(crossover(&[(0.5, -2.0), (1.0, -1.0)]), None);
        assert_eq!(crossover(&[(0.5, 2.0), (1.0, 3.0)]), None);
    }
}
