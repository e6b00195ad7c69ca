//! Renders events of turns.

use std::time::Duration;

use serde_json::json;
use vramd_client::SessionId;
use vramd_proto::v1::{self, turn_event::Change};

use super::event::Description;
use crate::output::text::{plain, size};

pub(super) fn describe(event: &v1::TurnEvent) -> Description {
    let (session, name) = (SessionId::from_raw(event.session_id), plain(&event.set_name));
    let took = format!("{:.1} s", Duration::from_millis(event.duration_ms).as_secs_f64());
    let (change, what) = match event.change() {
        Change::Unspecified => ("unknown", "changed".to_owned()),
        Change::Granted => {
            ("granted", format!("has its turn after {took}, with a set of {}", size(event.bytes)))
        }
        Change::QuantumOver => ("quantum_over", "is asked to yield: others wait".to_owned()),
        Change::OperatorAsked => ("operator_asked", "is asked to yield by an operator".to_owned()),
        Change::Overdue => ("overdue", format!("does not yield: it was asked {took} ago")),
        Change::Yielded => ("yielded", format!("yielded after {took}")),
        Change::SessionEnded => ("session_ended", format!("ended with its session after {took}")),
    };
    let fields = json!({
        "session_id": session.to_string(),
        "set_name": event.set_name,
        "device": event.device,
        "bytes": (event.bytes != 0).then_some(event.bytes),
        "duration_ms": event.duration_ms,
    });
    let text = format!("{change}: working set {name} of {session} {what}");
    Description { kind: "turn", change, fields, text }
}
