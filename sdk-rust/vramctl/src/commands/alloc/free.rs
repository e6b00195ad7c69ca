//! `vramctl alloc free`: frees an allocation in its owner's place.

use serde_json::json;
use vramd_client::{AllocationId, SessionId, admin::AdminClient};
use vramd_proto::v1::{self, free_allocation_request::Target as Wire};

use super::{
    Target,
    show::{fetch, owner},
};
use crate::{
    commands::names::session_names,
    output::{Output, failure::Failure, progress, text::size},
};

/// Returns when the owner has unmapped the memory or its time to do so is over. Meanwhile a terminal shows which session the
/// command waits for.
pub(crate) fn run(target: Target, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let shown = fetch(target, admin)?;
    let owner = owner(&shown);
    let id = AllocationId::from_raw(shown.allocation_id);
    let waiting = owner.map(|owner| progress::waiting(format!("waiting for {owner} to unmap {id}"), output));
    let target = Some(Wire::AllocationId(id.get()));
    let freed = admin.free_allocation(v1::FreeAllocationRequest { target, ..Default::default() });
    if let Some(waiting) = waiting {
        waiting.finish_and_clear();
    }
    let freed = freed?;
    let fields = json!({
        "allocation_id": id.to_string(),
        "still_charged_bytes": freed.still_charged_bytes,
        "mapper_session_ids": session_names(&freed.mapper_session_ids),
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
            format!("{id} is freed; {} stay charged until the driver returns them", size(bytes))
        }
        (bytes, mappers) => {
            format!(
                "{id} is freed; {} stay charged until these sessions unmap it: {}",
                size(bytes),
                mappers.join(", ")
            )
        }
    }
}
