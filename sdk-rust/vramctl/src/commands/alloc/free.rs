//! `vramctl alloc free`: giving memory back in its owner's stead.

use serde_json::json;
use vramd_client::{AllocationId, SessionId, admin::AdminClient};
use vramd_proto::v1::{self, free_allocation_request::Target as Wire};

use super::{Target, owner, session_texts, show};
use crate::output::{Output, failure::Failure, progress, table::size};

/// Returns when the owner has let go, or is overdue; until then it says on a terminal whom it waits for.
pub(crate) fn run(target: Target, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let shown = show(target, admin)?;
    let owner = owner(&shown);
    let id = AllocationId::from_raw(shown.allocation_id);
    let waiting = owner.map(|owner| progress::waiting(format!("{owner} is to unmap {id}"), output));
    let target = Some(Wire::AllocationId(id.get()));
    let freed = admin.free_allocation(v1::FreeAllocationRequest { target, ..Default::default() });
    if let Some(waiting) = waiting {
        waiting.finish_and_clear();
    }
    let freed = freed?;
    let fields = json!({
        "allocation_id": id.to_string(),
        "still_charged_bytes": freed.still_charged_bytes,
        "mapper_session_ids": session_texts(&freed.mapper_session_ids),
    });
    output.show(|| text(&freed, owner), fields)
}

fn text(freed: &v1::FreeAllocationResponse, owner: Option<SessionId>) -> String {
    let id = AllocationId::from_raw(freed.allocation_id);
    let mappers: Vec<_> = freed
        .mapper_session_ids
        .iter()
        .map(|session| match SessionId::from_raw(*session) {
            session if Some(session) == owner => format!("{session} (its owner, which does not answer)"),
            session => session.to_string(),
        })
        .collect();
    match (freed.still_charged_bytes, &mappers[..]) {
        (0, _) => format!("{id} is freed"),
        (bytes, []) => {
            format!("{id} is freed; {} stay charged until the driver gives them back", size(bytes))
        }
        (bytes, mappers) => {
            format!("{id} is freed; {} stay charged until these let go: {}", size(bytes), mappers.join(", "))
        }
    }
}
