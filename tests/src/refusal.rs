//! Refusals of the daemon, checked against the registry of reasons.

use std::collections::{BTreeMap, BTreeSet};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};
use vramd_types::Reason;

/// One refusal, from a gRPC status, an item of a batch, or a frame on the channel.
#[derive(Clone, Debug)]
pub struct Refused {
    pub code: Code,
    pub reason: String,
    pub message: String,
    pub facts: BTreeMap<String, String>,
    /// Only a gRPC status has them. Boxed, since they are large and an error is moved.
    details: Option<Box<ErrorDetails>>,
}

impl Refused {
    pub fn from_status(status: &Status) -> Self {
        let details = status.get_error_details();
        let (reason, facts) = match details.error_info() {
            Some(info) if info.domain == Reason::DOMAIN => {
                (info.reason.clone(), info.metadata.clone().into_iter().collect())
            }
            _ => Default::default(),
        };
        Self {
            code: status.code(),
            reason,
            message: status.message().to_owned(),
            facts,
            details: Some(Box::new(details)),
        }
    }

    pub fn from_item(error: vramd_proto::v1::ItemError) -> Self {
        let facts = error.metadata.into_iter().collect();
        Self { code: error.code.into(), reason: error.reason, message: error.message, facts, details: None }
    }

    pub fn from_frame(refused: vramd_proto::v1::Refused) -> Self {
        let facts = refused.metadata.into_iter().collect();
        Self {
            code: refused.code.into(),
            reason: refused.reason,
            message: refused.message,
            facts,
            details: None,
        }
    }

    /// Checks the reason, and the code, facts and standard details that belong to it.
    #[track_caller]
    pub fn is(&self, reason: Reason) -> &Self {
        assert_eq!(self.reason, reason.name(), "{self:?}");
        assert_eq!(i32::from(self.code), reason.code() as i32, "{self:?}");
        let keys: BTreeSet<&str> = self.facts.keys().map(String::as_str).collect();
        assert_eq!(keys, reason.facts().iter().copied().collect(), "{self:?}");
        assert!(!self.message.is_empty(), "{self:?}");
        if let Some(details) = &self.details {
            self.has_standard_details(details, reason);
        }
        self
    }

    /// One of its facts.
    #[track_caller]
    pub fn fact(&self, key: &str) -> &str {
        self.facts.get(key).unwrap_or_else(|| panic!("no `{key}` in {self:?}"))
    }

    /// One of its facts, as a number.
    #[track_caller]
    pub fn number(&self, key: &str) -> u64 {
        self.fact(key).parse().unwrap_or_else(|_| panic!("`{key}` is no number in {self:?}"))
    }

    #[track_caller]
    fn has_standard_details(&self, details: &ErrorDetails, reason: Reason) {
        match (self.code, reason) {
            (Code::InvalidArgument, _) => {
                let request = details.bad_request().unwrap_or_else(|| panic!("no BadRequest in {self:?}"));
                let violation = request.field_violations.first().expect("a bad request has a bad field");
                assert!(!violation.field.is_empty() && !violation.description.is_empty(), "{self:?}");
                if let Some(field) = self.facts.get("field") {
                    assert_eq!(&violation.field, field);
                }
            }
            (Code::NotFound | Code::AlreadyExists, _) => {
                let resource =
                    details.resource_info().unwrap_or_else(|| panic!("no ResourceInfo in {self:?}"));
                assert!(!resource.resource_type.is_empty() && !resource.resource_name.is_empty(), "{self:?}");
            }
            (Code::ResourceExhausted, Reason::QuotaLimit) => {
                let quota = details.quota_failure().unwrap_or_else(|| panic!("no QuotaFailure in {self:?}"));
                let violation = quota.violations.first().expect("a quota failure has a violation");
                assert_eq!(violation.subject, format!("tenant:{}", self.fact("tenant")));
            }
            (Code::ResourceExhausted, Reason::DeviceFull | Reason::QueueFull) | (Code::Unavailable, _) => {
                assert!(details.retry_info().is_some(), "no RetryInfo in {self:?}");
            }
            (Code::FailedPrecondition, _) => {
                assert!(details.precondition_failure().is_some(), "no PreconditionFailure in {self:?}");
            }
            _ => {}
        }
    }
}
