//! Creates and releases host memory, on a thread of its own: pinning takes seconds, and must not delay work on
//! devices.
//!
//! While its queue is empty the thread pins ahead of need, one piece at a time. So a new order waits for one
//! piece at most.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc::Receiver},
};

use vramd_types::{Bytes, ExtentId, GRANULARITY, HostNode};

use crate::cuda::{
    device::memory::ExtentMemory,
    extents::freer::wait_for_sole,
    host::{
        memory::{HostMemory, Pinner},
        node::NodeMemory,
    },
    state::{Extent, State},
};
use crate::{Completion, DriverError, Export, PinPace, batch};

#[derive(Debug)]
pub(crate) enum HostOrder {
    Make {
        extent: ExtentId,
        node: HostNode,
        size: Bytes,
        zeroed: bool,
    },
    PinAhead {
        node: HostNode,
        size: Bytes,
        piece: Bytes,
        pieces_max: usize,
        pace: PinPace,
    },
    /// A released extent, answered once its memory is free or unpinned.
    Release {
        extent: ExtentId,
        memory: Arc<HostMemory>,
    },
}

#[derive(Debug)]
pub(crate) struct HostMaker {
    pinner: Pinner,
    /// Nodes with a device near them.
    nodes: BTreeMap<HostNode, NodeMemory>,
    /// The node where this thread runs.
    near: Option<HostNode>,
}

impl HostMaker {
    pub(crate) fn new(pinner: Pinner) -> Self {
        let nodes = pinner.devices.iter().map(|device| (device.node(), NodeMemory::new(device.node())));
        Self { nodes: nodes.collect(), pinner, near: None }
    }

    /// Runs until all senders are gone.
    pub(crate) fn run(mut self, state: &State, orders: &Receiver<HostOrder>) {
        while let Some(order) = batch::next_or_idle(orders, || self.pin_and_publish(state)) {
            match order {
                HostOrder::Make { extent, node, size, zeroed } => {
                    let result = self.make(state, extent, node, size, zeroed);
                    state.report(Completion::Created { extent, result });
                }
                HostOrder::PinAhead { node, size, piece, pieces_max, pace } => {
                    if let Err(problem) =
                        self.node(node).and_then(|it| it.set_target(size, piece, pieces_max, pace))
                    {
                        report_pinned(state, node, Bytes::ZERO, Some(problem));
                    }
                }
                HostOrder::Release { extent, memory } => {
                    // The driver cannot see other holders, except a copy that may never end.
                    let returned = match wait_for_sole(memory, HostMemory::is_leaked) {
                        Ok(memory) => {
                            if let Some(node) = self.nodes.get_mut(&memory.node()) {
                                node.put_back(memory);
                            }
                            state.extents().remove(&extent);
                            true
                        }
                        Err(_kept) => false,
                    };
                    state.report(Completion::Released { extent, returned });
                }
            }
            self.publish(state);
        }
        for (node, it) in &mut self.nodes {
            if let Some(free) = it.stop_pinning_ahead() {
                let problem = DriverError::Failed("the driver has ended".to_owned());
                report_pinned(state, *node, free, Some(problem));
            }
        }
    }

    fn pin_and_publish(&mut self, state: &State) -> bool {
        let filled = self.pin_ahead(state);
        self.publish(state);
        filled
    }

    /// Publishes the amounts, so that a survey can tell whether missing memory could be had.
    fn publish(&self, state: &State) {
        let to_pin = self.nodes.iter().map(|(node, it)| (*node, it.to_pin())).collect();
        state.set_host_memory(to_pin, self.nodes.values().filter_map(NodeMemory::free_pinned).collect());
    }

    /// Does one step of pinning ahead. Returns whether there was one.
    fn pin_ahead(&mut self, state: &State) -> bool {
        for (node, it) in &mut self.nodes {
            if it.has_missing() {
                run_near(&mut self.near, &self.pinner, *node);
            }
            let problem = match it.pin_step(&self.pinner) {
                Ok(true) => return true,
                Ok(false) => None,
                Err(error) => Some(error),
            };
            if let Some(free) = it.take_filled() {
                report_pinned(state, *node, free, problem);
            }
        }
        false
    }

    fn make(
        &mut self,
        state: &State,
        extent: ExtentId,
        node: HostNode,
        size: Bytes,
        zeroed: bool,
    ) -> Result<Export, DriverError> {
        if size.is_zero() || !size.is_multiple_of(GRANULARITY) {
            return Err(DriverError::Failed(format!("{} bytes are not a multiple of 2 MiB", size.get())));
        }
        self.node(node)?;
        if !state.claim(extent) {
            return Err(DriverError::Failed(format!("extent {extent} exists already")));
        }
        match self.take(node, size, zeroed) {
            Ok(memory) => {
                let handle = memory.export();
                state.extents().insert(extent, Extent::Live(ExtentMemory::Host(Arc::new(memory))));
                Ok(handle)
            }
            Err(error) => {
                state.extents().remove(&extent);
                Err(error)
            }
        }
    }

    fn take(&mut self, node: HostNode, size: Bytes, zeroed: bool) -> Result<HostMemory, DriverError> {
        run_near(&mut self.near, &self.pinner, node);
        let Self { pinner, nodes, .. } = self;
        nodes.get_mut(&node).ok_or_else(|| unknown_node(node))?.take(pinner, size, zeroed)
    }

    fn node(&mut self, node: HostNode) -> Result<&mut NodeMemory, DriverError> {
        self.nodes.get_mut(&node).ok_or_else(|| unknown_node(node))
    }
}

fn run_near(near: &mut Option<HostNode>, pinner: &Pinner, node: HostNode) {
    if near.replace(node) != Some(node)
        && let Some(device) = pinner.devices.iter().find(|device| device.node() == node)
    {
        device.run_near();
    }
}

fn unknown_node(node: HostNode) -> DriverError {
    DriverError::Failed(format!("host node {node} has no device near it"))
}

fn report_pinned(state: &State, node: HostNode, free: Bytes, problem: Option<DriverError>) {
    state.report(Completion::PinnedAhead { node, free, problem });
}
