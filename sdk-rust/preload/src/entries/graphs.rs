//! Nodes of graphs that allocate memory: the driver serves them, as long as the graph lives.

use std::ffi::c_uint;

use super::written;
use crate::table::Real;

pub(crate) const NOT_SERVED: &str = "memory of graphs is not served";

/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
const MEM_ALLOC: c_uint = 10;

/// `cuGraphAddNode` of either version. `CUgraphNodeParams` begins with the kind of the node.
pub(crate) fn add_node(real: Real<'_>, parameters: *const c_uint) -> u32 {
    if written(parameters) == Some(MEM_ALLOC) { real.pass_on(NOT_SERVED) } else { real.call() }
}
