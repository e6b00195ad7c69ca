//! `vramctl alloc hold` and `unhold`: operator holds keep parts on their device.

use serde_json::json;
use vramd_client::{AllocationId, admin::AdminClient};
use vramd_proto::v1::{self, hold_parts_request::Target as Wire};

use super::{Target, part_ranges::Parts};
use crate::output::{Output, failure::Failure};

pub(crate) fn run(parts: Parts, held: bool, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let part_indexes = parts.indexes();
    let target = Some(match parts.target {
        Target::Id(id) => Wire::AllocationId(id.get()),
        Target::Name(name) => Wire::Name(name),
    });
    let request = v1::HoldPartsRequest { target, part_indexes, let_go: !held, ..Default::default() };
    let answer = admin.hold_parts(request)?;
    let id = AllocationId::from_raw(answer.allocation_id).to_string();
    let indexes = answer.part_indexes;
    let text = || {
        let parts = indexes.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        format!("{id}: {} {parts}", if held { "held" } else { "let go" })
    };
    output.show(text, json!({ "allocation_id": id, "held": held, "part_indexes": indexes }))
}
