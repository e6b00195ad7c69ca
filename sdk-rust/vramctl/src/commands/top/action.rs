//! The actions of an operator on a row: the question before each, the call, and the daemon's answer in one sentence.

use std::collections::BTreeMap;

use vramd_client::{AllocationId, admin::AdminClient};
use vramd_proto::v1::{self, MoveOutcome as Outcome, Tier, hold_parts_request, move_parts_request};

use super::grid::RowId;
use crate::{
    commands::{
        alloc::relocate::{cause, outcome_name},
        names::tier_name,
    },
    output::failure::Failure,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Evict(Tier),
    Hold,
    LetGo,
}

/// A verb for all parts of an allocation, or for one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Action {
    verb: Verb,
    allocation: u64,
    part: Option<u32>,
    /// How people know it.
    name: String,
}

impl Action {
    /// The action on what a row stands for. `None` if the row is neither an allocation nor a part.
    pub(super) fn on(row: &RowId, verb: Verb) -> Option<Self> {
        match row {
            RowId::Allocation { id, name } => {
                Some(Self { verb, allocation: *id, part: None, name: name.clone() })
            }
            RowId::Part { id, index } => {
                Some(Self { verb, allocation: *id, part: Some(*index), name: String::new() })
            }
            _ => None,
        }
    }

    /// The question to the operator before the call.
    pub(super) fn question(&self) -> String {
        let target = self.target();
        match self.verb {
            Verb::Evict(tier) => format!("Evict {target} to {}?", tier_name(tier)),
            Verb::Hold => format!("Hold {target} on the device?"),
            Verb::LetGo => format!("Let go of {target}?"),
        }
    }

    /// The action in words, while the daemon has not answered.
    pub(super) fn progress(&self) -> String {
        let target = self.target();
        match self.verb {
            Verb::Evict(tier) => format!("evicting {target} to {}", tier_name(tier)),
            Verb::Hold => format!("holding {target}"),
            Verb::LetGo => format!("letting go of {target}"),
        }
    }

    fn target(&self) -> String {
        let id = AllocationId::from_raw(self.allocation);
        let name = if self.name.is_empty() { String::new() } else { format!(" ({})", self.name) };
        match self.part {
            Some(part) => format!("part {part} of {id}{name}"),
            None => format!("all parts of {id}{name}"),
        }
    }

    /// Calls the daemon, and puts its answer into words.
    pub(super) fn run(&self, admin: &AdminClient) -> Result<String, Failure> {
        let part_indexes = Vec::from_iter(self.part);
        let id = AllocationId::from_raw(self.allocation);
        match self.verb {
            Verb::Evict(tier) => {
                let target = Some(move_parts_request::Target::AllocationId(self.allocation));
                let tier = tier.into();
                let request = v1::MovePartsRequest { target, part_indexes, tier, ..Default::default() };
                Ok(format!("{id}: {}", moved(&admin.move_parts(request)?.parts)))
            }
            Verb::Hold | Verb::LetGo => {
                let target = Some(hold_parts_request::Target::AllocationId(self.allocation));
                let let_go = self.verb == Verb::LetGo;
                let request = v1::HoldPartsRequest { target, part_indexes, let_go, ..Default::default() };
                let changed = admin.hold_parts(request)?.part_indexes.len();
                Ok(format!("{id}: {}", held(changed, let_go)))
            }
        }
    }
}

/// The outcomes of a move, counted, each with the first reason for it.
fn moved(parts: &[v1::PartMove]) -> String {
    let mut outcomes: BTreeMap<&str, (usize, String)> = BTreeMap::new();
    for part in parts {
        let count = outcomes.entry(outcome_name(part.outcome(), "moved")).or_default();
        count.0 += 1;
        if count.1.is_empty() && part.outcome() != Outcome::Moved {
            count.1 = cause(part).trim_matches('-').to_owned();
        }
    }
    let text = |(outcome, (count, why)): (&str, (usize, String))| match why.as_str() {
        "" => format!("{count} {outcome}"),
        why => format!("{count} {outcome} ({why})"),
    };
    match outcomes.is_empty() {
        true => "no part moved".to_owned(),
        false => outcomes.into_iter().map(text).collect::<Vec<_>>().join(", "),
    }
}

fn held(changed: usize, let_go: bool) -> String {
    match (changed, let_go) {
        (0, false) => "all these parts were held already".to_owned(),
        (0, true) => "no operator held any of these parts".to_owned(),
        (1, false) => "1 part held".to_owned(),
        (1, true) => "1 part let go".to_owned(),
        (count, false) => format!("{count} parts held"),
        (count, true) => format!("{count} parts let go"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcomes_of_a_move_are_counted_with_a_reason() {
        let part = |outcome: Outcome, session_ids: &[u64]| v1::PartMove {
            outcome: outcome.into(),
            session_ids: session_ids.to_vec(),
            ..Default::default()
        };
        let error = v1::ItemError {
            reason: "QUOTA_LIMIT".to_owned(),
            message: "the tenant is at its limit".to_owned(),
            ..Default::default()
        };
        let refused = v1::PartMove { error: Some(error), ..part(Outcome::Refused, &[]) };
        let parts =
            [part(Outcome::Moved, &[]), part(Outcome::Pinned, &[7]), part(Outcome::Moved, &[]), refused];
        let expected = "2 moved, 1 pinned (s-7), 1 refused (QUOTA_LIMIT: the tenant is at its limit)";
        assert_eq!(moved(&parts), expected);
        assert_eq!(moved(&[]), "no part moved");
    }

    #[test]
    fn an_action_needs_an_allocation_or_a_part() {
        let named = RowId::Allocation { id: 9, name: "team-a/llama".to_owned() };
        let evict = Action::on(&named, Verb::Evict(Tier::Host)).unwrap();
        assert_eq!(evict.question(), "Evict all parts of a-9 (team-a/llama) to host?");
        let hold = Action::on(&RowId::Part { id: 9, index: 3 }, Verb::Hold).unwrap();
        assert_eq!(hold.question(), "Hold part 3 of a-9 on the device?");
        assert_eq!(Action::on(&RowId::Tenant("team-a".to_owned()), Verb::Hold), None);
    }
}
