//! Observes one gRPC call: its duration, its outcome, the reason of a refusal, and its span.

use std::{cmp::Ordering, sync::OnceLock, time::Instant};

use opentelemetry::{
    Context, ContextGuard, KeyValue,
    metrics::{BoundHistogram, Histogram},
    trace::{Status as SpanStatus, TraceContextExt as _},
};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic::{Code, Status, codegen::http::HeaderMap};
use tonic_types::StatusExt as _;
use vramd_types::{Reason, StatusCode};

use super::{
    Shared,
    counters::Scope,
    metrics::{self, OTHER_METHOD},
};

/// Every method that the daemon serves.
#[derive(Debug)]
pub(super) struct Methods {
    /// Sorted by the length of the name, which distinguishes nearly all methods, and then by the name.
    known: Vec<Method>,
    other: Method,
}

#[derive(Debug)]
pub(super) struct Method {
    /// `package.Service/Method`.
    pub(super) name: String,
    /// The histogram's series by status code, each bound at its first use.
    series: [OnceLock<BoundHistogram<f64>>; StatusCode::NAMES.len()],
}

impl Default for Methods {
    fn default() -> Self {
        let sets = [
            vramd_proto::DESCRIPTORS,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let mut known: Vec<_> = sets.into_iter().flat_map(methods_of).map(Method::new).collect();
        known.sort_by(|a, b| by_length(&a.name, &b.name));
        Self { known, other: Method::new(OTHER_METHOD.to_owned()) }
    }
}

/// Lists the methods of a set of descriptors. Descriptors that cannot be decoded have no methods.
fn methods_of(descriptors: &[u8]) -> Vec<String> {
    let set = FileDescriptorSet::decode(descriptors).unwrap_or_default();
    let mut names = Vec::new();
    for file in &set.file {
        for service in &file.service {
            let method = |method: &prost_types::MethodDescriptorProto| {
                format!("{}.{}/{}", file.package(), service.name(), method.name())
            };
            names.extend(service.method.iter().map(method));
        }
    }
    names
}

impl Method {
    fn new(name: String) -> Self {
        Self { name, series: Default::default() }
    }

    /// Records a duration. The histogram must be the same in all calls.
    pub(super) fn record(&self, histogram: &Histogram<f64>, code: Code, seconds: f64) {
        if let (Some(series), Some(code)) =
            (self.series.get(code as usize), StatusCode::NAMES.get(code as usize))
        {
            let find = || {
                histogram.bind(&[
                    KeyValue::new(metrics::RPC_SYSTEM, "grpc"),
                    KeyValue::new(metrics::RPC_METHOD, self.name.clone()),
                    KeyValue::new(metrics::RPC_CODE, *code),
                ])
            };
            series.get_or_init(find).record(seconds);
        }
    }
}

fn by_length(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

impl Methods {
    pub(super) fn find(&self, path: &str) -> &Method {
        let name = path.strip_prefix('/').unwrap_or_default();
        let found = self.known.binary_search_by(|method| by_length(&method.name, name));
        found.ok().and_then(|index| self.known.get(index)).unwrap_or(&self.other)
    }
}

/// A gRPC call in progress. If it is dropped without an answer, its caller has given it up.
#[derive(Debug)]
pub struct Call {
    shared: &'static Shared,
    method: &'static Method,
    began: Instant,
    span: Option<Context>,
    ended: bool,
}

impl Call {
    pub(super) fn begin(shared: &'static Shared, path: &str, headers: &HeaderMap) -> Self {
        let method = shared.methods.find(path);
        let span = shared.traces.as_ref().and_then(|traces| traces.begin_call(headers, &method.name));
        Self { shared, method, began: Instant::now(), span, ended: false }
    }

    /// Makes the call's span, if it has one, the current one of this thread until the guard is dropped.
    pub fn enter(&self) -> Option<ContextGuard> {
        self.span.clone().map(Context::attach)
    }

    /// Ends the call with these response headers, which carry the status of a refusal.
    pub fn answered(mut self, headers: &HeaderMap) {
        if !headers.contains_key(Status::GRPC_STATUS) {
            return self.end(Code::Ok, None);
        }
        let status = Status::from_header_map(headers);
        let code = status.as_ref().map_or(Code::Unknown, Status::code);
        let details = status.and_then(|status| status.get_details_error_info());
        let reason = details.and_then(|info| Reason::from_name(&info.reason));
        if let Some(reason) = reason {
            self.shared.counters.count_refusal(Scope::Call, reason);
        }
        self.end(code, reason);
    }

    fn end(&mut self, code: Code, reason: Option<Reason>) {
        self.ended = true;
        let took = self.began.elapsed();
        self.shared.metrics.calls.record(self.method, code, took);
        let Some(context) = &self.span else { return };
        let span = context.span();
        let values = ["grpc", &self.method.name, StatusCode::NAMES[code as usize]];
        let exemplars = &self.shared.metrics.exemplars;
        exemplars.record(&metrics::RPC_DURATION, &values, took.as_secs_f64(), span.span_context());
        span.set_attribute(KeyValue::new(metrics::RPC_CODE, StatusCode::NAMES[code as usize]));
        if let Some(reason) = reason {
            span.set_attribute(KeyValue::new(metrics::REFUSAL_REASON, reason.name()));
        }
        if code != Code::Ok {
            span.set_status(SpanStatus::error(StatusCode::NAMES[code as usize]));
        }
        span.end();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            self.end(Code::Cancelled, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_methods_are_known_by_their_paths() {
        let methods = Methods::default();
        for name in [
            "vramd.v1.MemoryService/AllocateBatch",
            "vramd.v1.AdminService/SetQuota",
            "grpc.health.v1.Health/Check",
        ] {
            assert_eq!(methods.find(&format!("/{name}")).name, name);
        }
        assert_eq!(methods.find("/vramd.v1.MemoryService/Guess").name, OTHER_METHOD);
        assert_eq!(methods.find("").name, OTHER_METHOD);
    }

    #[test]
    fn codes_have_the_names_of_the_registry() {
        for reason in Reason::ALL {
            assert_eq!(StatusCode::NAMES[reason.code() as usize], reason.code().name());
        }
    }
}
