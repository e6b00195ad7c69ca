//! The registry of reasons, for programs that iterate over it.

use pyo3::prelude::*;
use vramd_client::Reason;

type Row = (&'static str, &'static str, Vec<&'static str>, &'static str);

/// Name, gRPC code, keys of the facts, and meaning of every reason.
#[pyfunction]
pub(crate) fn reasons() -> Vec<Row> {
    Reason::ALL
        .iter()
        .map(|reason| (reason.name(), reason.code().name(), reason.facts().to_vec(), reason.meaning()))
        .collect()
}
