//! `vramd.Prefetch`: memory that was asked for ahead of its use.

use std::{ops::Range, process, sync::Arc, time::Duration};

use pyo3::{exceptions::PyTypeError, prelude::*};
use vramd_client::{Client, PrefetchDeferral, PrefetchRequest, PrefetchState};

use crate::{
    arguments::{self, Parts},
    error::Fault,
    interrupt::without_gil,
    memory::Memory,
    shared::{Locked, Shared, check_process},
};

/// How urgently memory is needed, and whether some of it is of use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Urgency {
    pub(crate) partial: bool,
    pub(crate) within: Option<Duration>,
    pub(crate) priority: u8,
}

/// `memory`, or `(memory, range(2, 4))`.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) shared: Arc<Shared>,
    pub(crate) parts: Option<Range<u32>>,
}

impl<'py> FromPyObject<'_, 'py> for Wanted {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let shared = |memory: &Bound<'_, Memory>| Arc::clone(memory.get().shared());
        if let Ok(memory) = object.cast::<Memory>() {
            return Ok(Self { shared: shared(&memory.to_owned()), parts: None });
        }
        let (memory, Parts(parts)) = object.extract::<(Bound<'py, Memory>, Parts)>().map_err(|error| {
            match error.is_instance_of::<PyTypeError>(object.py()) {
                true => PyTypeError::new_err("name memory, or a pair of memory and a range of its parts"),
                false => error,
            }
        })?;
        Ok(Self { shared: shared(&memory), parts: Some(parts) })
    }
}

/// A request that the daemon has answered. Its end does not cancel the request.
#[pyclass(frozen, module = "vramd")]
#[derive(Debug)]
pub(crate) struct Prefetch {
    pid: u32,
    asked: vramd_client::Prefetch,
}

impl Prefetch {
    pub(crate) fn ask(
        py: Python<'_>,
        client: &Client,
        wanted: &[Wanted],
        urgency: Urgency,
    ) -> Result<Self, Fault> {
        wanted.iter().try_for_each(|it| it.shared.check_own_process())?;
        let asked = without_gil(py, || {
            let locked = Locked::all(wanted.iter().map(|it| &it.shared));
            let mut request = PrefetchRequest::new().priority(urgency.priority);
            for Wanted { shared, parts } in wanted {
                let handle = locked.handle(shared)?.pinnable();
                request = match parts.clone() {
                    Some(parts) => request.parts(handle, parts),
                    None => request.all(handle),
                };
            }
            if urgency.partial {
                request = request.partial();
            }
            if let Some(within) = urgency.within {
                request = request.within(within);
            }
            Ok(client.prefetch(request)?)
        })?;
        Ok(Self { pid: process::id(), asked })
    }

    fn now(&self) -> Result<PrefetchState, Fault> {
        check_process(self.pid)?;
        match self.asked.state()? {
            PrefetchState::Refused(error) => Err(error.into()),
            state => Ok(state),
        }
    }
}

#[pymethods]
impl Prefetch {
    #[getter]
    fn number(&self) -> u64 {
        self.asked.number()
    }

    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        Ok(name(&self.now()?))
    }

    #[getter]
    fn reason(&self) -> PyResult<Option<&'static str>> {
        Ok(match self.now()? {
            PrefetchState::Deferred(why) => Some(deferral(why)),
            PrefetchState::Dropped { cause, .. } => Some(cause),
            _ => None,
        })
    }

    #[getter]
    fn by_own_tenant(&self) -> PyResult<Option<bool>> {
        Ok(match self.now()? {
            PrefetchState::Dropped { by_own_tenant, .. } => Some(by_own_tenant),
            _ => None,
        })
    }

    #[getter]
    fn by_operator(&self) -> PyResult<Option<bool>> {
        Ok(match self.now()? {
            PrefetchState::Cancelled { by_operator } => Some(by_operator),
            _ => None,
        })
    }

    #[getter]
    fn expected(&self) -> PyResult<Option<f64>> {
        Ok(match self.now()? {
            PrefetchState::Accepted { expected } => expected.map(|it| it.as_secs_f64()),
            _ => None,
        })
    }

    #[getter]
    fn parts_left_out(&self) -> PyResult<u32> {
        Ok(match self.now()? {
            PrefetchState::Ready { parts_left_out, .. } => parts_left_out,
            _ => 0,
        })
    }

    #[pyo3(signature = (seconds = None))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<&'static str> {
        let wait = seconds.map(arguments::wait).transpose()?;
        check_process(self.pid)?;
        let waited = || match wait {
            Some(wait) => self.asked.wait_timeout(wait),
            None => self.asked.wait(),
        };
        match without_gil(py, || waited().map_err(Fault::from))? {
            PrefetchState::Refused(error) => Err(Fault::from(error).into()),
            state => Ok(name(&state)),
        }
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.pid)?;
        Ok(without_gil(py, || self.asked.cancel().map_err(Fault::from))?)
    }

    fn __repr__(&self) -> String {
        let state = self.now().map_or("refused", |state| name(&state));
        format!("<vramd.Prefetch {}: {state}>", self.asked.number())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a prefetch belongs to its process: ask for the memory there"))
    }
}

fn name(state: &PrefetchState) -> &'static str {
    match state {
        PrefetchState::Deferred(_) => "deferred",
        PrefetchState::Accepted { .. } => "accepted",
        PrefetchState::Ready { is_late: false, .. } => "ready",
        PrefetchState::Ready { is_late: true, .. } => "late",
        PrefetchState::Dropped { .. } => "dropped",
        PrefetchState::Cancelled { .. } => "cancelled",
        PrefetchState::Refused(_) => "refused",
    }
}

fn deferral(why: PrefetchDeferral) -> &'static str {
    match why {
        PrefetchDeferral::Demand => "demand",
        PrefetchDeferral::Behind => "behind",
        PrefetchDeferral::Link => "link",
        PrefetchDeferral::Room => "room",
        PrefetchDeferral::RoomOnItsWay => "room_on_its_way",
        PrefetchDeferral::Moving => "moving",
        PrefetchDeferral::Pressure => "pressure",
        PrefetchDeferral::Other => "other",
    }
}

/// Converts a priority.
pub(crate) fn priority(number: i64) -> Result<u8, Fault> {
    u8::try_from(number)
        .map_err(|_| Fault::invalid("priority", &format!("{number} is not a priority from 0 to 255")))
}
