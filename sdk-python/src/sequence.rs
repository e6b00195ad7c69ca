//! `vramd.Sequence`: the order in which a program uses memory, declared once.

use std::process;

use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyList, PyTuple},
};
use vramd_client::{Client, SequenceRequest, SequenceState, SequenceWindow};

use crate::{
    error::Fault,
    interrupt::{drop_without_gil, without_gil},
    prefetch::Wanted,
    shared::{Locked, check_process},
};

/// The memory of one step: what a prefetch may name, or a list of it.
#[derive(Debug)]
pub(crate) struct StepOf(Vec<Wanted>);

impl<'py> FromPyObject<'_, 'py> for StepOf {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.cast::<PyList>() {
            Ok(list) => list.iter().map(|it| it.extract()).collect::<PyResult<_>>().map(Self),
            Err(_) => Ok(Self(vec![object.extract()?])),
        }
    }
}

/// A sequence that the daemon has taken. Its end ends the sequence.
#[pyclass(frozen, module = "vramd")]
#[derive(Debug)]
pub(crate) struct Sequence {
    pid: u32,
    number: u64,
    declared: std::sync::Mutex<Option<vramd_client::Sequence>>,
}

impl Sequence {
    pub(crate) fn declare(
        py: Python<'_>,
        client: &Client,
        steps: &[StepOf],
        passes: u64,
    ) -> Result<Self, Fault> {
        let all = || steps.iter().flat_map(|step| &step.0);
        all().try_for_each(|it| it.shared.check_own_process())?;
        let declared = without_gil(py, || {
            let locked = Locked::all(all().map(|it| &it.shared));
            let mut request = SequenceRequest::new().passes(passes);
            for step in steps {
                request = request.step();
                for Wanted { shared, parts } in &step.0 {
                    let handle = locked.handle(shared)?.pinnable();
                    request = match parts.clone() {
                        Some(parts) => request.parts(handle, parts),
                        None => request.all(handle),
                    };
                }
            }
            Ok(client.declare_sequence(request)?)
        })?;
        let number = declared.number();
        Ok(Self { pid: process::id(), number, declared: std::sync::Mutex::new(Some(declared)) })
    }

    /// Asks the sequence, unless the program has ended it.
    fn ask<T>(
        &self,
        ask: impl FnOnce(&vramd_client::Sequence) -> vramd_client::Result<T>,
    ) -> Result<Option<T>, Fault> {
        check_process(self.pid)?;
        let declared = self.declared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(declared.as_ref().map(ask).transpose()?)
    }

    fn now(&self) -> Result<SequenceState, Fault> {
        Ok(self.ask(vramd_client::Sequence::state)?.unwrap_or(SequenceState::Ended { by_operator: false }))
    }

    fn window(&self) -> Result<Option<SequenceWindow>, Fault> {
        Ok(match self.now()? {
            SequenceState::Running(window) => Some(window),
            SequenceState::Ended { .. } | SequenceState::Refused(_) => None,
        })
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        drop_without_gil(self.declared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
    }
}

#[pymethods]
impl Sequence {
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        Ok(match self.now()? {
            SequenceState::Running(_) => "running",
            SequenceState::Ended { .. } => "ended",
            SequenceState::Refused(error) => return Err(Fault::from(error).into()),
        })
    }

    #[getter]
    fn window_steps(&self) -> PyResult<u32> {
        Ok(self.window()?.map_or(0, |window| window.steps))
    }

    #[getter]
    fn window_bytes(&self) -> PyResult<u64> {
        Ok(self.window()?.map_or(0, |window| window.bytes.get()))
    }

    #[getter]
    fn kept_bytes(&self) -> PyResult<u64> {
        Ok(self.window()?.map_or(0, |window| window.kept.get()))
    }

    #[getter]
    fn is_shortened(&self) -> PyResult<bool> {
        Ok(self.window()?.is_some_and(|window| window.is_shortened))
    }

    #[pyo3(signature = (step = None))]
    fn begin(&self, py: Python<'_>, step: Option<u64>) -> PyResult<Option<u64>> {
        let begin = |sequence: &vramd_client::Sequence| match step {
            Some(step) => sequence.begin(step).map(|()| step),
            None => sequence.begin_next(),
        };
        Ok(without_gil(py, || self.ask(begin))?)
    }

    fn end(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.pid)?;
        without_gil(py, || {
            let ended = self.declared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            drop(ended);
            Ok::<_, Fault>(())
        })?;
        Ok(())
    }

    const fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.end(py)
    }

    fn __repr__(&self) -> String {
        let state = match self.now() {
            Ok(SequenceState::Running(_)) => "running",
            Ok(SequenceState::Ended { .. }) => "ended",
            Ok(SequenceState::Refused(_)) | Err(_) => "refused",
        };
        format!("<vramd.Sequence {}: {state}>", self.number)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a sequence belongs to its process: declare it there"))
    }
}

/// Converts a number of passes.
pub(crate) fn passes(number: i64) -> Result<u64, Fault> {
    u64::try_from(number).map_err(|_| Fault::invalid("passes", &format!("{number} is no number of passes")))
}
