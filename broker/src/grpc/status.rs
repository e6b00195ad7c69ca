//! The map from refusals to gRPC statuses. No other file makes statuses.
//!
//! The code and the reason come from the registry, the facts and the message from the refusal. The facts travel as
//! `ErrorInfo`, and once more as the standard detail that generic clients know. A status travels in HTTP/2 trailers,
//! which many clients bound at 8 KiB. So every text that a client chose is cut short here.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use broker_core::Refusal;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};
use vramd_proto::v1;
use vramd_types::{Reason, StatusCode};

use crate::config::ErrorLocation;

/// Maximum bytes of one fact, and of a message.
const FACT_BYTES_MAX: usize = 256;
const MESSAGE_BYTES_MAX: usize = 512;

/// When a retry makes sense. Room becomes free when other clients free theirs; a queue is quicker, a node slower.
const RETRY_ROOM: Duration = Duration::from_secs(1);
const RETRY_QUEUE: Duration = Duration::from_millis(100);
const RETRY_NODE: Duration = Duration::from_secs(10);

/// Converts the refusal of a whole call.
pub(super) fn refused(refusal: &Refusal) -> Status {
    let message = message(refusal);
    let mut details = ErrorDetails::new();
    details.set_error_info(refusal.reason().name(), Reason::DOMAIN, facts(refusal));
    add_standard_detail(&mut details, refusal, &message);
    Status::with_error_details(code(refusal.reason()), message, details)
}

/// Gives a client the same answer for a session of another process, a lost one, and one that never was. So an id tells
/// nothing about the sessions of others. The core's notices keep the difference for operators.
pub(super) fn without_other_sessions(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::SessionForeign { session, .. } | Refusal::SessionNotFound { session } => {
            Refusal::SessionLost { session }
        }
        other => other,
    }
}

/// Converts the refusal of one item of a batch.
pub(super) fn item_refused(refusal: &Refusal) -> v1::ItemError {
    v1::ItemError {
        code: code(refusal.reason()).into(),
        reason: refusal.reason().name().to_owned(),
        message: message(refusal),
        metadata: facts(refusal),
    }
}

/// Refuses a caller that the kernel does not identify.
pub(super) fn unidentified() -> Status {
    of_shell(
        Reason::PeerUnidentified,
        "the kernel does not identify the calling process, so no tenant can be charged",
        [],
    )
}

pub(super) fn not_operator(uid: u32) -> Status {
    of_shell(Reason::NotOperator, "the caller is not one of the operators", [("uid", uid.to_string())])
}

pub(super) fn operator_in_container(uid: u32) -> Status {
    of_shell(
        Reason::NotOperator,
        "the caller is in a pid namespace of its own, as in a container, so its uid makes it no operator. Call from the daemon's own pid namespace",
        [("uid", uid.to_string())],
    )
}

pub(super) fn too_many_watches(limit: usize) -> Status {
    let message = format!(
        "the node has its maximum of {limit} watches. End another watch, or raise limits.watches_max"
    );
    of_shell(Reason::WatchesTooMany, &message, [("limit_count", limit.to_string())])
}

pub(super) fn trace_running() -> Status {
    of_shell(Reason::TraceRunning, "a trace is being recorded. Stop it first (vramctl trace stop)", [])
}

pub(super) fn trace_not_found() -> Status {
    of_shell(Reason::TraceNotFound, "there is no trace. Record one (vramctl trace start)", [])
}

/// Refuses a bound of records that a trace cannot have.
pub(super) fn trace_bound(limit: usize) -> Status {
    let problem = format!("must be 1 to {limit} (limits.trace_records_max)");
    let message = format!("records_max {problem}");
    of_shell(Reason::RequestInvalid, &message, [("field", "records_max".to_owned()), ("problem", problem)])
}

/// Refuses a user whose connections, requests and answers take as much memory as they may.
pub(super) fn user_limit(uid: u32, bytes_max: usize) -> Status {
    let message = format!(
        "uid {uid} has {bytes_max} bytes of connections, requests and unread answers in the daemon at most. Wait for \
         answers, read them, or close connections; or raise limits.held_bytes_per_uid_max"
    );
    of_shell(Reason::UserLimit, &message, [("uid", uid.to_string()), ("limit", bytes_max.to_string())])
}

/// Refuses a request that did not arrive in time.
pub(super) fn request_unfinished(limit: Duration) -> Status {
    of_shell(Reason::Deadline, &format!("the request did not arrive as a whole within {limit:?}"), [])
}

pub(super) fn message_too_large(bytes: usize, bytes_max: usize) -> Status {
    let message = format!("the request has {bytes} bytes; this method takes {bytes_max} at most");
    invalid_message(&message, "is larger than the method's bound")
}

pub(super) fn more_than_one_message() -> Status {
    let problem = "is followed by further bytes";
    invalid_message(&format!("the message of the request {problem}"), problem)
}

