//! From the SDK's errors to the classes of `vramd.errors`.

use std::{collections::BTreeMap, fmt::Display, io::ErrorKind, time::Duration};

use pyo3::{exceptions::PyInterruptedError, prelude::*, sync::PyOnceLock};
use vramd_client::{Error, Reason, StatusCode};

/// An error on its way to Python. Boxed, so that successful results do not carry its size.
#[derive(Debug)]
pub(crate) struct Fault(Box<Kind>);

#[derive(Debug)]
enum Kind {
    Error(Details),
    /// An exception of Python's own.
    Raised(PyErr),
}

/// The arguments of `vramd.errors.of`, which makes the exception.
#[derive(Debug)]
struct Details {
    /// The class, if it says more than the reason.
    class: Option<&'static str>,
    reason: Option<String>,
    code: Option<String>,
    message: String,
    facts: BTreeMap<String, String>,
    retry_after: Option<Duration>,
}

impl Fault {
    /// An error of this package alone, which has no reason in the registry.
    pub(crate) fn own(class: &'static str, message: impl Display) -> Self {
        Details {
            class: Some(class),
            reason: None,
            code: None,
            message: message.to_string(),
            facts: BTreeMap::new(),
            retry_after: None,
        }
        .into()
    }

    /// A refusal of this package alone that has no class of its own.
    pub(crate) fn unfitting(message: impl Display) -> Self {
        Details {
            class: None,
            reason: None,
            code: Some(StatusCode::FailedPrecondition.name().to_owned()),
            message: message.to_string(),
            facts: BTreeMap::new(),
            retry_after: None,
        }
        .into()
    }

    /// A refusal that the package makes itself.
    pub(crate) fn refused(reason: Reason, message: impl Display, facts: &[(&str, &dyn Display)]) -> Self {
        Self::named(reason.name(), reason.code(), message, facts)
    }

    /// The same for an argument that is no value of its field.
    pub(crate) fn invalid(field: &str, problem: &str) -> Self {
        Self::refused(Reason::RequestInvalid, problem, &[("field", &field), ("problem", &problem)])
    }

    fn named(reason: &str, code: StatusCode, message: impl Display, facts: &[(&str, &dyn Display)]) -> Self {
        Details {
            class: None,
            reason: Some(reason.to_owned()),
            code: Some(code.name().to_owned()),
            message: message.to_string(),
            facts: facts.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect(),
            retry_after: None,
        }
        .into()
    }

    pub(crate) fn raised(error: PyErr) -> Self {
        Self(Box::new(Kind::Raised(error)))
    }

    pub(crate) fn with_class(mut self, class: &'static str) -> Self {
        if let Kind::Error(details) = &mut *self.0 {
            details.class = Some(class);
        }
        self
    }
}

impl From<Details> for Fault {
    fn from(details: Details) -> Self {
        Self(Box::new(Kind::Error(details)))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        // By an `Interrupt`; the exception of a signal's handler goes before it (`interrupt.rs`).
        if error == Error::Interrupted {
            return Self::raised(PyInterruptedError::new_err("the call was interrupted"));
        }
        let class = match &error {
            Error::DeviceMemory { .. } => Some("DeviceMemory"),
            Error::NotMapped { .. } => Some("NotMapped"),
            Error::Away => Some("Away"),
            Error::CopyFailed { .. } => Some("CopyFailed"),
            Error::Forked { .. } => Some("Forked"),
            Error::FileUnreadable { kind: ErrorKind::NotFound, .. } => Some("FileMissing"),
            _ => None,
        };
        let (mut reason, mut code) = match error.reason() {
            Some(reason) => (Some(reason.name().to_owned()), Some(reason.code().name().to_owned())),
            None => (None, None),
        };
        if let Error::Unknown { code: number, reason: name, .. } = &error {
            reason = Some(name.clone()).filter(|name| !name.is_empty());
            code = Some(code_name(*number));
        }
        let (message, facts, retry_after) = (error.to_string(), error.facts(), error.retry_after());
        Details { class, reason, code, message, facts, retry_after }.into()
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> Self {
        match *fault.0 {
            Kind::Error(details) => {
                Python::attach(|py| exception(py, &details).map_or_else(|error| error, Self::from_value))
            }
            Kind::Raised(error) => error,
        }
    }
}

fn exception<'py>(py: Python<'py>, details: &Details) -> PyResult<Bound<'py, PyAny>> {
    static OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let of = OF.get_or_try_init(py, || {
        py.import("vramd.errors").and_then(|errors| errors.getattr("of")).map(Bound::unbind)
    })?;
    let retry_after = details.retry_after.map(|wait| wait.as_secs_f64());
    of.bind(py).call1((
        details.class,
        details.reason.as_deref(),
        details.code.as_deref(),
        &details.message,
        details.facts.clone(),
        retry_after,
    ))
}

/// gRPC's name of a code, also of one that vramd never sends.
fn code_name(number: i32) -> String {
    let name = usize::try_from(number).ok().and_then(|number| StatusCode::NAMES.get(number));
    name.map_or_else(|| number.to_string(), |name| (*name).to_owned())
}
