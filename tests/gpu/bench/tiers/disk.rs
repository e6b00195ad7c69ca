//! All of a client's memory to disk by an operator's command, and back by the client's next pin.

use anyhow::Result;
use serde_json::json;
use vramd_proto::v1::Tier;

use super::plain_disk::PlainDisk;
use crate::bench::{
    measure::Measure,
    scene::{Answer, Holder, Scene},
};

/// The target: 92 % of the plain disk's speed.
const TARGET: f64 = 1.0 / 0.92;

pub(super) fn ask(scene: &Scene, plain: &mut PlainDisk) -> Result<Answer> {
    // Half of a client's memory in other questions, because each pair moves four times that over the disk.
    let parts = scene.parts / 2;
    let bytes = parts * scene.part;
    let filler = scene.fill_host()?;
    let mut holder = Holder::with_parts(scene, parts, None)?;
    let ours = || {
        holder.fill()?;
        let written = scene.operator.move_all(holder.memory(), Tier::Disk)?;
        Ok([holder.check()?, written])
    };
    let bare = || {
        let written = plain.write(bytes)?;
        Ok([plain.read(bytes)?, written])
    };
    let [read, write] = Measure::take_each([TARGET; 2], scene.pairs, ours, bare)?;
    holder.leave();
    filler.leave();
    Ok(Answer {
        figures: vec![("disk_read", read.median()), ("disk_write", write.median())],
        samples: json!({ "read": read.json_of(bytes), "write": write.json_of(bytes) }),
        lines: vec![read.line("disk_read"), write.line("disk_write")],
    })
}
