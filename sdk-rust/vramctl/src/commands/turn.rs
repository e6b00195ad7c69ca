//! `vramctl turn …`

use std::time::Duration;

use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};
use vramd_client::{SessionId, admin::AdminClient};
use vramd_proto::v1;

use super::{device, names::session_names};
use crate::output::{
    Output,
    device_names::DeviceNames,
    failure::Failure,
    table::{Column, table},
    text::{age, plain, size},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the working sets of all sessions, and whose turn it is.
    List(List),
    /// Ask a program to yield its turn, as if its quantum were over. It is reported if it does not, and killed only if
    /// another program waits for its turn and `turns.end_after_ms` is set.
    Yield(Yield),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// List this tenant alone.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    tenant: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Yield {
    /// Session that has the turn.
    session: SessionId,
    /// Name of its working set, as `turn list` shows it.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    set: String,
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    match verb {
        Verb::List(list) => {
            let entries = admin.turns(list.tenant.as_deref())?;
            let fields = json!({ "turns": entries.iter().map(to_json).collect::<Vec<_>>() });
            let names = device::fetch_names(admin, entries.iter().map(|it| it.device.as_str()), output);
            output.show(|| rows(&entries, &names), fields)
        }
        Verb::Yield(Yield { session, set }) => {
            let (session_id, set_name) = (session.get(), set.clone());
            admin.yield_turn(v1::YieldTurnRequest { session_id, set_name, ..Default::default() })?;
            let fields = json!({ "session_id": session.to_string(), "set_name": set });
            output.show(|| format!("{session} is asked to yield the turn of {}", plain(&set)), fields)
        }
    }
}

fn rows(entries: &[v1::TurnEntry], names: &DeviceNames) -> String {
    table(
        &[
            Column::text("SESSION").key(),
            Column::text("SET").key(),
            Column::text("TENANT"),
            Column::text("DEVICE"),
            Column::number("BYTES"),
            Column::number("ALLOCATIONS"),
            Column::text("STATE"),
            Column::number("SINCE"),
            Column::number("TURNS"),
            Column::number("HELD"),
        ],
        entries.iter().map(|it| {
            vec![
                session_names(&[it.session_id]).join(""),
                plain(&it.name),
                it.tenant.clone(),
                names.name(&it.device),
                size(it.bytes),
                it.allocation_count.to_string(),
                phase_name(it.phase()).to_owned(),
                age(it.since.as_ref()),
                it.turn_count.to_string(),
                format!("{:.1}s", Duration::from_millis(it.held_ms).as_secs_f64()),
            ]
        }),
    )
}

fn phase_name(phase: v1::TurnPhase) -> &'static str {
    match phase {
        v1::TurnPhase::Unspecified => "unknown",
        v1::TurnPhase::Idle => "idle",
        v1::TurnPhase::Waiting => "waiting",
        v1::TurnPhase::HandOver => "hand-over",
        v1::TurnPhase::Granted => "granted",
        v1::TurnPhase::Ending => "ending",
        v1::TurnPhase::Overdue => "overdue",
    }
}

fn to_json(entry: &v1::TurnEntry) -> Value {
    json!({
        "session_id": SessionId::from_raw(entry.session_id).to_string(),
        "set_id": entry.set_id,
        "name": entry.name,
        "tenant": entry.tenant,
        "device": entry.device,
        "allocation_count": entry.allocation_count,
        "bytes": entry.bytes,
        "phase": phase_name(entry.phase()),
        "since": entry.since.as_ref().map(ToString::to_string),
        "turn_count": entry.turn_count,
        "held_ms": entry.held_ms,
    })
}
