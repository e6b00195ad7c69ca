//! Traces: calls carry the trace of the calling thread, as W3C's `traceparent`.
//!
//! That is OpenTelemetry's current context; `tracing-opentelemetry` keeps it current inside its spans. A program that
//! has only the header, perhaps from a request of its own, enters it with [`enter_trace`].

use opentelemetry::{
    Context, ContextGuard,
    trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};
use thiserror::Error;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use vramd_proto::v1;

/// The text is not a W3C `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a traceparent like 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
pub struct TraceparentInvalid(String);

/// Keeps the thread in a trace until it is dropped.
#[derive(Debug)]
pub struct TraceGuard {
    _context: ContextGuard,
}

/// Enters the trace of a `traceparent`: this thread's calls belong to it until the guard is dropped.
pub fn enter_trace(traceparent: &str) -> Result<TraceGuard, TraceparentInvalid> {
    let span =
        parse(traceparent).ok_or_else(|| TraceparentInvalid(traceparent.escape_default().to_string()))?;
    let context = Context::current().with_remote_span_context(span).attach();
    Ok(TraceGuard { _context: context })
}

/// Wraps work so that another thread does it in this thread's trace.
pub(crate) fn in_this_trace<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let context = Context::current();
    move || {
        let _entered = context.attach();
        work()
    }
}

/// The headers of a call. Empty outside of any trace.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceHeaders {
    parent: Option<AsciiMetadataValue>,
    state: Option<AsciiMetadataValue>,
}

impl TraceHeaders {
    /// Takes the trace of the calling thread; another thread may send the call.
    pub(crate) fn of_caller() -> Self {
        Context::map_current(|context| {
            let span = context.span();
            let span = span.span_context();
            if !span.is_valid() {
                return Self::default();
            }
            let state = span.trace_state().header();
            Self {
                parent: format(span).try_into().ok(),
                state: (!state.is_empty()).then(|| state.try_into().ok()).flatten(),
            }
        })
    }

    pub(crate) fn put_into(&self, metadata: &mut MetadataMap) {
        if let Some(parent) = &self.parent {
            metadata.insert("traceparent", parent.clone());
        }
        if let Some(state) = &self.state {
            metadata.insert("tracestate", state.clone());
        }
    }

    /// The message for a frame of the channel, which has no headers.
    pub(crate) fn into_message(self) -> Option<v1::TraceContext> {
        let text = |value: AsciiMetadataValue| value.to_str().map(str::to_owned).unwrap_or_default();
        let traceparent = text(self.parent?);
        Some(v1::TraceContext { traceparent, tracestate: self.state.map(text).unwrap_or_default() })
    }
}

fn format(span: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags() & TraceFlags::SAMPLED)
}

/// Later versions may append fields; the leading ones keep their meaning.
fn parse(text: &str) -> Option<SpanContext> {
    let mut fields = text.split('-');
    let mut field = |digits: usize| {
        let field = fields.next().filter(|field| field.len() == digits)?;
        field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some(field)
    };
    let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
    if version == "ff" || (version == "00" && fields.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let span = SpanContext::new(trace, span, flags, true, TraceState::default());
    span.is_valid().then_some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn sent() -> Option<String> {
        let mut metadata = MetadataMap::new();
        TraceHeaders::of_caller().put_into(&mut metadata);
        metadata.get("traceparent").map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn entered_trace_is_sent_until_its_guard_drops() {
        assert_eq!(sent(), None);
        {
            let _trace = enter_trace(PARENT).unwrap();
            assert_eq!(sent().as_deref(), Some(PARENT));
            let message = TraceHeaders::of_caller().into_message().unwrap();
            assert_eq!((message.traceparent.as_str(), message.tracestate.as_str()), (PARENT, ""));
            let unsampled = PARENT.replace("-01", "-00");
            let inner = enter_trace(&unsampled).unwrap();
            assert_eq!(sent(), Some(unsampled));
            drop(inner);
            assert_eq!(sent().as_deref(), Some(PARENT));
            assert_eq!(std::thread::spawn(sent).join().unwrap(), None, "another thread is in no trace");
        }
        assert_eq!(sent(), None);
        assert_eq!(TraceHeaders::of_caller().into_message(), None);
    }

    #[test]
    fn only_the_w3c_form_is_accepted() {
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c8031\u{e9}c-b7ad6b7169203331-01",
        ] {
            let error = enter_trace(bad).map(drop).expect_err(bad);
            assert!(error.to_string().contains("is not a traceparent"), "{error}");
        }
        assert!(parse("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more").is_some());
    }
}
