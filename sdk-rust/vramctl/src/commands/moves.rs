//! `vramctl move …`

use std::time::Duration;

use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};
use vramd_client::{AllocationId, admin::AdminClient};
use vramd_proto::v1::{self, move_event::Change};

use super::{device, names::tier_name};
use crate::output::{
    Output,
    device_names::DeviceNames,
    failure::Failure,
    table::{Column, table},
    text::{age, size, text_or_dash},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the migrations in progress with their causes, and the last that ended.
    List(List),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// List this tenant alone.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    tenant: Option<String>,
}

pub(crate) fn run(verb: &Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let Verb::List(List { tenant }) = verb;
    let moves = admin.moves(tenant.as_deref())?;
    let fields = json!({
        "moves": moves.moving.iter().map(to_json).collect::<Vec<_>>(),
        "ended": moves.ended.iter().map(ended_to_json).collect::<Vec<_>>(),
    });
    let moving = moves.moving.iter().map(|moving| moving.device.as_str());
    let devices = moving.chain(moves.ended.iter().map(|ended| ended.device.as_str()));
    let names = device::fetch_names(admin, devices, output);
    let text = || format!("{}\n\nENDED\n{}", rows(&moves.moving, &names), ended_rows(&moves.ended, &names));
    output.show(text, fields)
}

fn rows(moves: &[v1::Move], names: &DeviceNames) -> String {
    table(
        &[
            Column::text("ALLOCATION").key(),
            Column::number("PART").key(),
            Column::text("TENANT"),
            Column::text("DEVICE"),
            Column::text("FROM"),
            Column::text("TO"),
            Column::number("BYTES"),
            Column::number("DONE"),
            Column::text("CAUSE"),
            Column::text("STATE"),
            Column::number("AGE"),
        ],
        moves.iter().map(|moving| {
            let part = moving.part.unwrap_or_default();
            vec![
                AllocationId::from_raw(part.allocation_id).to_string(),
                part.part_index.to_string(),
                moving.tenant.clone(),
                names.name(&moving.device),
                from_name(moving.from_tier()).to_owned(),
                tier_name(moving.tier()).to_owned(),
                size(moving.bytes),
                moving.copied_bytes.map_or_else(|| "-".to_owned(), |copied| percent(copied, moving.bytes)),
                cause_name(moving.cause()).to_owned(),
                state_name(moving.state()).to_owned(),
                age(moving.began_at.as_ref()),
            ]
        }),
    )
}

fn ended_rows(moves: &[v1::EndedMove], names: &DeviceNames) -> String {
    table(
        &[
            Column::text("ALLOCATION").key(),
            Column::number("PART").key(),
            Column::text("TENANT"),
            Column::text("DEVICE"),
            Column::text("FROM"),
            Column::text("TO"),
            Column::number("BYTES"),
            Column::text("CAUSE"),
            Column::text("OUTCOME"),
            Column::number("TOOK"),
            Column::number("AGE"),
            Column::text("DETAIL"),
        ],
        moves.iter().map(|ended| {
            let part = ended.part.unwrap_or_default();
            vec![
                AllocationId::from_raw(part.allocation_id).to_string(),
                part.part_index.to_string(),
                ended.tenant.clone(),
                names.name(&ended.device),
                from_name(ended.from_tier()).to_owned(),
                tier_name(ended.tier()).to_owned(),
                size(ended.bytes),
                cause_name(ended.cause()).to_owned(),
                outcome_name(ended.outcome()).to_owned(),
                format!("{:.1?}", Duration::from_micros(ended.duration_us)),
                age(ended.began_at.as_ref()),
                text_or_dash(&ended.detail),
            ]
        }),
    )
}

/// How much of the part has been copied.
fn percent(copied: u64, bytes: u64) -> String {
    format!("{}%", (u128::from(copied) * 100).checked_div(bytes.into()).unwrap_or(0))
}

pub(super) fn to_json(moving: &v1::Move) -> Value {
    let part = moving.part.unwrap_or_default();
    json!({
        "allocation_id": AllocationId::from_raw(part.allocation_id).to_string(),
        "part_index": part.part_index,
        "tenant": moving.tenant,
        "device": moving.device,
        "from_tier": from_name(moving.from_tier()),
        "tier": tier_name(moving.tier()),
        "bytes": moving.bytes,
        "copied_bytes": moving.copied_bytes,
        "cause": cause_name(moving.cause()),
        "state": state_name(moving.state()),
        "began_at": moving.began_at.as_ref().map(ToString::to_string),
    })
}

pub(super) fn ended_to_json(ended: &v1::EndedMove) -> Value {
    let part = ended.part.unwrap_or_default();
    json!({
        "allocation_id": AllocationId::from_raw(part.allocation_id).to_string(),
        "part_index": part.part_index,
        "tenant": ended.tenant,
        "device": ended.device,
        "from_tier": from_name(ended.from_tier()),
        "tier": tier_name(ended.tier()),
        "bytes": ended.bytes,
        "cause": cause_name(ended.cause()),
        "outcome": outcome_name(ended.outcome()),
        "detail": ended.detail,
        "began_at": ended.began_at.as_ref().map(ToString::to_string),
        "duration_us": ended.duration_us,
    })
}

/// The tier that a part moves from. A daemon that is too old does not say it.
pub(super) fn from_name(tier: v1::Tier) -> &'static str {
    match tier {
        v1::Tier::Unspecified => "unknown",
        tier => tier_name(tier),
    }
}

pub(crate) fn cause_name(cause: v1::MoveCause) -> &'static str {
    match cause {
        v1::MoveCause::Unspecified => "unknown",
        v1::MoveCause::Demand => "demand",
        v1::MoveCause::WriteBack => "write_back",
        v1::MoveCause::Rebalance => "rebalance",
        v1::MoveCause::Pressure => "pressure",
        v1::MoveCause::Operator => "operator",
        v1::MoveCause::Owner => "owner",
        v1::MoveCause::Prefetch => "prefetch",
        v1::MoveCause::Speculation => "speculation",
    }
}

pub(super) fn state_name(state: v1::MoveState) -> &'static str {
    match state {
        v1::MoveState::Unspecified => "unknown",
        v1::MoveState::Preparing => "preparing",
        v1::MoveState::Copying => "copying",
        v1::MoveState::Stopping => "stopping",
    }
}

pub(super) fn outcome_name(outcome: Change) -> &'static str {
    match outcome {
        Change::Unspecified => "unknown",
        Change::Moved => "moved",
        Change::Failed => "failed",
        Change::Stopped => "stopped",
        Change::Dropped => "dropped",
        Change::WrittenBack => "written_back",
        // An event of a running migration: no migration ends so.
        Change::ShadowDiffers => "shadow_differs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_rounded_down_to_percent() {
        let percents = [percent(1, 3), percent(0, 3), percent(1, 0), percent(u64::MAX, u64::MAX)];
        assert_eq!(percents, ["33%", "0%", "0%", "100%"]);
    }
}