/// Refuses a tenants file, with the place of the error.
pub(super) fn tenants_file_wrong(message: &str, location: &ErrorLocation) -> Status {
    let ErrorLocation { line, column, field, problem } = location;
    let field = cut(if field.is_empty() { "content" } else { field }, FACT_BYTES_MAX);
    let facts = [
        ("line", line.to_string()),
        ("column", column.to_string()),
        ("field", field.clone().into_owned()),
        ("problem", cut(problem, FACT_BYTES_MAX).into_owned()),
    ];
    let facts: HashMap<_, _> = facts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let (reason, message) = (Reason::TenantsFileInvalid, cut(message, MESSAGE_BYTES_MAX));
    let mut details = ErrorDetails::new();
    details.set_error_info(reason.name(), Reason::DOMAIN, facts);
    details.add_bad_request_violation(&*field, &*message);
    Status::with_error_details(code(reason), message, details)
}

/// Refuses a tenants file of which a part stays in force.
pub(super) fn half_restored(refusal: &Refusal, message: &str) -> Status {
    let mut details = ErrorDetails::new();
    details.set_error_info(refusal.reason().name(), Reason::DOMAIN, facts(refusal));
    Status::with_error_details(code(refusal.reason()), cut(message, MESSAGE_BYTES_MAX), details)
}

fn invalid_message(message: &str, problem: &str) -> Status {
    let facts = [("field", "message".to_owned()), ("problem", problem.to_owned())];
    of_shell(Reason::RequestInvalid, message, facts)
}

/// Refuses a call whose time is over. `waited` says what it waited for.
pub(super) fn deadline(method: &str, limit: Duration, waited: Option<&str>) -> Status {
    let method = if method.is_empty() { "the call" } else { method };
    let waited = waited.map(|waited| format!(": {waited}")).unwrap_or_default();
    let message = format!(
        "{method} had no answer within {limit:?}{waited}. A mutation may still complete; allow more time"
    );
    of_shell(Reason::Deadline, &cut(&message, MESSAGE_BYTES_MAX), [])
}

/// Refuses a call because the reactor has ended, so the daemon is about to end.
pub(super) fn stopping() -> Status {
    let problem = "the daemon is stopping";
    of_shell(Reason::BrokerGone, problem, [("problem", problem.to_owned())])
}

/// Reports that the broker answered a request with the reply to another.
pub(super) fn wrong_reply(method: &'static str, reply: &broker_core::Reply) -> Status {
    tracing::error!(method, ?reply, "the broker's reply does not match the request: this is a bug");
    refused(&Refusal::InvariantBroken { invariant: broker_core::invariants::OPS })
}

/// Makes the status of a refusal by the shell.
fn of_shell<const N: usize>(reason: Reason, message: &str, facts: [(&str, String); N]) -> Status {
    let facts: HashMap<_, _> = facts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let mut details = ErrorDetails::new();
    details.set_error_info(reason.name(), Reason::DOMAIN, facts);
    if reason.code() == StatusCode::Unavailable {
        details.set_retry_info(Some(RETRY_ROOM));
    }
    Status::with_error_details(code(reason), message, details)
}

