//! What is told of one gRPC call: how long it took, how it ended, why it was refused, and its span.

use std::{collections::HashMap, sync::Arc, time::Instant};

use opentelemetry::{
    Context, KeyValue,
    metrics::Histogram,
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
    registry::{self, OTHER_METHOD},
};

/// Every method that the daemon serves, by its path, with what is said of a call of it.
#[derive(Debug)]
pub(super) struct Methods {
    by_path: HashMap<String, Arc<Method>>,
    other: Arc<Method>,
}

#[derive(Debug)]
struct Method {
    /// `package.Service/Method`.
    name: String,
    /// By status code, made once: a call only points to them.
    attributes: Vec<[KeyValue; 3]>,
}

impl Default for Methods {
    fn default() -> Self {
        let sets = [
            vramd_proto::DESCRIPTORS,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let names = sets.into_iter().flat_map(methods_of);
        let by_path = names.map(|name| (format!("/{name}"), Arc::new(Method::new(name)))).collect();
        Self { by_path, other: Arc::new(Method::new(OTHER_METHOD.to_owned())) }
    }
}

/// The methods that a set of descriptors has. One that cannot be read has none.
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
        let method: Arc<str> = Arc::from(name.as_str());
        let of = |code| {
            [
                KeyValue::new(registry::RPC_SYSTEM, "grpc"),
                KeyValue::new(registry::RPC_METHOD, Arc::clone(&method)),
                KeyValue::new(registry::RPC_CODE, code),
            ]
        };
        Self { name, attributes: StatusCode::NAMES.into_iter().map(of).collect() }
    }

    fn took(&self, histogram: &Histogram<f64>, began: Instant, code: Code) {
        if let Some(attributes) = self.attributes.get(code as usize) {
            histogram.record(began.elapsed().as_secs_f64(), attributes);
        }
    }
}

impl Methods {
    fn of(&self, path: &str) -> &Arc<Method> {
        self.by_path.get(path).unwrap_or(&self.other)
    }
}

/// A call under way. One that is dropped without an answer was given up by its caller.
#[derive(Debug)]
pub struct Call {
    shared: Arc<Shared>,
    method: Arc<Method>,
    began: Instant,
    span: Option<Context>,
    ended: bool,
}

impl Call {
    pub(super) fn begin(shared: &Arc<Shared>, path: &str, headers: &HeaderMap) -> Self {
        let method = Arc::clone(shared.methods.of(path));
        let span = shared.traces.as_ref().and_then(|traces| traces.call(headers, &method.name));
        Self { shared: Arc::clone(shared), method, began: Instant::now(), span, ended: false }
    }

    /// What its work is done in, if it is traced.
    pub fn context(&self) -> Option<&Context> {
        self.span.as_ref()
    }

    /// It was answered with these headers, which have the status of a refusal.
    pub fn answered(mut self, headers: &HeaderMap) {
        if !headers.contains_key(Status::GRPC_STATUS) {
            return self.end(Code::Ok, None);
        }
        let status = Status::from_header_map(headers);
        let code = status.as_ref().map_or(Code::Unknown, Status::code);
        let details = status.and_then(|status| status.get_details_error_info());
        let reason = details.and_then(|info| Reason::from_name(&info.reason));
        if let Some(reason) = reason {
            self.shared.counters.refused(Scope::Call, reason);
        }
        self.end(code, reason);
    }

    fn end(&mut self, code: Code, reason: Option<Reason>) {
        self.ended = true;
        self.method.took(&self.shared.histograms.rpc, self.began, code);
        let Some(context) = &self.span else { return };
        let span = context.span();
        span.set_attribute(KeyValue::new(registry::RPC_CODE, StatusCode::NAMES[code as usize]));
        if let Some(reason) = reason {
            span.set_attribute(KeyValue::new(registry::REFUSAL_REASON, reason.name()));
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
            assert_eq!(methods.of(&format!("/{name}")).name, name);
        }
        assert_eq!(methods.of("/vramd.v1.MemoryService/Guess").name, OTHER_METHOD);
        assert_eq!(methods.of("").name, OTHER_METHOD);
    }

    #[test]
    fn codes_have_the_names_of_the_registry() {
        for reason in Reason::ALL {
            assert_eq!(StatusCode::NAMES[reason.code() as usize], reason.code().name());
        }
    }
}
