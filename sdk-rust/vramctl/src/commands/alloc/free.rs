//! `vramctl alloc free`: frees an allocation in its owner's place.

use serde_json::json;
use vramd_client::{AllocationId, SessionId, admin::AdminClient};
use vramd_proto::v1::{self, free_allocation_request::Target as Wire};

use super::{
    Target,
    show::{fetch, owner},
};
use crate::{
    commands::{freed::Freed, names::session_names},
    output::{Output, failure::Failure, progress},
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
    let until = until_unmapped(&freed, owner);
    let mappers = ("mapper_session_ids", json!(session_names(&freed.mapper_session_ids)));
    Freed { id, still_charged_bytes: freed.still_charged_bytes, until }.show(mappers, output)
}

fn until_unmapped(freed: &v1::FreeAllocationResponse, owner: Option<SessionId>) -> Option<String> {
    let mappers: Vec<_> = freed
        .mapper_session_ids
        .iter()
        .map(|session| match SessionId::from_raw(*session) {
            session if Some(session) == owner => format!("{session} (its owner, which does not answer)"),
            session => session.to_string(),
        })
        .collect();
    (!mappers.is_empty()).then(|| format!("these sessions unmap it: {}", mappers.join(", ")))
}
