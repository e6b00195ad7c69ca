//! `vramctl alloc evict` and `bring-in` move parts between their device and the tiers below it; `write-back` copies parts to
//! their backing.

use serde_json::json;
use vramd_client::{AllocationId, admin::AdminClient};
use vramd_proto::v1::{
    self, MoveOutcome as Outcome, Tier, move_parts_request::Target as Wire,
    write_back_parts_request::Target as WireBack,
};

use super::{Target, part_ranges::Parts};
use crate::{
    commands::names::session_names,
    output::{
        Output,
        failure::Failure,
        table::{Column, table},
        text::text_or_dash,
    },
};

pub(crate) fn run(parts: Parts, to: Tier, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let part_indexes = parts.indexes();
    let target = Some(match parts.target {
        Target::Id(id) => Wire::AllocationId(id.get()),
        Target::Name(name) => Wire::Name(name),
    });
    let request = v1::MovePartsRequest { target, part_indexes, tier: to.into(), ..Default::default() };
    let answer = admin.move_parts(request)?;
    show(answer.allocation_id, &answer.parts, "moved", output)
}

pub(crate) fn write_back(parts: Parts, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let part_indexes = parts.indexes();
    let target = Some(match parts.target {
        Target::Id(id) => WireBack::AllocationId(id.get()),
        Target::Name(name) => WireBack::Name(name),
    });
    let request = v1::WriteBackPartsRequest { target, part_indexes, ..Default::default() };
    let answer = admin.write_back_parts(request)?;
    show(answer.allocation_id, &answer.parts, "written_back", output)
}

/// Prints the outcome of each part. `done` names the outcome of a part that was moved, or written back.
fn show(id: u64, parts: &[v1::PartMove], done: &'static str, output: &Output) -> Result<(), Failure> {
    let fields: Vec<_> = parts
        .iter()
        .map(|part| {
            json!({
                "index": part.part_index,
                "outcome": outcome_name(part.outcome(), done),
                "session_ids": session_names(&part.session_ids),
                "error": part.error.as_ref().map(|error| json!({
                    "reason": error.reason,
                    "message": error.message,
                    "facts": error.metadata,
                })),
                "problem": part.problem,
            })
        })
        .collect();
    let id = AllocationId::from_raw(id).to_string();
    // Managed memory has no parts: its client moves it, later.
    let text = || if parts.is_empty() { "ordered".to_owned() } else { rows(parts, done) };
    output.show(text, json!({ "allocation_id": id, "parts": fields }))
}

fn rows(parts: &[v1::PartMove], done: &'static str) -> String {
    table(
        &[Column::number("PART").key(), Column::text("OUTCOME"), Column::text("BECAUSE OF")],
        parts.iter().map(|part| {
            vec![part.part_index.to_string(), outcome_name(part.outcome(), done).to_owned(), cause(part)]
        }),
    )
}

pub(crate) fn cause(part: &v1::PartMove) -> String {
    let text = match &part.error {
        Some(error) => format!("{}: {}", error.reason, error.message),
        None if !part.problem.is_empty() => part.problem.clone(),
        None => session_names(&part.session_ids).join(" "),
    };
    text_or_dash(&text)
}

pub(crate) fn outcome_name(outcome: Outcome, done: &'static str) -> &'static str {
    match outcome {
        Outcome::Unspecified => "unknown",
        Outcome::Moved => done,
        Outcome::Pinned => "pinned",
        Outcome::Silent => "silent",
        Outcome::Standing => "standing",
        Outcome::Wanted => "wanted",
        Outcome::Held => "held",
        Outcome::Freed => "freed",
        Outcome::Refused => "refused",
        Outcome::Failed => "failed",
    }
}
