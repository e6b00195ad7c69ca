//! Arguments: from Python's objects to the SDK's types.

use std::{ops::Range, time::Duration};

use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyRange, PyRangeMethods as _},
};
use vramd_client::{AccessPattern, Advice, AllocationId, Bytes, MemoryClass, Preset, Reason, Target, Tier};
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
        Err(Fault::invalid("parts", &problem).into())
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

/// The values that go with advice, each with one kind of it.
#[derive(Default)]
pub(crate) struct AdviceValues<'a> {
    pub(crate) importance_percent: Option<u8>,
    pub(crate) memory_class: Option<&'a str>,
    pub(crate) needed_within: Option<f64>,
    pub(crate) location: Option<&'a str>,
    pub(crate) pattern: Option<&'a str>,
    pub(crate) preset: Option<&'a str>,
}

/// The advice that a text names, or a preset.
pub(crate) fn advice(advice: Option<&str>, values: &AdviceValues<'_>) -> PyResult<Advice> {
    let takes = advice_value(advice)?;
    let given = [
        ("importance_percent", values.importance_percent.is_some()),
        ("memory_class", values.memory_class.is_some()),
        ("needed_within", values.needed_within.is_some()),
        ("location", values.location.is_some()),
        ("pattern", values.pattern.is_some()),
        ("preset", values.preset.is_some()),
    ];
    let advice = advice.unwrap_or("preset");
    for (name, is_given) in given {
        if is_given != (takes == Some(name)) {
            let takes =
                takes.map_or_else(|| "no value".to_owned(), |name| format!("{name} and no other value"));
            return Err(PyValueError::new_err(format!(
                "`{advice}` takes {takes}: {name} is wrong or missing"
            )));
        }
    }
    if let Some(percent) = values.importance_percent {
        return Ok(Advice::SetImportance(percent));
    }
    if let Some(class) = values.memory_class {
        return Ok(Advice::SetClass(memory_class(class)?));
    }
    if let Some(seconds) = values.needed_within {
        let within = Duration::try_from_secs_f64(seconds).map_err(|_| {
            PyValueError::new_err(format!("needed_within is a time in seconds, not {seconds}"))
        })?;
        return Ok(Advice::WillNeed(within));
    }
    if let Some(tier) = values.location {
        return Ok(Advice::SetLocation(self::tier("location", tier)?));
    }
    if let Some(name) = values.pattern {
        return Ok(Advice::SetPattern(pattern(name)?));
    }
    if let Some(name) = values.preset {
        return Ok(Advice::Preset(preset(name)?));
    }
    Ok(match advice {
        "set_accessed_by" => Advice::SetAccessedBy,
        "unset_accessed_by" => Advice::UnsetAccessedBy,
        "do_not_need" => Advice::DoNotNeed,
        "need" => Advice::Need,
        "unset_importance" => Advice::UnsetImportance,
        "unset_class" => Advice::UnsetClass,
        "unset_location" => Advice::UnsetLocation,
        "set_read_mostly" => Advice::SetReadMostly,
        "unset_read_mostly" => Advice::UnsetReadMostly,
        _ => Advice::UnsetPattern,
    })
}

/// The argument that has the value of such advice, if it takes one.
fn advice_value(advice: Option<&str>) -> PyResult<Option<&'static str>> {
    Ok(match advice {
        None => Some("preset"),
        Some("set_importance") => Some("importance_percent"),
        Some("set_class") => Some("memory_class"),
        Some("will_need") => Some("needed_within"),
        Some("set_location") => Some("location"),
        Some("set_pattern") => Some("pattern"),
        Some(
            "set_accessed_by" | "unset_accessed_by" | "do_not_need" | "need" | "unset_importance"
            | "unset_class" | "unset_location" | "set_read_mostly" | "unset_read_mostly" | "unset_pattern",
        ) => None,
        Some(other) => {
            return Err(PyValueError::new_err(format!(
                "advice is `do_not_need`, `need`, `will_need`, or `set_` or `unset_` with `accessed_by`, `importance`, \
                 `class`, `location`, `read_mostly` or `pattern`, not `{other}`"
            )));
        }
    })
}

/// A tier, in the argument of this name.
pub(crate) fn tier(name: &str, tier: &str) -> PyResult<Tier> {
    match tier {
        "device" => Ok(Tier::Device),
        "host" => Ok(Tier::Host),
        "disk" => Ok(Tier::Disk),
        other => Err(PyValueError::new_err(format!("{name} is `device`, `host` or `disk`, not `{other}`"))),
    }
}

fn pattern(pattern: &str) -> PyResult<AccessPattern> {
    match pattern {
        "sequential" => Ok(AccessPattern::Sequential),
        "strided" => Ok(AccessPattern::Strided),
        "window" => Ok(AccessPattern::Window),
        "loop" => Ok(AccessPattern::Loop),
        "random" => Ok(AccessPattern::Random),
        "sparse" => Ok(AccessPattern::Sparse),
        other => {
            let message = format!(
                "pattern is `sequential`, `strided`, `window`, `loop`, `random` or `sparse`, not `{other}`"
            );
            Err(PyValueError::new_err(message))
        }
    }
}

fn preset(preset: &str) -> PyResult<Preset> {
    match preset {
        "weights" => Ok(Preset::Weights),
        "kv_cache" => Ok(Preset::KvCache),
        "activations" => Ok(Preset::Activations),
        "staging" => Ok(Preset::Staging),
        other => {
            let message =
                format!("preset is `weights`, `kv_cache`, `activations` or `staging`, not `{other}`");
            Err(PyValueError::new_err(message))
        }
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
