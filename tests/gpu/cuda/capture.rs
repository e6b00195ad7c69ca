//! Streams that are captured into graphs.

use super::{
    Gpu,
    table::{Failed, Opaque, Table},
};

/// Whose calls may disturb a capture: of all threads, of the one that captures, of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// What was captured. Destroyed when dropped.
#[derive(Debug)]
pub(crate) struct Graph {
    table: &'static Table,
    graph: Opaque,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Global, Self::ThreadLocal, Self::Relaxed];

    /// As PyTorch calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::ThreadLocal => "thread_local",
            Self::Relaxed => "relaxed",
        }
    }

    /// `CUstreamCaptureMode`
    fn number(self) -> u32 {
        match self {
            Self::Global => 0,
            Self::ThreadLocal => 1,
            Self::Relaxed => 2,
        }
    }
}

impl Gpu {
    /// Until [`Self::end_capture`] the kernels of [`Self::begin_fill`] become part of a graph.
    pub(crate) fn begin_capture(&self, mode: Mode) -> Result<(), Failed> {
        self.table.begin_capture(self.captured, mode.number())
    }

    /// Ends it, valid or not.
    pub(crate) fn end_capture(&self) -> Result<Graph, Failed> {
        let mut graph = Graph { table: self.table, graph: Opaque::default() };
        self.table.end_capture(self.captured, &mut graph.graph)?;
        Ok(graph)
    }

    /// The stream of these, as other code of the process knows it.
    pub(crate) fn captured(&self) -> u64 {
        self.captured.number()
    }

    /// Runs a graph once, to its end.
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
            // Fails only in a context that is dead, which takes it along.
            let _ = self.table.graph_destroy(self.graph);
        }
    }
}
