//! Makes and gives up memory of the host, on a thread of its own: pinning takes seconds, and nothing that concerns a
//! device waits for it.

use std::{
    collections::BTreeSet,
    sync::{Arc, mpsc::Receiver},
};

use vramd_types::{Bytes, ExtentId, GRANULARITY, HostNode};

use super::{
    device::Device,
    facts::HostKind,
    freer::sole,
    host_memory::HostMemory,
    memory::Held,
    node,
    state::{Extent, State},
};
use crate::{Completion, DriverError, Handle};

#[derive(Debug)]
pub(super) enum HostOrder {
    Make {
        extent: ExtentId,
        node: HostNode,
        size: Bytes,
    },
    /// What was released, and is answered once it is given up.
    Release {
        extent: ExtentId,
        memory: Arc<HostMemory>,
    },
}

/// How memory of the host is made.
#[derive(Debug)]
pub(super) struct HostMaker {
    pub(super) kind: HostKind,
    /// All of them reach it.
    pub(super) devices: Vec<Arc<Device>>,
    /// Whether that remains to be done.
    pub(super) zeroing: bool,
}

impl HostMaker {
    /// Until nobody can send any more.
    pub(super) fn run(&self, state: &State, orders: &Receiver<HostOrder>) {
        let mut near = None;
        for order in orders {
            match order {
                HostOrder::Make { extent, node, size } => {
                    if near.replace(node) != Some(node) {
                        node::stay_near(node);
                    }
                    let result = self.make(state, extent, node, size);
                    state.tell(Completion::Created { extent, result });
                }
                HostOrder::Release { extent, memory } => {
                    drop(sole(memory));
                    state.extents().remove(&extent);
                    // Who else holds it nobody can tell.
                    state.tell(Completion::Released { extent, returned: true });
                }
            }
        }
    }

    fn make(
        &self,
        state: &State,
        extent: ExtentId,
        node: HostNode,
        size: Bytes,
    ) -> Result<Handle, DriverError> {
        if size.is_zero() || !size.is_multiple_of(GRANULARITY) {
            return Err(DriverError::Failed(format!("{} bytes are no multiple of 2 MiB", size.get())));
        }
        let nodes: BTreeSet<HostNode> = self.devices.iter().map(|device| device.node()).collect();
        if !nodes.contains(&node) {
            return Err(DriverError::Failed(format!("no device is near node {node} of the host")));
        }
        if !state.claim(extent) {
            return Err(DriverError::Failed(format!("{extent} exists")));
        }
        match HostMemory::new(self.kind, &self.devices, node, size) {
            Ok(memory) => {
                if self.zeroing {
                    memory.view().zero();
                }
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
}
