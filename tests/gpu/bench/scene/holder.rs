//! A client that holds memory, as the questions see it; `client.rs` is the other side.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use vramd_tests::Probe;

use super::Scene;

pub(crate) struct Holder {
    process: Probe,
    memory: u64,
    seed: u64,
    /// Of what was written last.
    sum: Option<u64>,
}

impl Holder {
    /// A process with memory of that scene's size on the device, as another user if a uid is given.
    pub(crate) fn start(scene: &Scene, uid: Option<u32>) -> Result<Self> {
        Self::with_parts(scene, scene.parts, uid)
    }

    /// With so many parts instead.
    pub(crate) fn with_parts(scene: &Scene, parts: usize, uid: Option<u32>) -> Result<Self> {
        let (bytes, part) = ((parts * scene.part).to_string(), scene.part.to_string());
        let words = ["holder", scene.driver.name(), &bytes, &part];
        let mut process = Probe::start_program("gpu-suite", &words, &scene.daemon.sockets(), uid);
        let memory = process.listen("its start")["allocation"].as_u64().context("it has no memory")?;
        // Different processes never write the same.
        let seed = u64::from(process.pid()) << 32;
        Ok(Self { process, memory, seed, sum: None })
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

    /// Pins all of it to read, wherever it is, and compares it with what was written. How long the pin took.
    pub(crate) fn check(&mut self) -> Result<Duration> {
        let answer = self.ask("read")?;
        let found = number(&answer, "sum")?;
        ensure!(Some(found) == self.sum, "its sum is {found}, and {:?} was written", self.sum);
        Ok(Duration::from_nanos(number(&answer, "pinned_ns")?))
    }

    /// Pins one part to write, and unpins it. How long the pin took.
    pub(crate) fn pin(&mut self, part: u32) -> Result<Duration> {
        let answer = self.ask(&format!("pin {part}"))?;
        Ok(Duration::from_nanos(number(&answer, "pinned_ns")?))
    }

    /// Frees it.
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
