//! `vramctl wait …`

use std::collections::{BTreeMap, BTreeSet};

use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};
use vramd_client::{AllocationId, SessionId, admin::AdminClient};
use vramd_proto::v1::{self, wait::What};

use super::{device, names::session_names};
use crate::output::{
    Output,
    device_names::DeviceNames,
    failure::Failure,
    table::{Column, table},
    text::{age, size, text_or_dash, until},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the requests that wait for room on devices, in order of arrival, with the reason why each waits.
    List(List),
    /// End one wait: the pin or allocation is refused, with all its parts.
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
    /// Number of the wait, as `wait list` shows it.
    wait: u64,
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    match verb {
        Verb::List(list) => {
            let waits = admin.waits(list.tenant.as_deref())?;
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

/// One row for each request and device: the waiting parts of a pin stand together.
fn rows(waits: &[v1::Wait], names: &DeviceNames) -> String {
    table(
        &[
            Column::number("WAIT").key(),
            Column::text("TENANT"),
            Column::text("DEVICE"),
            Column::number("BYTES"),
            Column::number("AGE"),
            Column::text("UNTIL"),
            Column::text("WAITER"),
            Column::text("SESSIONS"),
            Column::text("WHY"),
            Column::text("BEHIND"),
        ],
        requests(waits).iter().map(|waits| {
            let first = waits[0];
            let sessions: BTreeSet<u64> = waits.iter().flat_map(|wait| sessions(wait)).collect();
            vec![
                first.wait_id.to_string(),
                first.tenant.clone(),
                names.name(&first.device),
                size(waits.iter().map(|wait| wait.bytes).sum()),
                age(first.began_at.as_ref()),
                until(first.until.as_ref()),
                waiter(waits),
                text_or_dash(&session_names(&Vec::from_iter(sessions)).join(" ")),
                text_or_dash(&first.reason.as_ref().map(why).unwrap_or_default()),
                behind(first),
            ]
        }),
    )
}

/// Groups waits by request and device, in the order of the line.
pub(super) fn requests(waits: &[v1::Wait]) -> Vec<Vec<&v1::Wait>> {
    let mut groups: Vec<Vec<&v1::Wait>> = Vec::new();
    let mut found: BTreeMap<(u64, &str), usize> = BTreeMap::new();
    for wait in waits {
        let at = *found.entry((wait.request, &wait.device)).or_insert(groups.len());
        match groups.get_mut(at) {
            // An old daemon gives no numbers of requests.
            Some(group) if wait.request != 0 => group.push(wait),
            _ => groups.push(vec![wait]),
        }
    }
    groups
}

/// The parts, or the batch of allocations, that wait.
pub(super) fn waiter(waits: &[&v1::Wait]) -> String {
    let mut parts: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for wait in waits {
        match &wait.what {
            Some(What::Part(waiting)) => {
                let part = waiting.part.unwrap_or_default();
                parts.entry(part.allocation_id).or_default().insert(part.part_index);
            }
            Some(What::Batch(batch)) => return format!("batch of {} allocations", batch.item_count),
            None => return "unknown".to_owned(),
        }
    }
    let of = |(id, parts): (u64, BTreeSet<u32>)| {
        let word = if parts.len() == 1 { "part" } else { "parts" };
        format!("{word} {} of {}", ranges(&parts), AllocationId::from_raw(id))
    };
    parts.into_iter().map(of).collect::<Vec<_>>().join(", ")
}

/// Numbers as ranges: `0-2,5`.
fn ranges(numbers: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The sessions that want the part or asked for the batch.
fn sessions(wait: &v1::Wait) -> Vec<u64> {
    match &wait.what {
        Some(What::Part(part)) => part.session_ids.clone(),
        Some(What::Batch(batch)) => vec![batch.session_id],
        None => Vec::new(),
    }
}

/// Why the request waits.
pub(super) fn why(reason: &v1::WaitReason) -> String {
    let figures = || format!("{} of {}", size(reason.held_bytes), size(reason.bound_bytes));
    let mut text = match reason.cause() {
        v1::WaitCause::Unspecified => return String::new(),
        v1::WaitCause::Limit => format!("limit: {}", figures()),
        v1::WaitCause::Guarantee => return format!("guarantee of {}", reason.tenants.join(" ")),
        v1::WaitCause::InUse => format!("device full: {}", figures()),
        v1::WaitCause::Leaving => return format!("device full: {}, room is being made", figures()),
        v1::WaitCause::Turn => return "its turn".to_owned(),
        v1::WaitCause::Driver => return "the driver has no memory".to_owned(),
    };
    if !reason.session_ids.is_empty() {
        text.push_str(&format!(", in use by {}", session_names(&reason.session_ids).join(" ")));
    }
    if reason.operator_held_bytes > 0 {
        text.push_str(&format!(", {} held by operators", size(reason.operator_held_bytes)));
    }
    text
}

/// The number of requests that it stands behind, and the last of them.
pub(super) fn behind(wait: &v1::Wait) -> String {
    match wait.requests_ahead {
        0 => "-".to_owned(),
        1 => format!("wait {}", wait.wait_id_ahead),
        more => format!("{more} requests, the last is wait {}", wait.wait_id_ahead),
    }
}

fn reason_to_json(reason: &v1::WaitReason) -> Value {
    json!({
        "cause": cause_name(reason.cause()),
        "bound_bytes": reason.bound_bytes,
        "held_bytes": reason.held_bytes,
        "session_ids": session_names(&reason.session_ids),
        "tenants": reason.tenants,
        "operator_held_bytes": reason.operator_held_bytes,
    })
}

fn cause_name(cause: v1::WaitCause) -> &'static str {
    match cause {
        v1::WaitCause::Unspecified => "unknown",
        v1::WaitCause::Limit => "limit",
        v1::WaitCause::Guarantee => "guarantee",
        v1::WaitCause::InUse => "in_use",
        v1::WaitCause::Leaving => "leaving",
        v1::WaitCause::Turn => "turn",
        v1::WaitCause::Driver => "driver",
    }
}

pub(super) fn to_json(wait: &v1::Wait) -> Value {
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
        "request": wait.request,
        "reason": wait.reason.as_ref().map(reason_to_json),
        "requests_ahead": wait.requests_ahead,
        "wait_id_ahead": (wait.requests_ahead > 0).then_some(wait.wait_id_ahead),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_ranges() {
        assert_eq!(ranges(&BTreeSet::from([7, 0, 2, 1, u32::MAX])), "0-2,7,4294967295");
    }

    #[test]
    fn the_parts_of_a_request_share_a_row_and_old_waits_have_their_own() {
        let wait = |wait_id, request| v1::Wait { wait_id, request, ..Default::default() };
        let waits = [wait(1, 5), wait(2, 6), wait(3, 5), wait(4, 0), wait(5, 0)];
        let ids = |group: &Vec<&v1::Wait>| group.iter().map(|wait| wait.wait_id).collect::<Vec<_>>();
        assert_eq!(
            requests(&waits).iter().map(ids).collect::<Vec<_>>(),
            [vec![1, 3], vec![2], vec![4], vec![5]]
        );
    }
}
