//! Memory that was only read since its fetch leaves again.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use vramd_proto::v1::Tier;
use vramd_tests::wait::soon;

use super::bare::Bare;
use crate::bench::{
    measure::{WARM_UP, median_ms},
    scene::{Answer, Eviction, Holder, Left, Scene},
};

const UNMAPPED_MS_MAX: f64 = 3.0;
const SETTLED_MS_MAX: f64 = 12.0;

pub(super) fn ask(scene: &Scene, bare: &mut dyn Bare) -> Result<Answer> {
    let (mut holder, earlier) = (Holder::start(scene, None)?, Left::of(&scene.daemon));
    holder.fill()?;
    scene.operator.move_all(holder.memory(), Tier::Host)?;
    // The daemon may not have counted the last copy yet.
    let copied = earlier.copied + scene.parts as u64;
    soon("the first way out is counted", || Left::of(&scene.daemon).copied >= copied)?;
    let before = Left::of(&scene.daemon);
    let rounds = WARM_UP + scene.pairs;
    let (mut evictions, mut plainly) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let given_back = bare.give_back()?;
        scene.operator.move_all(holder.memory(), Tier::Device)?;
        holder.check()?;
        let eviction = scene.operator.evict_watched(holder.memory())?;
        if round >= WARM_UP {
            evictions.push(eviction);
            plainly.push(given_back);
        }
    }
    Left::expect_clean_since(&scene.daemon, before, (rounds * scene.parts) as u64)?;
    holder.check()?;
    holder.leave();
    let times = |of: fn(&Eviction) -> _| evictions.iter().map(of).collect::<Vec<_>>();
    let [unmapped, answered, settled] = [
        times(|eviction| eviction.unmapped),
        times(|eviction| eviction.answered),
        times(|eviction| eviction.settled),
    ];
    let line = |name: &str, ms: f64, most: f64| {
        let verdict = if ms <= most { "within" } else { "MISSED" };
        format!("{name} {ms:.2} ms ({} evictions); target {most:.2}: {verdict}", evictions.len())
    };
    let (to_unmapped, to_settled) = (median_ms(&unmapped), median_ms(&settled));
    let bare_ms = median_ms(&plainly);
    let all_ms = |times: &[Duration]| times.iter().map(|time| time.as_secs_f64() * 1e3).collect::<Vec<_>>();
    Ok(Answer {
        figures: vec![
            ("evict_clean_unmapped_ms", to_unmapped),
            ("evict_clean_settled_ms", to_settled),
            ("give_back_plainly_ms", bare_ms),
        ],
        samples: json!({
            "bytes": scene.bytes(), "warm_up_rounds": WARM_UP,
            "unmapped_ms": all_ms(&unmapped), "answered_ms": all_ms(&answered), "settled_ms": all_ms(&settled),
            "give_back_plainly_ms": all_ms(&plainly),
        }),
        lines: vec![
            line("evict_clean_unmapped", to_unmapped, UNMAPPED_MS_MAX),
            line("evict_clean_settled", to_settled, SETTLED_MS_MAX),
            format!("give_back_plainly {bare_ms:.2} ms"),
        ],
    })
}
