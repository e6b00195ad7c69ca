//! From the wire to [`Error`]: gRPC statuses, items of a batch, and refusals on the channel carry the same refusal in
//! three shapes.

use std::{collections::BTreeMap, error::Error as _, time::Duration};

use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use vramd_proto::v1;
use vramd_types::{Reason, StatusCode};

use crate::error::{Error, Refusal};

/// Whether the status was made on this side, because no daemon was reached.
pub(crate) fn is_transport(status: &Status) -> bool {
    status.get_details_error_info().is_none()
        && (status.code() == Code::Unavailable || (status.source().is_some() && !is_deadline(status)))
}

/// tonic returns CANCELLED if its own timer fires before the daemon's.
fn is_deadline(status: &Status) -> bool {
    status.code() == Code::DeadlineExceeded
        || (status.code() == Code::Cancelled && status.message() == "Timeout expired")
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        if is_transport(&status) {
            return Self::broker_gone(root_cause(&status));
        }
        let Some(info) = status.get_details_error_info() else {
            return if is_deadline(&status) {
                Self::deadline()
            } else {
                Self::Unknown {
                    code: status.code().into(),
                    reason: String::new(),
                    message: status.message().to_owned(),
                }
            };
        };
        let retry_after = status.get_details_retry_info().and_then(|retry| retry.retry_delay);
        from_parts(
            status.code().into(),
            &info.reason,
            status.message(),
            info.metadata.into_iter().collect(),
            retry_after,
        )
    }
}

impl From<v1::ItemError> for Error {
    fn from(item: v1::ItemError) -> Self {
        from_parts(item.code, &item.reason, &item.message, item.metadata.into_iter().collect(), None)
    }
}

impl From<v1::Refused> for Error {
    fn from(refused: v1::Refused) -> Self {
        let facts = refused.metadata.into_iter().collect();
        from_parts(refused.code, &refused.reason, &refused.message, facts, None)
    }
}

fn from_parts(
    code: i32,
    reason: &str,
    message: &str,
    facts: BTreeMap<String, String>,
    retry_after: Option<Duration>,
) -> Error {
    match Reason::from_name(reason) {
        Some(reason) => {
            Error::from_refusal(Refusal { reason, message: message.to_owned(), facts, retry_after })
        }
        None if code == StatusCode::DeadlineExceeded as i32 => Error::from_refusal(Refusal {
            reason: Reason::Deadline,
            message: message.to_owned(),
            facts,
            retry_after,
        }),
        None => Error::Unknown { code, reason: reason.to_owned(), message: message.to_owned() },
    }
}

/// The innermost error: `transport error` alone explains nothing.
fn root_cause(status: &Status) -> String {
    let mut cause: &dyn std::error::Error = status;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if status.source().is_some() { cause.to_string() } else { status.message().to_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::ErrorDetails;

    use super::*;

    fn facts(reason: Reason) -> HashMap<String, String> {
        reason.facts().iter().enumerate().map(|(at, key)| ((*key).to_owned(), (at + 7).to_string())).collect()
    }

    fn status(reason: Reason, facts: HashMap<String, String>) -> Status {
        let details = ErrorDetails::with_error_info(reason.name(), Reason::DOMAIN, facts);
        Status::with_error_details(Code::from(reason.code() as i32), "said so", details)
    }

    #[test]
    fn every_reason_comes_back_with_its_code_and_facts() {
        for reason in Reason::ALL.iter().copied() {
            let error = Error::from(status(reason, facts(reason)));
            assert_eq!(error.reason(), Some(reason));
            assert_eq!(error.code(), Some(reason.code()), "{reason}");
            assert_eq!(error.facts(), facts(reason).into_iter().collect(), "{reason}");
            assert_eq!(error.to_string(), "said so", "{reason}");

            let item = v1::ItemError {
                code: reason.code() as i32,
                reason: reason.name().to_owned(),
                message: "said so".to_owned(),
                metadata: facts(reason),
            };
            assert_eq!(Error::from(item), error, "{reason}");
        }
    }

    #[test]
    fn missing_facts_lose_no_reason() {
        for reason in Reason::ALL.iter().copied() {
            assert_eq!(Error::from(status(reason, HashMap::new())).reason(), Some(reason));
        }
    }

    #[test]
    fn unknown_reason_keeps_its_message() {
        let details = ErrorDetails::with_error_info("NEWER_THAN_THIS", Reason::DOMAIN, HashMap::new());
        let error = Error::from(Status::with_error_details(Code::Aborted, "later", details));
        assert_eq!(
            error,
            Error::Unknown { code: 10, reason: "NEWER_THAN_THIS".into(), message: "later".into() }
        );
        assert_eq!(Error::from(Status::cancelled("Timeout expired")), Error::deadline());
        assert_eq!(Error::from(Status::deadline_exceeded("")), Error::deadline());
        assert_eq!(Error::from(Status::unavailable("no")), Error::broker_gone("no"));
    }
}
