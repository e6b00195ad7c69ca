//! `vramctl wait …`

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use vramd_client::{AllocationId, SessionId, admin::AdminClient};
use vramd_proto::v1::{self, wait::What};

use super::{device, names::session_names};
use crate::output::{
    Output,
    device_names::DeviceNames,
    failure::Failure,
    table::{Column, table},
    text::{age, size, text_or_dash},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the waiters for room on devices, in order of arrival.
    List(List),
    /// End one wait: the pin or allocation is refused.
    Cancel(Cancel),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// List this tenant alone.
    #[arg(default_value = "", hide_default_value = true)]
    tenant: String,
}

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// Number of the wait, as `wait list` shows it.
    wait: u64,
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    match verb {
        Verb::List(list) => {
            let waits = admin.waits(&list.tenant)?;
            let fields = json!({ "waits": waits.iter().map(to_json).collect::<Vec<_>>() });
            let names = device::fetch_names(admin, waits.iter().map(|wait| wait.device.as_str()), output);
            output.show(|| rows(&waits, &names), fields)
        }
        Verb::Cancel(Cancel { wait }) => {
            admin.cancel_wait(v1::CancelWaitRequest { wait_id: wait, ..Default::default() })?;
            output.show(|| format!("wait {wait} has ended"), json!({ "wait_id": wait }))
        }
    }
}

fn rows(waits: &[v1::Wait], names: &DeviceNames) -> String {
    table(
        &[
            Column::number("WAIT").key(),
            Column::text("TENANT"),
            Column::text("DEVICE"),
            Column::number("BYTES"),
            Column::number("AGE"),
            Column::text("WAITER"),
            Column::text("SESSIONS"),
        ],
        waits.iter().map(|wait| {
            vec![
                wait.wait_id.to_string(),
                wait.tenant.clone(),
                names.name(&wait.device),
                size(wait.bytes),
                age(wait.began_at.as_ref()),
                waiter(wait),
                text_or_dash(&session_names(&sessions(wait)).join(" ")),
            ]
        }),
    )
}

/// The part, or the batch of allocations, that waits.
fn waiter(wait: &v1::Wait) -> String {
    match &wait.what {
        Some(What::Part(waiting)) => {
            let part = waiting.part.unwrap_or_default();
            format!("part {} of {}", part.part_index, AllocationId::from_raw(part.allocation_id))
        }
        Some(What::Batch(batch)) => format!("batch of {} allocations", batch.item_count),
        None => "unknown".to_owned(),
    }
}

/// The sessions that want the part or asked for the batch.
fn sessions(wait: &v1::Wait) -> Vec<u64> {
    match &wait.what {
        Some(What::Part(part)) => part.session_ids.clone(),
        Some(What::Batch(batch)) => vec![batch.session_id],
        None => Vec::new(),
    }
}

fn to_json(wait: &v1::Wait) -> Value {
    let what = match &wait.what {
        Some(What::Part(waiting)) => {
            let part = waiting.part.unwrap_or_default();
            json!({
                "kind": "part",
                "allocation_id": AllocationId::from_raw(part.allocation_id).to_string(),
                "part_index": part.part_index,
                "session_ids": session_names(&waiting.session_ids),
            })
        }
        Some(What::Batch(batch)) => json!({
            "kind": "batch",
            "session_id": SessionId::from_raw(batch.session_id).to_string(),
            "item_count": batch.item_count,
        }),
        None => json!({ "kind": "unknown" }),
    };
    json!({
        "wait_id": wait.wait_id,
        "tenant": wait.tenant,
        "device": wait.device,
        "bytes": wait.bytes,
        "began_at": wait.began_at.as_ref().map(ToString::to_string),
        "until": wait.until.as_ref().map(ToString::to_string),
        "what": what,
    })
}
