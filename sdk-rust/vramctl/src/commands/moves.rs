//! `vramctl move …`

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use vramd_client::{AllocationId, admin::AdminClient};
use vramd_proto::v1::{self, move_event::Change};

use crate::{
    commands::quota::tier_name,
    output::{
        Output,
        failure::Failure,
        table::{age, size, table, text_or_dash},
    },
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows what is on its way between tiers, how far it has come and why; and the last that ended.
    List(List),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Of this tenant alone.
    #[arg(default_value = "", hide_default_value = true)]
    tenant: String,
}

pub(crate) fn run(verb: &Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let Verb::List(List { tenant }) = verb;
    let moves = admin.moves(tenant)?;
    let fields = json!({
        "moves": moves.moving.iter().map(to_json).collect::<Vec<_>>(),
        "ended": moves.ended.iter().map(ended_to_json).collect::<Vec<_>>(),
    });
    output.show(|| format!("{}\n\nENDED\n{}", rows(&moves.moving), ended_rows(&moves.ended)), fields)
}

fn rows(moves: &[v1::Move]) -> String {
    table(
        &["ALLOCATION", ">PART", "TENANT", "DEVICE", "TO", ">BYTES", ">DONE", "CAUSE", "STATE", ">AGE"],
        moves.iter().map(|moving| {
            let part = moving.part.unwrap_or_default();
            vec![
                AllocationId::from_raw(part.allocation_id).to_string(),
                part.part_index.to_string(),
                moving.tenant.clone(),
                moving.device.clone(),
                tier_name(moving.tier()).to_owned(),
                size(moving.bytes),
                moving.copied_bytes.map_or_else(|| "-".to_owned(), |copied| share(copied, moving.bytes)),
                cause_name(moving.cause()).to_owned(),
                state_name(moving.state()).to_owned(),
                moving.began_at.as_ref().map_or_else(|| "-".to_owned(), age),
            ]
        }),
    )
}

fn ended_rows(moves: &[v1::EndedMove]) -> String {
    table(
        &[
            "ALLOCATION",
            ">PART",
            "TENANT",
            "DEVICE",
            "TO",
            ">BYTES",
            "CAUSE",
            "OUTCOME",
            ">TOOK",
            ">AGE",
            "WHY",
        ],
        moves.iter().map(|ended| {
            let part = ended.part.unwrap_or_default();
            vec![
                AllocationId::from_raw(part.allocation_id).to_string(),
                part.part_index.to_string(),
                ended.tenant.clone(),
                ended.device.clone(),
                tier_name(ended.tier()).to_owned(),
                size(ended.bytes),
                cause_name(ended.cause()).to_owned(),
                outcome_name(ended.outcome()).to_owned(),
                format!("{:.1?}", Duration::from_micros(ended.duration_us)),
                ended.began_at.as_ref().map_or_else(|| "-".to_owned(), age),
                text_or_dash(&ended.detail),
            ]
        }),
    )
}

fn share(copied: u64, bytes: u64) -> String {
    let percent = (u128::from(copied) * 100).checked_div(bytes.into()).unwrap_or(0);
    format!("{percent}%")
}

fn to_json(moving: &v1::Move) -> Value {
    let part = moving.part.unwrap_or_default();
    json!({
        "allocation_id": AllocationId::from_raw(part.allocation_id).to_string(),
        "part_index": part.part_index,
        "tenant": moving.tenant,
        "device": moving.device,
        "tier": tier_name(moving.tier()),
        "bytes": moving.bytes,
        "copied_bytes": moving.copied_bytes,
        "cause": cause_name(moving.cause()),
        "state": state_name(moving.state()),
        "began_at": moving.began_at.as_ref().map(ToString::to_string),
    })
}

fn ended_to_json(ended: &v1::EndedMove) -> Value {
    let part = ended.part.unwrap_or_default();
    json!({
        "allocation_id": AllocationId::from_raw(part.allocation_id).to_string(),
        "part_index": part.part_index,
        "tenant": ended.tenant,
        "device": ended.device,
        "tier": tier_name(ended.tier()),
        "bytes": ended.bytes,
        "cause": cause_name(ended.cause()),
        "outcome": outcome_name(ended.outcome()),
        "detail": ended.detail,
        "began_at": ended.began_at.as_ref().map(ToString::to_string),
        "duration_us": ended.duration_us,
    })
}

fn cause_name(cause: v1::MoveCause) -> &'static str {
    match cause {
        v1::MoveCause::Unspecified => "unknown",
        v1::MoveCause::Demand => "demand",
        v1::MoveCause::WriteBack => "write_back",
        v1::MoveCause::Rebalance => "rebalance",
        v1::MoveCause::Pressure => "pressure",
        v1::MoveCause::Operator => "operator",
    }
}

fn state_name(state: v1::MoveState) -> &'static str {
    match state {
        v1::MoveState::Unspecified => "unknown",
        v1::MoveState::Preparing => "preparing",
        v1::MoveState::Copying => "copying",
        v1::MoveState::Stopping => "stopping",
    }
}

fn outcome_name(outcome: Change) -> &'static str {
    match outcome {
        Change::Unspecified => "unknown",
        Change::Moved => "moved",
        Change::Failed => "failed",
        Change::Stopped => "stopped",
        Change::Dropped => "dropped",
        Change::WrittenBack => "written_back",
        // How none ends.
        Change::ShadowDiffers => "shadow_differs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_shows_how_far_it_is() {
        let shares = [share(1, 3), share(0, 3), share(1, 0), share(u64::MAX, u64::MAX)];
        assert_eq!(shares, ["33%", "0%", "0%", "100%"]);
    }
}
