//! Stream captures while memory is mapped and unmapped: by the SDK, which relaxes the capture mode around its own calls, and by bare
//! driver calls, which do not.
//!
//! A row is a capture of two kernels with an action between them. The capture is valid if the driver returns the graph, and the graph
//! writes what both kernels should write.

use std::{fmt::Display, slice, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client, admin::AdminClient, socket_dir};
use vramd_proto::v1::{RevocationOutcome, RevokeMappingsRequest, revoke_mappings_request::Target};
use vramd_tests::wait::within;

use crate::{
    content,
    cuda::{Extent, Gpu, Mode},
};

/// The memory that is mapped and unmapped: four parts.
const SIZE: u64 = 8 << 20;
const PART: usize = 2 << 20;
/// The memory that the captured kernels write.
const PLAIN: u64 = 1 << 20;
/// How long a kernel spins, so that it outlasts the beginning of the capture.
const KERNEL_NANOSECONDS: u64 = 50_000_000;
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Nothing,
    WorkerUnmaps,
    OtherThreadPins,
    OtherThreadAllocates,
    OwnThreadPins,
    OwnThreadAllocates,
    OwnThreadCopies,
    ReaperUnpins,
    BareByOtherThread,
    BareByOwnThread,
}

const ALL: [Activity; 10] = [
    Activity::Nothing,
    Activity::WorkerUnmaps,
    Activity::OtherThreadPins,
    Activity::OtherThreadAllocates,
    Activity::OwnThreadPins,
    Activity::OwnThreadAllocates,
    Activity::OwnThreadCopies,
    Activity::ReaperUnpins,
    Activity::BareByOtherThread,
    Activity::BareByOwnThread,
];

struct Bench<'a> {
    client: &'a Client,
    gpu: &'a Gpu,
    admin: AdminClient,
    memory: Allocation,
    extent: Extent,
    plain: u64,
}

/// Runs all rows.
pub(super) fn rows(client: &Client, gpu: &Gpu) -> Result<Value> {
    let request = AllocationRequest::new(Bytes::new(SIZE)).part_size(Bytes::new(PART as u64));
    let mut memory = client.allocate(request)?;
    memory.unpin()?;
    let bench = Bench {
        client,
        gpu,
        admin: AdminClient::new(&socket_dir())?,
        memory,
        extent: gpu.create(PART)?,
        plain: gpu.alloc(usize::try_from(PLAIN)?)?,
    };
    // The first use loads the kernels. That must not happen inside the capture.
    gpu.fill(bench.plain, PLAIN, 0)?;
    let mut rows = Vec::new();
    for (seed, mode) in (1..).zip(Mode::ALL) {
        for activity in ALL {
            rows.push(bench.row(mode, activity, seed)?);
        }
    }
    gpu.free(bench.plain)?;
    Ok(json!({ "capture": rows }))
}

impl Activity {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::WorkerUnmaps => "the SDK's worker unmaps what an operator evicts",
            Self::OtherThreadPins => "another thread pins what is away, and maps it",
            Self::OtherThreadAllocates => "another thread allocates and frees",
            Self::OwnThreadPins => "the capturing thread pins what is away, and maps it",
            Self::OwnThreadAllocates => "the capturing thread allocates and frees",
            Self::OwnThreadCopies => "the capturing thread copies by the SDK",
            Self::ReaperUnpins => "the SDK's thread asks events of another stream, and the worker unmaps",
            Self::BareByOtherThread => "another thread maps and unmaps by bare calls",
            Self::BareByOwnThread => "the capturing thread maps and unmaps by bare calls",
        }
    }

    fn is_promised(self) -> bool {
        !matches!(self, Self::BareByOtherThread | Self::BareByOwnThread)
    }
}

