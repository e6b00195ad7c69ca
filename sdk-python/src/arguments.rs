//! Arguments: from Python's objects to the SDK's types.

use std::{fmt::Display, ops::Range, time::Duration};

use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyRange, PyRangeMethods as _},
};
use vramd_client::{Advice, AllocationId, Bytes, MemoryClass, Reason, Target};
use vramd_types::Quantity;

use crate::error::Fault;

/// The largest timeout.
const TIMEOUT_SECONDS_MAX: f64 = 1e9;

/// `24 << 30` or `"24GiB"`.
#[derive(Clone, Debug)]
pub(crate) struct Size(pub(crate) Bytes);

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.extract::<String>() {
            let refused = |error| {
                Fault::refused(Reason::QuantityInvalid, error, &[("field", &"size"), ("quantity", &text)])
            };
            return Ok(Self(Quantity::parse_bytes(&text).map_err(refused)?));
        }
        let number = object.call_method0("__index__").map_err(|_| {
            pyo3::exceptions::PyTypeError::new_err("a size is a number of bytes, or a text like \"24GiB\"")
        })?;
        let refused = |_| {
            let message = format!("{number} is not a size in bytes");
            Fault::refused(Reason::SizeInvalid, message, &[("field", &"size"), ("size", &number)])
        };
        Ok(Self(Bytes::new(number.extract().map_err(refused)?)))
    }
}

/// `range(2, 4)`: parts of an allocation, by their numbers.
#[derive(Clone, Debug)]
pub(crate) struct Parts(pub(crate) Range<u32>);

impl<'py> FromPyObject<'_, 'py> for Parts {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let range = object.cast::<PyRange>()?;
        let (start, stop) = (u32::try_from(range.start()?), u32::try_from(range.stop()?));
        if let (Ok(start), Ok(stop), 1) = (start, stop, range.step()?) {
            return Ok(Self(start..stop));
        }
        let problem = format!("{} is not a range of consecutive parts", object.repr()?);
        let facts: [(&str, &dyn Display); 2] = [("field", &"parts"), ("problem", &problem)];
        Err(Fault::refused(Reason::RequestInvalid, &problem, &facts).into())
    }
}

/// A device: by its UUID, or by its index as a number or a text.
#[derive(Clone, Debug)]
pub(crate) struct DeviceName(pub(crate) String);

impl<'py> FromPyObject<'_, 'py> for DeviceName {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.extract::<String>() {
            return Ok(Self(text));
        }
        let index = object.call_method0("__index__").map_err(|_| {
            pyo3::exceptions::PyTypeError::new_err("a device is a UUID, or an index like 0 or \"0\"")
        })?;
        Ok(Self(index.str()?.to_string()))
    }
}

/// An existing allocation: by `name`, by `tenant/name`, or by its number.
#[derive(Debug, FromPyObject)]
pub(crate) enum Name {
    #[pyo3(annotation = "str")]
    Text(String),
    #[pyo3(annotation = "int")]
    Id(u64),
}

impl From<Name> for Target {
    fn from(name: Name) -> Self {
        match name {
            Name::Text(name) => Self::Name(name),
            Name::Id(id) => Self::Id(AllocationId::from_raw(id)),
        }
    }
}

pub(crate) fn timeout(seconds: f64) -> PyResult<Duration> {
    if seconds > 0.0 && seconds <= TIMEOUT_SECONDS_MAX {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        let message =
            format!("a timeout is above 0 and at most {TIMEOUT_SECONDS_MAX} seconds, not {seconds}");
        Err(PyValueError::new_err(message))
    }
}

/// A wait in seconds, which may be zero.
pub(crate) fn wait(seconds: f64) -> PyResult<Duration> {
    if seconds == 0.0 {
        return Ok(Duration::ZERO);
    }
    timeout(seconds).map_err(|_| {
        let message =
            format!("a wait is at least 0 and at most {TIMEOUT_SECONDS_MAX} seconds, not {seconds}");
        PyValueError::new_err(message)
    })
}

/// Whether the lifetime is persistent.
pub(crate) fn is_persistent(lifetime: &str) -> PyResult<bool> {
    match lifetime {
        "session" => Ok(false),
        "persistent" => Ok(true),
        other => {
            let message = format!("a lifetime is `session` or `persistent`, not `{other}`");
            Err(PyValueError::new_err(message))
        }
    }
}

/// The advice that a text names.
pub(crate) fn advice(advice: &str, importance_percent: Option<u8>, class: Option<&str>) -> PyResult<Advice> {
    let wrong = |message: String| Err(PyValueError::new_err(message));
    let found = match (advice, importance_percent, class) {
        ("set_importance", Some(percent), None) => return Ok(Advice::SetImportance(percent)),
        ("set_importance", ..) => {
            return wrong("set_importance takes importance_percent and nothing else".into());
        }
        ("set_class", None, Some(class)) => return Ok(Advice::SetClass(memory_class(class)?)),
        ("set_class", ..) => return wrong("set_class takes memory_class and nothing else".into()),
        ("set_accessed_by", ..) => Advice::SetAccessedBy,
        ("unset_accessed_by", ..) => Advice::UnsetAccessedBy,
        ("do_not_need", ..) => Advice::DoNotNeed,
        ("need", ..) => Advice::Need,
        ("unset_importance", ..) => Advice::UnsetImportance,
        ("unset_class", ..) => Advice::UnsetClass,
        (other, ..) => {
            return wrong(format!(
                "advice is `do_not_need`, `need`, or `set_` or `unset_` with `accessed_by`, `importance` or `class`, \
                 not `{other}`"
            ));
        }
    };
    match (importance_percent, class) {
        (None, None) => Ok(found),
        _ => wrong(format!("`{advice}` takes neither importance_percent nor memory_class")),
    }
}

fn memory_class(class: &str) -> PyResult<MemoryClass> {
    match class {
        "scratch" => Ok(MemoryClass::Scratch),
        "weights" => Ok(MemoryClass::Weights),
        "activations" => Ok(MemoryClass::Activations),
        "cache" => Ok(MemoryClass::Cache),
        other => {
            let message =
                format!("memory_class is `scratch`, `weights`, `activations` or `cache`, not `{other}`");
            Err(PyValueError::new_err(message))
        }
    }
}
