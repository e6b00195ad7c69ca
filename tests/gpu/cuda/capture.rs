//! Streams that are captured into graphs.

use super::{
    Gpu,
    table::{Failed, Opaque, Table},
};

/// Which calls may invalidate a capture: calls of all threads, of the capturing one, or of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// A captured graph. Destroyed when dropped.
#[derive(Debug)]
pub(crate) struct Graph {
    table: &'static Table,
    graph: Opaque,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Global, Self::ThreadLocal, Self::Relaxed];

    /// Returns the mode's name in PyTorch.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::ThreadLocal => "thread_local",
            Self::Relaxed => "relaxed",
        }
    }

    /// Returns the `CUstreamCaptureMode`.
    fn number(self) -> u32 {
        match self {
            Self::Global => 0,
            Self::ThreadLocal => 1,
            Self::Relaxed => 2,
        }
    }
}

impl Gpu {
    /// Begins a capture. Until [`Self::end_capture`] the kernels of [`Self::begin_fill`] become part of a graph.
    pub(crate) fn begin_capture(&self, mode: Mode) -> Result<(), Failed> {
        self.table.begin_capture(self.captured, mode.number())
    }

    /// Ends the capture, whether it is valid or not.
    pub(crate) fn end_capture(&self) -> Result<Graph, Failed> {
        let mut graph = Graph { table: self.table, graph: Opaque::default() };
        self.table.end_capture(self.captured, &mut graph.graph)?;
        Ok(graph)
    }

    /// Returns the captured stream as a handle for other code of the process.
    pub(crate) fn captured(&self) -> u64 {
        self.captured.number()
    }

    /// Runs a graph once and waits for its end.
    pub(crate) fn run(&self, graph: &Graph) -> Result<(), Failed> {
        let mut ready = Opaque::default();
        self.table.instantiate(&mut ready, graph.graph, 0)?;
        let ran = self.table.graph_launch(ready, self.work);
        let ended = ran.and_then(|()| self.table.stream_synchronize(self.work));
        self.table.exec_destroy(ready)?;
        ended
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.graph != Opaque::default() {
            // This fails only in a dead context, which takes the graph along.
            let _ = self.table.graph_destroy(self.graph);
        }
    }
}
