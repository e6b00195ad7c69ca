//! Makes, keeps and gives up memory of the host, on a thread of its own: pinning takes seconds, and nothing that concerns
//! a device waits for it.
//!
//! When nothing is asked of it the thread pins ahead of need, a piece at a time. So who asks waits for one at most.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc::Receiver},
};

use vramd_types::{Bytes, ExtentId, GRANULARITY, HostNode};

use crate::cuda::{
    device::memory::Held,
    extents::freer::sole,
    host::{
        memory::{HostMemory, Pinner},
        node::Node,
    },
    state::{Extent, State},
};
use crate::{Completion, DriverError, Handle, batch};

#[derive(Debug)]
pub(crate) enum HostOrder {
    Make {
        extent: ExtentId,
        node: HostNode,
        size: Bytes,
        zeroed: bool,
    },
    Keep {
        node: HostNode,
        size: Bytes,
        piece: Bytes,
        pieces_max: usize,
    },
    /// What was released, and is answered once it is kept or given up.
    Release {
        extent: ExtentId,
        memory: Arc<HostMemory>,
    },
}

#[derive(Debug)]
pub(crate) struct HostMaker {
    pinner: Pinner,
    /// Those that are near a device.
    nodes: BTreeMap<HostNode, Node>,
    /// Where this thread stays.
    near: Option<HostNode>,
}

impl HostMaker {
    pub(crate) fn new(pinner: Pinner) -> Self {
        let nodes = pinner.devices.iter().map(|device| (device.node(), Node::new(device.node())));
        Self { nodes: nodes.collect(), pinner, near: None }
    }

    /// Until nobody can send any more.
    pub(crate) fn run(mut self, state: &State, orders: &Receiver<HostOrder>) {
        while let Some(order) = batch::next(orders, || self.fill_and_say(state)) {
            match order {
                HostOrder::Make { extent, node, size, zeroed } => {
                    let result = self.make(state, extent, node, size, zeroed);
                    state.tell(Completion::Created { extent, result });
                }
                HostOrder::Keep { node, size, piece, pieces_max } => {
                    if let Err(problem) = self.node(node).and_then(|it| it.keep(size, piece, pieces_max)) {
                        tell_kept(state, node, Bytes::ZERO, Some(problem));
                    }
                }
                HostOrder::Release { extent, memory } => {
                    // Who else holds it nobody can tell, but for a copy that may never end.
                    let returned = match sole(memory, HostMemory::is_kept) {
                        Ok(memory) => {
                            if let Some(node) = self.nodes.get_mut(&memory.node()) {
                                node.put_back(memory);
                            }
                            state.extents().remove(&extent);
                            true
                        }
                        Err(_kept) => false,
                    };
                    state.tell(Completion::Released { extent, returned });
                }
            }
            self.say_what_there_is(state);
        }
        for (node, it) in &mut self.nodes {
            if let Some(kept) = it.give_up_filling() {
                let problem = DriverError::Failed("the driver has ended".to_owned());
                tell_kept(state, *node, kept, Some(problem));
            }
        }
    }

    fn fill_and_say(&mut self, state: &State) -> bool {
        let filled = self.fill(state);
        self.say_what_there_is(state);
        filled
    }

    /// Whoever looks at what others hold looks whether what is missing could be had.
    fn say_what_there_is(&self, state: &State) {
        let to_pin = self.nodes.iter().map(|(node, it)| (*node, it.to_pin())).collect();
        state.will_pin(to_pin, self.nodes.values().filter_map(Node::kept).collect());
    }

    /// Whether a piece was pinned ahead of need, or way was made for one.
    fn fill(&mut self, state: &State) -> bool {
        for (node, it) in &mut self.nodes {
            if it.is_missing() {
                stay_near(&mut self.near, &self.pinner, *node);
            }
            let problem = match it.fill(&self.pinner) {
                Ok(true) => return true,
                Ok(false) => None,
                Err(error) => Some(error),
            };
            if let Some(kept) = it.is_filled() {
                tell_kept(state, *node, kept, problem);
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
    ) -> Result<Handle, DriverError> {
        if size.is_zero() || !size.is_multiple_of(GRANULARITY) {
            return Err(DriverError::Failed(format!("{} bytes are no multiple of 2 MiB", size.get())));
        }
        self.node(node)?;
        if !state.claim(extent) {
            return Err(DriverError::Failed(format!("{extent} exists")));
        }
        match self.take(node, size, zeroed) {
            Ok(memory) => {
                let handle = memory.handle();
                state.extents().insert(extent, Extent::Live(Held::Host(Arc::new(memory))));
                Ok(handle)
            }
            Err(error) => {
                state.extents().remove(&extent);
                Err(error)
            }
        }
    }

    fn take(&mut self, node: HostNode, size: Bytes, zeroed: bool) -> Result<HostMemory, DriverError> {
        stay_near(&mut self.near, &self.pinner, node);
        let Self { pinner, nodes, .. } = self;
        nodes.get_mut(&node).ok_or_else(|| nowhere(node))?.take(pinner, size, zeroed)
    }

    fn node(&mut self, node: HostNode) -> Result<&mut Node, DriverError> {
        self.nodes.get_mut(&node).ok_or_else(|| nowhere(node))
    }
}

fn stay_near(near: &mut Option<HostNode>, pinner: &Pinner, node: HostNode) {
    if near.replace(node) != Some(node)
        && let Some(device) = pinner.devices.iter().find(|device| device.node() == node)
    {
        device.stay_near();
    }
}

fn nowhere(node: HostNode) -> DriverError {
    DriverError::Failed(format!("no device is near node {node} of the host"))
}

fn tell_kept(state: &State, node: HostNode, kept: Bytes, problem: Option<DriverError>) {
    state.tell(Completion::HostKept { node, kept, problem });
}
