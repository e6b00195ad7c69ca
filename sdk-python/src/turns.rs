//! `vramd.WorkingSet` and `vramd.Turn`: memory that programs use one after the other.

use std::{
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pyo3::{exceptions::PyTypeError, prelude::*, types::PyTuple};
use vramd_client::{Client, TurnState};

use crate::{
    arguments,
    error::Fault,
    interrupt::{drop_without_gil, without_gil},
    memory::Memory,
    shared::{Locked, check_process},
};

/// A set that the daemon has taken. Its end gives it up.
#[pyclass(frozen, module = "vramd")]
#[derive(Debug)]
pub(crate) struct WorkingSet {
    pid: u32,
    name: String,
    /// Locked for a moment only, never during a wait.
    set: Mutex<Option<vramd_client::WorkingSet>>,
}

/// A turn that was granted. Its end yields it.
#[pyclass(frozen, module = "vramd")]
#[derive(Debug)]
pub(crate) struct Turn {
    pid: u32,
    name: String,
    /// Shared with threads that wait until the turn is asked for.
    turn: Mutex<Option<Arc<vramd_client::Turn>>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorkingSet {
    pub(crate) fn name(
        py: Python<'_>,
        client: &Client,
        name: &str,
        memory: &[Bound<'_, Memory>],
    ) -> Result<Self, Fault> {
        let members: Vec<_> = memory.iter().map(|it| Arc::clone(it.get().shared())).collect();
        members.iter().try_for_each(|it| it.check_own_process())?;
        let set = without_gil(py, || {
            let locked = Locked::all(&members);
            let handles = members.iter().map(|it| Ok(locked.handle(it)?.pinnable()));
            Ok(client.working_set(name, &handles.collect::<Result<Vec<_>, Fault>>()?)?)
        })?;
        Ok(Self { pid: process::id(), name: name.to_owned(), set: Mutex::new(Some(set)) })
    }
}

#[pymethods]
impl WorkingSet {
    #[getter]
    #[pyo3(name = "name")]
    fn set_name(&self) -> &str {
        &self.name
    }

    #[pyo3(signature = (wait = None))]
    fn turn(&self, py: Python<'_>, wait: Option<f64>) -> PyResult<Turn> {
        let wait = wait.map(arguments::wait).transpose()?;
        check_process(self.pid)?;
        let set = lock(&self.set).clone();
        let set = set.ok_or_else(|| Fault::own("HandleClosed", "the working set was closed"))?;
        let turn = without_gil(py, move || {
            let acquired = match wait {
                Some(wait) => set.acquire_timeout(wait),
                None => set.acquire(),
            };
            acquired.map_err(Fault::from)
        })?;
        let turn = Mutex::new(Some(Arc::new(turn)));
        Ok(Turn { pid: process::id(), name: self.name.clone(), turn })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.pid)?;
        Ok(without_gil(py, || {
            let set = lock(&self.set).take();
            drop(set);
            Ok::<_, Fault>(())
        })?)
    }

    const fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<vramd.WorkingSet {:?}>", self.name)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a working set belongs to its process: name it there"))
    }
}

impl Turn {
    fn held(&self) -> Result<Option<Arc<vramd_client::Turn>>, Fault> {
        check_process(self.pid)?;
        Ok(lock(&self.turn).clone())
    }

    /// `None` once the program has yielded.
    fn now(&self) -> Result<Option<TurnState>, Fault> {
        check_process(self.pid)?;
        // No second owner of the turn: its end would be sent with the GIL held.
        Ok(lock(&self.turn).as_ref().map(|turn| turn.state()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop_without_gil(lock(&self.turn).take());
    }
}

impl Drop for WorkingSet {
    fn drop(&mut self) {
        drop_without_gil(lock(&self.set).take());
    }
}

#[pymethods]
impl Turn {
    #[getter]
    fn ending(&self) -> PyResult<bool> {
        Ok(matches!(self.now()?, Some(TurnState::Ending { .. })))
    }

    #[getter]
    fn within(&self) -> PyResult<Option<f64>> {
        Ok(match self.now()? {
            Some(TurnState::Ending { within }) => Some(within.as_secs_f64()),
            _ => None,
        })
    }

    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        Ok(state_name(self.now()?.as_ref()))
    }

    #[pyo3(signature = (seconds = None))]
    fn wait_ending(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<bool> {
        /// The same as for ever.
        const UNBOUNDED: Duration = Duration::from_secs(365 * 24 * 3600);
        let wait = seconds.map(arguments::wait).transpose()?.unwrap_or(UNBOUNDED);
        // A yield by another thread ends the wait.
        Ok(without_gil(py, || match self.held()? {
            Some(turn) => Ok(turn.wait_ending(wait)?),
            None => Ok(false),
        })?)
    }

    fn yield_now(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.pid)?;
        Ok(without_gil(py, || {
            let turn = lock(&self.turn).take();
            // A thread that waits until the turn is asked for may still have it.
            if let Some(turn) = turn {
                turn.yield_now();
            }
            Ok::<_, Fault>(())
        })?)
    }

    const fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.yield_now(py)
    }

    fn __repr__(&self) -> String {
        let state = self.now().map_or("of the parent process", |state| state_name(state.as_ref()));
        format!("<vramd.Turn of {:?}: {state}>", self.name)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a turn belongs to its process: acquire one there"))
    }
}

fn state_name(state: Option<&TurnState>) -> &'static str {
    match state {
        Some(TurnState::Held) => "held",
        Some(TurnState::Ending { .. }) => "ending",
        Some(TurnState::Lost(_)) => "lost",
        Some(TurnState::Yielded) | None => "yielded",
    }
}
