//! The memory in which a tensor or a buffer lies: an allocation of the daemon, or a mapped file.

use std::sync::Arc;

use pyo3::Python;

use crate::{
    error::Fault,
    mapped_file::OwnFile,
    shared::{Facts, number},
    view::View,
};

/// Keeps the memory where it is while it lives.
#[derive(Debug)]
pub(crate) enum Held {
    Allocation(View),
    File(Arc<OwnFile>),
}

/// The device of some memory, as a tensor names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot<'a> {
    /// Whether a GPU reads it. If so, `uuid` is that GPU's.
    pub(crate) is_device: bool,
    pub(crate) uuid: &'a str,
}

impl Held {
    pub(crate) fn spot(&self) -> Spot<'_> {
        match self {
            Self::Allocation(view) => Spot::of(view.facts()),
            Self::File(file) => file.spot(),
        }
    }

    /// The address at which kernels find it.
    pub(crate) fn address(&self) -> Result<usize, Fault> {
        match self {
            Self::Allocation(view) => view.address(),
            Self::File(file) => number(file.device_ptr()),
        }
    }

    /// The address at which the CPU finds it.
    pub(crate) fn host_address(&self) -> Result<usize, Fault> {
        match self {
            Self::Allocation(view) => view.address(),
            Self::File(file) => Ok(file.bytes().as_ptr().expose_provenance()),
        }
    }

    pub(crate) fn len(&self) -> Result<usize, Fault> {
        match self {
            Self::Allocation(view) => view.len(),
            Self::File(file) => Ok(file.bytes().len()),
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        matches!(self, Self::Allocation(view) if view.is_writable())
    }

    /// Another one of the same memory.
    pub(crate) fn again(&self, py: Python<'_>) -> Result<Self, Fault> {
        match self {
            Self::Allocation(view) => view.again(py).map(Self::Allocation),
            Self::File(file) => file.check_own_process().map(|()| Self::File(Arc::clone(file))),
        }
    }

    /// The memory's name in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Allocation(view) => view.shared().id().to_string(),
            Self::File(_) => "a mapped file".to_owned(),
        }
    }
}

impl<'a> Spot<'a> {
    pub(crate) fn of(facts: &'a Facts) -> Self {
        Self { is_device: facts.is_device(), uuid: &facts.info.device }
    }
}