impl Bench<'_> {
    fn row(&self, mode: Mode, activity: Activity, seed: u64) -> Result<Value> {
        self.prepare(activity).with_context(|| format!("before the capture: {}", activity.name()))?;
        self.gpu.fill(self.plain, PLAIN, 0)?;
        let half = PLAIN / 2;
        self.gpu.begin_capture(mode)?;
        let first = self.gpu.begin_fill(self.plain, half, seed);
        let done = self.act(activity);
        let second = self.gpu.begin_fill(self.plain + half, half, seed);
        // The capture ends in any case, so that the next one can begin.
        let ended = self.gpu.end_capture();
        let kernels = first.and(second);
        let valid = kernels.is_ok() && ended.is_ok();
        let right = match &ended {
            Ok(graph) if valid => {
                self.gpu.run(graph)?;
                let sum = content::sum(seed, half);
                self.gpu.sum(self.plain, half)? == sum && self.gpu.sum(self.plain + half, half)? == sum
            }
            _ => false,
        };
        Ok(json!({
            "mode": mode.name(), "meanwhile": activity.name(), "promised": activity.is_promised(),
            "done": outcome(done), "kernels": outcome(kernels), "capture": outcome(ended),
            "graph_is_right": right,
        }))
    }

    /// Prepares the memory for the action, before the capture begins.
    fn prepare(&self, activity: Activity) -> Result<()> {
        // All of it is mapped and not pinned.
        let pinned = self.memory.pin(Access::Write)?;
        match activity {
            Activity::OtherThreadPins | Activity::OwnThreadPins => {
                drop(pinned);
                self.evict()
            }
            Activity::ReaperUnpins => {
                self.gpu.spin(pinned.as_device_ptr(), SIZE, KERNEL_NANOSECONDS)?;
                Ok(pinned.unpin_after(&[self.gpu.aside()])?)
            }
            _ => Ok(()),
        }
    }

    fn act(&self, activity: Activity) -> Result<()> {
        match activity {
            Activity::Nothing => Ok(()),
            Activity::WorkerUnmaps | Activity::ReaperUnpins => self.evict(),
            Activity::OtherThreadPins => self.aside(|| self.pin()),
            Activity::OtherThreadAllocates => self.aside(|| self.allocate()),
            Activity::OwnThreadPins => self.pin(),
            Activity::OwnThreadAllocates => self.allocate(),
            Activity::OwnThreadCopies => self.copy(),
            Activity::BareByOtherThread => self.aside(|| {
                self.gpu.enter()?;
                self.map()
            }),
            Activity::BareByOwnThread => self.map(),
        }
    }

    /// Runs the action to its end on another thread.
    fn aside(&self, action: impl FnOnce() -> Result<()> + Send) -> Result<()> {
        thread::scope(|scope| scope.spawn(action).join().expect("an action does not panic"))
    }

    /// Revokes until the memory is unmapped. Its mapper may not have answered `Mapped` yet, and a stream may still use it.
    fn evict(&self) -> Result<()> {
        let mut problem = None;
        let evicted = within(PATIENCE, || match self.is_evicted() {
            Ok(evicted) => evicted.then_some(()),
            Err(error) => problem.replace(error).map(drop).or(Some(())),
        });
        match problem {
            Some(error) => Err(error),
            None => evicted.context("it is still mapped"),
        }
    }

    fn is_evicted(&self) -> Result<bool> {
        let target = Some(Target::AllocationId(self.memory.id().get()));
        let answer = self.admin.revoke_mappings(RevokeMappingsRequest { target, ..Default::default() })?;
        Ok(answer.parts.iter().all(|part| part.outcome() == RevocationOutcome::Revoked))
    }

    fn pin(&self) -> Result<()> {
        let pinned = self.memory.pin(Access::Write)?;
        ensure!(pinned.len_bytes() == SIZE, "{} bytes are pinned", pinned.len_bytes());
        Ok(())
    }

    fn allocate(&self) -> Result<()> {
        self.client.allocate(AllocationRequest::new(Bytes::new(SIZE)))?.free()?;
        Ok(())
    }

    fn copy(&self) -> Result<()> {
        let mut bytes = [0; 4096];
        self.memory.copy_to_host(0, &mut bytes)?;
        Ok(())
    }

    fn map(&self) -> Result<()> {
        let mut span = self.gpu.map(slice::from_ref(&self.extent), true)?;
        span.unmap()
    }
}

fn outcome<T, E: Display>(outcome: Result<T, E>) -> String {
    outcome.map_or_else(|error| format!("{error:#}"), |_| "ok".to_owned())
}
