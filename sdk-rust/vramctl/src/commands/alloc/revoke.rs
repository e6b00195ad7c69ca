//! `vramctl alloc revoke`: taking an allocation out of the processes that map it.

use clap::Args;
use serde_json::json;
use vramd_client::{AllocationId, admin::AdminClient};
use vramd_proto::v1::{self, RevocationOutcome as Outcome, revoke_mappings_request::Target as Wire};

use super::{
    part_ranges::Parts,
    {Target, session_texts},
};
use crate::output::{
    Output,
    failure::Failure,
    table::{table, text_or_dash},
};

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    #[command(flatten)]
    which: Parts,
    /// Also what is pinned: new pins wait, and this command too, until the last pin has ended or the daemon's patience.
    #[arg(long)]
    wait: bool,
}

pub(crate) fn run(revoke: Revoke, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let Revoke { which, wait } = revoke;
    let part_indexes = which.indexes();
    let target = Some(match which.target {
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
                "outcome": name(part.outcome()),
                "session_ids": session_texts(&part.session_ids),
            })
        })
        .collect();
    let id = AllocationId::from_raw(answer.allocation_id).to_string();
    output.show(|| rows(&answer), json!({ "allocation_id": id, "parts": parts }))
}

fn rows(answer: &v1::RevokeMappingsResponse) -> String {
    table(
        &[">PART", "OUTCOME", "BECAUSE OF"],
        answer.parts.iter().map(|part| {
            vec![
                part.part_index.to_string(),
                name(part.outcome()).to_owned(),
                text_or_dash(&session_texts(&part.session_ids).join(" ")),
            ]
        }),
    )
}

fn name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Unspecified => "unknown",
        Outcome::Revoked => "revoked",
        Outcome::Pinned => "pinned",
        Outcome::Silent => "silent",
        Outcome::Standing => "standing",
    }
}
