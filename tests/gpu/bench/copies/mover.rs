//! The daemon's driver without the daemon: extents, and copies between them.

use std::{
    env,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use broker_driver::{
    Completion, CopyClass, Driver, Export, ExtentKind, Submission,
    cuda::{self, CudaConfig, CudaDriver},
};
use vramd_types::{Bytes, CopyId, DeviceIndex, ExtentId};

/// Pinning memory takes seconds, copying it less.
const PATIENCE: Duration = Duration::from_secs(60);
const DEVICE: DeviceIndex = DeviceIndex(0);

pub(super) struct Mover {
    driver: CudaDriver,
    completions: Receiver<Completion>,
    last: u64,
}

/// A piece of memory that copies read and write.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) extent: ExtentId,
    pub(super) handle: Export,
}

impl Mover {
    /// Opens the driver on that device only.
    pub(super) fn open(uuid: &str) -> Result<Self> {
        let library = env::var_os("VRAMD_LIBCUDA").map(PathBuf::from);
        let probed = cuda::probe(CudaConfig { library, ..CudaConfig::default() })?;
        let (sink, completions) = channel();
        let sink = Arc::new(move |completion| drop(sink.send(completion)));
        let driver = cuda::open(probed, &[uuid.to_owned()], sink)?;
        Ok(Self { driver, completions, last: 0 })
    }

    /// Returns the kind of host memory.
    pub(super) fn host(&self) -> String {
        self.driver.facts().host.to_string()
    }

    pub(super) fn on_device(&mut self, count: usize, size: Bytes) -> Result<Vec<Part>> {
        let kind = ExtentKind::Movable;
        self.make(count, |_, extent| Submission::Create { extent, device: DEVICE, size, kind })
    }

    pub(super) fn in_host(&mut self, count: usize, size: Bytes) -> Result<Vec<Part>> {
        self.make(count, |driver, extent| {
            let node = driver.host_node(DEVICE);
            Submission::CreateHost { extent, node, size, zeroed: false }
        })
    }

    fn make(
        &mut self,
        count: usize,
        submission: impl Fn(&CudaDriver, ExtentId) -> Submission,
    ) -> Result<Vec<Part>> {
        let extents: Vec<ExtentId> = (0..count).map(|_| ExtentId::from_raw(self.next())).collect();
        extents.iter().for_each(|extent| self.driver.submit(submission(&self.driver, *extent)));
        extents
            .into_iter()
            .map(|asked| match self.answer()? {
                Completion::Created { extent, result } => {
                    ensure!(extent == asked, "{extent} was made before {asked}");
                    Ok(Part { extent, handle: result? })
                }
                other => bail!("unexpected: {other:?}"),
            })
            .collect()
    }

    /// Copies each of these pairs. A pair of `after` begins when the pair that it names has ended.
    pub(super) fn copy(
        &mut self,
        pairs: &[(ExtentId, ExtentId)],
        after: &[(ExtentId, ExtentId)],
        size: Bytes,
    ) -> Result<()> {
        let first = self.last + 1;
        pairs.iter().for_each(|pair| self.begin(*pair, size));
        for _ in 0..pairs.len() + after.len() {
            let Completion::Copied { copy, result } = self.answer()? else {
                bail!("only copies were asked for")
            };
            result.with_context(|| format!("{copy}"))?;
            if let Some(next) = usize::try_from(copy.get() - first).ok().and_then(|at| after.get(at)) {
                self.begin(*next, size);
            }
        }
        Ok(())
    }

    fn begin(&mut self, (from, to): (ExtentId, ExtentId), size: Bytes) {
        let copy = CopyId::from_raw(self.next());
        self.driver.submit(Submission::Copy { copy, from, to, size, class: CopyClass::Demand });
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn answer(&self) -> Result<Completion> {
        self.completions.recv_timeout(PATIENCE).context("the driver does not answer")
    }
}
