//! `vramctl node …`

use clap::Subcommand;
use serde_json::{Value, json};
use vramd_client::admin::AdminClient;
use vramd_proto::v1;

use crate::output::{
    Output,
    failure::Failure,
    text::{facts, size},
};

/// Said of values that differ from the tenants file.
const HOW_TO_SEE: &str = " (`vramctl apply -f FILE --dry-run` lists them)";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the daemon: version, driver, service, counts.
    Show,
    /// Take the node out of service: no new sessions, allocations or attaches.
    Drain,
    /// Put the node back into service.
    Undrain,
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    match verb {
        Verb::Show => {
            let node = admin.node()?;
            output.show(|| sheet(&node), json!({ "node": to_json(&node) }))
        }
        Verb::Drain => show_service(&admin.drain(false)?, output),
        Verb::Undrain => show_service(&admin.drain(true)?, output),
    }
}

fn show_service(state: &v1::DrainResponse, output: &Output) -> Result<(), Failure> {
    let text = || {
        let service = service(state.draining);
        format!("{service}: {} sessions, {} charged", state.session_count, size(state.held_bytes))
    };
    let fields = json!({
        "draining": state.draining,
        "session_count": state.session_count,
        "held_bytes": state.held_bytes,
    });
    output.show(text, fields)
}

/// The node in two lines, and one more for each of these: a drift from the tenants file, a broken invariant.
pub(crate) fn heading(node: &v1::GetNodeResponse) -> String {
    let mut text = format!(
        "vramd {}, {}, {} sessions, {} allocations\ndriver {}: {}{}",
        node.version,
        service(node.draining),
        node.session_count,
        node.allocation_count,
        node.driver,
        if node.driver == "sim" { "SIMULATED memory, and no GPU's: " } else { "" },
        node.driver_reason
    );
    if let Some(file) = &node.applied_tenants
        && (file.difference_count > 0 || !file.refused.is_empty())
    {
        text.push_str(&format!("\ntenants file {}", tenants_file(file)));
    }
    if node.invariant_violations > 0 {
        text.push_str(&format!(
            "\n{} broken invariants: a bug in vramd. Please report the lines of its log about them",
            node.invariant_violations
        ));
    }
    text
}

pub(crate) fn to_json(node: &v1::GetNodeResponse) -> Value {
    json!({
        "version": node.version,
        "driver": node.driver,
        "driver_reason": node.driver_reason,
        "draining": node.draining,
        "boot_epoch": node.boot_epoch,
        "session_count": node.session_count,
        "allocation_count": node.allocation_count,
        "fds_in_flight": node.fds_in_flight,
        "invariant_violations": node.invariant_violations,
        "started_at": started(node),
        "applied_tenants": node.applied_tenants.as_ref().map(|file| json!({
            "source": file.source,
            "applied_at": file.applied_at.as_ref().map(ToString::to_string),
            "difference_count": file.difference_count,
            "refused": file.refused,
        })),
    })
}

fn sheet(node: &v1::GetNodeResponse) -> String {
    facts(&[
        ("version", node.version.clone()),
        ("service", service(node.draining).to_owned()),
        ("driver", node.driver.clone()),
        ("because", node.driver_reason.clone()),
        ("started", started(node).unwrap_or_else(|| "-".to_owned())),
        ("boot epoch", node.boot_epoch.to_string()),
        ("sessions", node.session_count.to_string()),
        ("allocations", node.allocation_count.to_string()),
        ("in flight", format!("{} descriptors", node.fds_in_flight)),
        ("tenants file", node.applied_tenants.as_ref().map_or_else(|| "-".to_owned(), tenants_file)),
        ("broken", format!("{} invariants", node.invariant_violations)),
    ])
}

/// The tenants file that was applied last, with how far what is in force is from it.
fn tenants_file(file: &v1::AppliedTenants) -> String {
    let at = file.applied_at.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
    let drift = match file.difference_count {
        0 => "in force".to_owned(),
        1 => format!("1 value was set otherwise since{HOW_TO_SEE}"),
        count => format!("{count} values were set otherwise since{HOW_TO_SEE}"),
    };
    let refused = match file.refused.as_str() {
        "" => String::new(),
        problem => format!("; read again and refused: {problem}"),
    };
    format!("{}, applied {at}: {drift}{refused}", file.source)
}

pub(super) fn service(draining: bool) -> &'static str {
    if draining { "draining" } else { "in service" }
}

fn started(node: &v1::GetNodeResponse) -> Option<String> {
    node.started_at.as_ref().map(ToString::to_string)
}
