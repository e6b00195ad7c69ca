//! `vramctl prefetch …`

use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};
use vramd_client::{SessionId, admin::AdminClient};
use vramd_proto::v1;
use vramd_types::PrefetchNumber;

use super::{device, names::session_names};
use crate::output::{
    Output,
    device_names::DeviceNames,
    failure::Failure,
    table::{Column, table},
    text::{age, size, until},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the prefetch requests that have not ended, with their progress.
    List(List),
    /// Cancel one request: its copies are stopped, unless something else wants the memory.
    Cancel(Cancel),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// List this tenant alone.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    tenant: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// Session that made the request.
    session: SessionId,
    /// Number of the request in that session, as `prefetch list` shows it: `7`, or `seq-7` for one of a sequence.
    prefetch: PrefetchNumber,
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    match verb {
        Verb::List(list) => {
            let entries = admin.prefetches(list.tenant.as_deref())?;
            let fields = json!({ "prefetches": entries.iter().map(to_json).collect::<Vec<_>>() });
            let names = device::fetch_names(admin, entries.iter().map(|it| it.device.as_str()), output);
            output.show(|| rows(&entries, &names), fields)
        }
        Verb::Cancel(Cancel { session, prefetch }) => {
            let (session_id, prefetch_id) = (session.get(), prefetch.0);
            let request = v1::CancelPrefetchRequest { session_id, prefetch_id, ..Default::default() };
            admin.cancel_prefetch(request)?;
            let fields = json!({ "session_id": session.to_string(), "prefetch_id": prefetch_id });
            output.show(|| format!("prefetch {prefetch} of {session} has ended"), fields)
        }
    }
}

fn rows(entries: &[v1::PrefetchEntry], names: &DeviceNames) -> String {
    table(
        &[
            Column::text("SESSION").key(),
            Column::number("PREFETCH").key(),
            Column::text("TENANT"),
            Column::text("DEVICE"),
            Column::number("BYTES"),
            Column::number("PARTS"),
            Column::number("MISSING"),
            Column::number("UNUSED"),
            Column::number("AGE"),
            Column::text("DEADLINE"),
            Column::number("PRIORITY"),
            Column::text("SEQUENCE"),
            Column::text("STATE"),
        ],
        entries.iter().map(|it| {
            vec![
                session_names(&[it.session_id]).join(""),
                PrefetchNumber(it.prefetch_id).to_string(),
                it.tenant.clone(),
                names.name(&it.device),
                size(it.bytes),
                it.part_count.to_string(),
                it.parts_missing.to_string(),
                it.parts_unused.to_string(),
                age(it.began_at.as_ref()),
                until(it.deadline.as_ref()),
                it.priority.to_string(),
                it.sequence
                    .map_or_else(|| "-".to_owned(), |of| format!("{}, step {}", of.sequence_id, of.step)),
                state(it),
            ]
        }),
    )
}

/// The phase; of a queued request also the reason.
fn state(entry: &v1::PrefetchEntry) -> String {
    match (phase_name(entry.phase()), deferral_text(entry.deferred())) {
        (phase, "") => phase.to_owned(),
        (phase, why) => format!("{phase}: {why}"),
    }
}

pub(super) fn phase_name(phase: v1::PrefetchPhase) -> &'static str {
    match phase {
        v1::PrefetchPhase::Unspecified => "unknown",
        v1::PrefetchPhase::Queued => "queued",
        v1::PrefetchPhase::Fetching => "fetching",
        v1::PrefetchPhase::Arrived => "arrived",
    }
}

pub(super) fn deferral_text(why: v1::PrefetchDeferral) -> &'static str {
    match why {
        v1::PrefetchDeferral::Unspecified => "",
        v1::PrefetchDeferral::Demand => "clients wait for room, and go first",
        v1::PrefetchDeferral::Behind => "an earlier request of its tenant goes first",
        v1::PrefetchDeferral::Link => "enough prefetched bytes are on their way",
        v1::PrefetchDeferral::Room => "the device is full, and nothing worth less may leave",
        v1::PrefetchDeferral::RoomOnItsWay => "room is being made",
        v1::PrefetchDeferral::Moving => "a part is on its way elsewhere",
        v1::PrefetchDeferral::Pressure => "paused until the pressure falls",
    }
}

fn deferral_name(why: v1::PrefetchDeferral) -> Option<&'static str> {
    match why {
        v1::PrefetchDeferral::Unspecified => None,
        v1::PrefetchDeferral::Demand => Some("demand"),
        v1::PrefetchDeferral::Behind => Some("behind"),
        v1::PrefetchDeferral::Link => Some("link"),
        v1::PrefetchDeferral::Room => Some("room"),
        v1::PrefetchDeferral::RoomOnItsWay => Some("room_on_its_way"),
        v1::PrefetchDeferral::Moving => Some("moving"),
        v1::PrefetchDeferral::Pressure => Some("pressure"),
    }
}

pub(super) fn to_json(entry: &v1::PrefetchEntry) -> Value {
    json!({
        "session_id": SessionId::from_raw(entry.session_id).to_string(),
        "prefetch_id": entry.prefetch_id,
        "tenant": entry.tenant,
        "device": entry.device,
        "bytes": entry.bytes,
        "part_count": entry.part_count,
        "parts_missing": entry.parts_missing,
        "parts_unused": entry.parts_unused,
        "began_at": entry.began_at.as_ref().map(ToString::to_string),
        "deadline": entry.deadline.as_ref().map(ToString::to_string),
        "priority": entry.priority,
        "phase": phase_name(entry.phase()),
        "deferred": deferral_name(entry.deferred()),
        "sequence_id": entry.sequence.map(|of| of.sequence_id),
        "sequence_step": entry.sequence.map(|of| of.step),
    })
}