/// Adds the standard detail that clients understand without knowing vramd.
fn add_standard_detail(details: &mut ErrorDetails, refusal: &Refusal, message: &str) {
    use Refusal as R;
    match refusal {
        R::SizeInvalid { field, .. }
        | R::NameInvalid { field, .. }
        | R::QuantityInvalid { field, .. }
        | R::SettingInvalid { field, .. }
        | R::RequestInvalid { field, .. } => {
            details.add_bad_request_violation(*field, message);
        }
        R::NameMissing | R::TenantMissing { .. } => {
            details.add_bad_request_violation("name", message);
        }
        R::PartSizeInvalid { .. } => {
            details.add_bad_request_violation("part_size_bytes", message);
        }
        R::FileInvalid { .. } => {
            details.add_bad_request_violation("fd", message);
        }
        R::DeviceUnknown { .. } => {
            details.add_bad_request_violation("device", message);
        }
        R::RequestIdReused { .. } => {
            details.add_bad_request_violation("request_id", message);
        }
        R::BatchTooLarge { .. } => {
            details.add_bad_request_violation("items", message);
        }
        R::AllocationNotFound { allocation } | R::NameElsewhere { name: allocation, .. } => {
            details.set_resource_info("vramd.v1.Allocation", cut(allocation, FACT_BYTES_MAX), "", message);
        }
        R::SessionNotFound { session } => {
            details.set_resource_info("vramd.v1.Session", session.to_string(), "", message);
        }
        R::QuotaNotFound { tenant, device } => {
            let name = format!("{tenant}/{device}");
            details.set_resource_info("vramd.v1.Quota", cut(&name, FACT_BYTES_MAX), "", message);
        }
        R::WaitNotFound { wait } => {
            details.set_resource_info("vramd.v1.Wait", wait.to_string(), "", message);
        }
        R::PrefetchNotFound { session, number } => {
            details.set_resource_info("vramd.v1.Prefetch", format!("{session}/{number}"), "", message);
        }
        R::TurnNotFound { session, set } => {
            let name = format!("{session}/{set}");
            details.set_resource_info("vramd.v1.Turn", cut(&name, FACT_BYTES_MAX), "", message);
        }
        R::BatchNotWaiting { request_id } => {
            let id: String = request_id.iter().map(|byte| format!("{byte:02x}")).collect();
            details.set_resource_info("vramd.v1.Wait", id, "", message);
        }
        R::NameTaken { name } => {
            details.set_resource_info("vramd.v1.Allocation", cut(name, FACT_BYTES_MAX), "", message);
        }
        R::NoRoom { why, .. } => add_standard_detail(details, why, message),
        R::QuotaLimit { tenant, .. }
        | R::SessionsTooMany { tenant, .. }
        | R::AllocationsTooMany { tenant, .. } => {
            details.add_quota_failure_violation(cut(&format!("tenant:{tenant}"), FACT_BYTES_MAX), message);
        }
        R::DeviceFull { .. } | R::TierExhausted { .. } | R::DriverFailed { .. } | R::StoreFailed { .. } => {
            details.set_retry_info(Some(RETRY_ROOM));
        }
        R::SlotsExhausted { session, .. } => {
            details.add_quota_failure_violation(format!("session:{session}"), message);
        }
        R::SetTooLarge { device, .. } => {
            details.add_quota_failure_violation(cut(&format!("device:{device}"), FACT_BYTES_MAX), message);
        }
        R::QueueFull { .. } => {
            details.set_retry_info(Some(RETRY_QUEUE));
        }
        R::Draining => {
            details.set_retry_info(Some(RETRY_NODE));
        }
        R::NotSealed { allocation }
        | R::AlreadySealed { allocation }
        | R::StillMapped { allocation }
        | R::MapFailed { allocation, .. }
        | R::AdviceContradicts { allocation, .. } => {
            unmet(details, refusal, &allocation.to_string(), message)
        }
        R::FileMutable { path, .. } => unmet(details, refusal, path, message),
        R::DeviceNotVisible { device } => unmet(details, refusal, device, message),
        R::SessionLost { session } | R::TurnHeld { session, .. } => {
            unmet(details, refusal, &session.to_string(), message)
        }
        R::TierGuaranteed { device, .. } => unmet(details, refusal, device, message),
        R::GuaranteeUnbacked { tenant, .. } => unmet(details, refusal, &format!("tenant:{tenant}"), message),
        R::SessionMissing | R::ProtocolBroken { .. } => unmet(details, refusal, "session", message),
        // All others say enough by their reason and their facts.
        _ => {}
    }
}

fn unmet(details: &mut ErrorDetails, refusal: &Refusal, subject: &str, message: &str) {
    let subject = cut(subject, FACT_BYTES_MAX);
    details.add_precondition_failure_violation(refusal.reason().name(), subject, message);
}

fn facts(refusal: &Refusal) -> HashMap<String, String> {
    let facts = refusal.facts();
    facts.into_iter().map(|(key, value)| (key.to_owned(), cut(&value, FACT_BYTES_MAX).into_owned())).collect()
}

fn message(refusal: &Refusal) -> String {
    cut(&refusal.to_string(), MESSAGE_BYTES_MAX).into_owned()
}

/// Cuts a text to at most `bytes_max` bytes, with a mark where it was cut.
fn cut(text: &str, bytes_max: usize) -> Cow<'_, str> {
    const MARK: &str = "…";
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    let room = bytes_max.saturating_sub(MARK.len());
    let end = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    Cow::Owned(format!("{}{MARK}", &text[..end]))
}

fn code(reason: Reason) -> Code {
    match reason.code() {
        StatusCode::InvalidArgument => Code::InvalidArgument,
        StatusCode::DeadlineExceeded => Code::DeadlineExceeded,
        StatusCode::NotFound => Code::NotFound,
        StatusCode::AlreadyExists => Code::AlreadyExists,
        StatusCode::PermissionDenied => Code::PermissionDenied,
        StatusCode::ResourceExhausted => Code::ResourceExhausted,
        StatusCode::FailedPrecondition => Code::FailedPrecondition,
        StatusCode::Aborted => Code::Aborted,
        StatusCode::Unimplemented => Code::Unimplemented,
        StatusCode::Internal => Code::Internal,
        StatusCode::Unavailable => Code::Unavailable,
        StatusCode::DataLoss => Code::DataLoss,
        StatusCode::Unauthenticated => Code::Unauthenticated,
    }
}

#[cfg(test)]
mod tests;
