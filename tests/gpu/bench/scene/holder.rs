//! A client that has memory, as questions use it. `client.rs` is the other side.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use vramd_tests::Probe;

use super::Scene;
use crate::content;

pub(crate) struct Holder {
    process: Probe,
    memory: u64,
    bytes: u64,
    seed: u64,
    /// The seed of the last content.
    sum: Option<u64>,
}

/// Times since the call of `pin`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    /// When the memory was pinned.
    pub(crate) pinned: Duration,
    /// When the memory was read and its sum known.
    pub(crate) scanned: Duration,
}

impl Holder {
    /// Starts a process with memory of the scene's size on the device, as another user if a uid is given.
    pub(crate) fn start(scene: &Scene, uid: Option<u32>) -> Result<Self> {
        Self::with_parts(scene, scene.parts, uid)
    }

    /// Starts a process with `parts` parts instead.
    pub(crate) fn with_parts(scene: &Scene, parts: usize, uid: Option<u32>) -> Result<Self> {
        let (bytes, part) = (parts * scene.part, scene.part.to_string());
        let words = ["holder", scene.driver.name(), &bytes.to_string(), &part];
        let mut process = Probe::start_program("gpu-suite", &words, &scene.daemon.sockets(), uid);
        let memory = process.listen("its start")["allocation"].as_u64().context("it has no memory")?;
        // Two processes never write the same content.
        let seed = u64::from(process.pid()) << 32;
        Ok(Self { process, memory, bytes: bytes as u64, seed, sum: None })
    }

    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// Writes new random content everywhere.
    pub(crate) fn fill(&mut self) -> Result<()> {
        self.seed += 1;
        let answer = self.ask(&format!("fill {}", self.seed))?;
        self.sum = Some(number(&answer, "sum")?);
        Ok(())
    }

    /// Pins all memory to read, in any tier, and compares it with the last write. Returns how long the pin took.
    pub(crate) fn check(&mut self) -> Result<Duration> {
        let answer = self.ask("read")?;
        let found = number(&answer, "sum")?;
        ensure!(Some(found) == self.sum, "its sum is {found}, and {:?} was written", self.sum);
        Ok(Duration::from_nanos(number(&answer, "pinned_ns")?))
    }

    /// Pins one part to write, and unpins it. Returns how long the pin took.
    pub(crate) fn pin(&mut self, part: u32) -> Result<Duration> {
        let answer = self.ask(&format!("pin {part}"))?;
        Ok(Duration::from_nanos(number(&answer, "pinned_ns")?))
    }

    /// Advises access in place. Returns false if clients cannot map host memory.
    pub(crate) fn advise(&mut self) -> Result<bool> {
        let answer = self.ask("advise")?;
        answer["advised"].as_bool().with_context(|| format!("no word of it in {answer}"))
    }

    /// Pins all memory, reads some of its lines repeatedly, and compares the sum with that of the last write.
    pub(crate) fn scan(&mut self, every: u64, times: u64) -> Result<Scan> {
        let answer = self.ask(&format!("scan {every} {times}"))?;
        let (found, once) = (number(&answer, "sum")?, content::sum_lines(self.seed, self.bytes, every));
        let should = once.wrapping_mul(times);
        ensure!(found == should, "the sum of its lines is {found}, and {should} was written");
        let [pinned, scanned] = ["pinned_ns", "scanned_ns"].map(|key| number(&answer, key));
        Ok(Scan { pinned: Duration::from_nanos(pinned?), scanned: Duration::from_nanos(scanned?) })
    }

    /// Frees the memory.
    pub(crate) fn leave(self) {
        self.process.leave();
    }

    fn ask(&mut self, command: &str) -> Result<Value> {
        let answer = self.process.answer(command);
        if let Some(problem) = answer.get("problem") {
            bail!("{command}: {problem}");
        }
        Ok(answer)
    }
}

fn number(answer: &Value, field: &str) -> Result<u64> {
    answer[field].as_u64().with_context(|| format!("no {field} in {answer}"))
}
