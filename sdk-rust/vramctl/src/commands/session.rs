//! `vramctl session …`

use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};
use vramd_client::{Reason, SessionId, admin::AdminClient};
use vramd_proto::v1;

use super::alloc;
use crate::output::{
    Output,
    failure::Failure,
    table::{Column, table},
    text::{age, count_or_dash, facts, size, size_or_dash, text_or_dash},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the sessions of connected client processes, and silent ones.
    List(List),
    /// Show one session and the allocations that it owns.
    Show(Show),
    /// Ask a session to unmap everything, and end it.
    End(End),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// List this tenant alone.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    tenant: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Id of the session, like s-1099511627777.
    session: SessionId,
}

#[derive(Debug, Args)]
pub(crate) struct End {
    /// Id of the session, like s-1099511627777.
    session: SessionId,
    /// Kill the process if it does not unmap in time.
    #[arg(long)]
    kill: bool,
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    match verb {
        Verb::List(list) => {
            let sessions = admin.sessions(list.tenant.as_deref())?;
            let fields = json!({ "sessions": sessions.iter().map(to_json).collect::<Vec<_>>() });
            output.show(|| rows(&sessions), fields)
        }
        Verb::Show(Show { session }) => show(session, admin, output),
        Verb::End(end) => {
            let request =
                v1::EndSessionRequest { session_id: end.session.get(), kill: end.kill, ..Default::default() };
            let ended = admin.end_session(request)?;
            let state = state_name(ended.state());
            let text = match ended.still_mapped_bytes {
                0 => format!("{} is {state}", end.session),
                bytes => format!(
                    "{} is {state}, and still maps {}: process {}: {}",
                    end.session,
                    size(bytes),
                    ended.pid,
                    ended.silent_reason
                ),
            };
            let fields = json!({
                "session_id": end.session.to_string(),
                "state": state,
                "still_mapped_bytes": ended.still_mapped_bytes,
                "pid": ended.pid,
                "silent_reason": ended.silent_reason,
            });
            output.show(|| text, fields)
        }
    }
}

fn show(id: SessionId, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let sessions = admin.sessions(None)?;
    let Some(session) = sessions.iter().find(|session| session.session_id == id.get()) else {
        return Err(Failure::not_found(Reason::SessionNotFound, "session", &id));
    };
    let mut allocations = admin.allocations(Some(&session.tenant))?;
    allocations.retain(|allocation| allocation.owner_session_id == id.get());
    let fields = json!({
        "session": to_json(session),
        "allocations": allocations.iter().map(alloc::to_json).collect::<Vec<_>>(),
    });
    output.show(|| format!("{}\n\nALLOCATIONS\n{}", sheet(session), alloc::rows(&allocations)), fields)
}

fn sheet(session: &v1::Session) -> String {
    facts(&[
        ("session", SessionId::from_raw(session.session_id).to_string()),
        ("tenant", session.tenant.clone()),
        ("state", state_name(session.state()).to_owned()),
        ("why", text_or_dash(&session.silent_reason)),
        ("pid", session.pid.to_string()),
        ("uid", session.uid.to_string()),
        ("client", text_or_dash(&session.client_name)),
        ("mapped", size_or_dash(session.mapped_bytes)),
        ("in flight", format!("{} descriptors", session.fds_in_flight)),
        ("opened", session.opened_at.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)),
    ])
}

fn rows(sessions: &[v1::Session]) -> String {
    let columns = [
        Column::text("SESSION").key(),
        Column::text("TENANT"),
        Column::text("STATE"),
        Column::number("PID"),
        Column::number("UID").always(),
        Column::text("CLIENT"),
        Column::number("ALLOCATIONS"),
        Column::number("MAPPED"),
        Column::number("AGE"),
        Column::text("NOTE"),
    ];
    table(
        &columns,
        sessions.iter().map(|session| {
            vec![
                SessionId::from_raw(session.session_id).to_string(),
                session.tenant.clone(),
                state_name(session.state()).to_owned(),
                session.pid.to_string(),
                session.uid.to_string(),
                text_or_dash(&session.client_name),
                count_or_dash(session.allocation_count.into()),
                size_or_dash(session.mapped_bytes),
                age(session.opened_at.as_ref()),
                session.silent_reason.clone(),
            ]
        }),
    )
}

pub(super) fn to_json(session: &v1::Session) -> Value {
    json!({
        "session_id": SessionId::from_raw(session.session_id).to_string(),
        "tenant": session.tenant,
        "state": state_name(session.state()),
        "pid": session.pid,
        "uid": session.uid,
        "client_name": session.client_name,
        "allocation_count": session.allocation_count,
        "mapped_bytes": session.mapped_bytes,
        "fds_in_flight": session.fds_in_flight,
        "opened_at": session.opened_at.as_ref().map(ToString::to_string),
        "silent_reason": session.silent_reason,
    })
}

pub(super) fn state_name(state: v1::SessionState) -> &'static str {
    match state {
        v1::SessionState::Unspecified => "unknown",
        v1::SessionState::Live => "live",
        v1::SessionState::Silent => "silent",
        v1::SessionState::Gone => "gone",
    }
}
