//! `vramctl alloc revoke`: has sessions unmap parts of an allocation.

use clap::Args;
use serde_json::json;
use vramd_client::{AllocationId, admin::AdminClient};
use vramd_proto::v1::{self, RevocationOutcome as Outcome, revoke_mappings_request::Target as Wire};

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

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    #[command(flatten)]
    parts: Parts,
    /// Revoke pinned parts too: new pins and this command wait until the last pin ends, at most the daemon's time limit.
    #[arg(long)]
    wait: bool,
}

pub(crate) fn run(revoke: Revoke, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let Revoke { parts, wait } = revoke;
    let part_indexes = parts.indexes();
    let target = Some(match parts.target {
        Target::Id(id) => Wire::AllocationId(id.get()),
        Target::Name(name) => Wire::Name(name),
    });
    let request = v1::RevokeMappingsRequest { target, part_indexes, wait, ..Default::default() };
    let answer = admin.revoke_mappings(request)?;
    let parts: Vec<_> = answer
        .parts
        .iter()
        .map(|part| {
            json!({
                "index": part.part_index,
                "outcome": outcome_name(part.outcome()),
                "session_ids": session_names(&part.session_ids),
            })
        })
        .collect();
    let id = AllocationId::from_raw(answer.allocation_id).to_string();
    output.show(|| rows(&answer), json!({ "allocation_id": id, "parts": parts }))
}

fn rows(answer: &v1::RevokeMappingsResponse) -> String {
    table(
        &[Column::number("PART").key(), Column::text("OUTCOME"), Column::text("BECAUSE OF")],
        answer.parts.iter().map(|part| {
            vec![
                part.part_index.to_string(),
                outcome_name(part.outcome()).to_owned(),
                text_or_dash(&session_names(&part.session_ids).join(" ")),
            ]
        }),
    )
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Unspecified => "unknown",
        Outcome::Revoked => "revoked",
        Outcome::Pinned => "pinned",
        Outcome::Silent => "silent",
        Outcome::Standing => "standing",
    }
}
