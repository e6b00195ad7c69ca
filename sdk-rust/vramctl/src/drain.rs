//! `vramctl drain`

use clap::Args;
use serde_json::json;
use vramd_client::admin::AdminClient;

use crate::{failure::Failure, output::Output, table::size};

#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// Puts the node back into service.
    #[arg(long)]
    cancel: bool,
}

pub(crate) fn run(drain: &Drain, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let state = admin.drain(drain.cancel)?;
    let text = || {
        let service = if state.draining { "draining" } else { "in service" };
        format!("{service}: {} sessions hold {}", state.session_count, size(state.held_bytes))
    };
    let fields = json!({
        "draining": state.draining,
        "session_count": state.session_count,
        "held_bytes": state.held_bytes,
    });
    output.show(text, fields)
}
