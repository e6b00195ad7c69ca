//! `torch_memory_saver` in a process of its own, `tests/gpu/torch_saver.py`, with as many tensors as there are parts.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::report;
use crate::{
    bench::{measure::Measure, plain::Plain},
    bundle::beside,
    cuda::Gpu,
};

/// Runs with reused host buffers (`kept`), or with new ones each time.
pub(super) fn ask(
    gpu: &Gpu,
    plain: &mut Plain<'_>,
    (tensors, size): (usize, usize),
    kept: bool,
    pairs: usize,
) -> Result<Value> {
    let mut saver = Saver::start(gpu, tensors, size, kept)?;
    let begun = saver.line()?;
    if let Some(why) = begun.get("absent") {
        writeln!(io::stdout(), "peer torch_memory_saver absent: {why}")?;
        return Ok(begun);
    }
    let (name, bytes) = (if kept { "saver_kept" } else { "saver" }, tensors * size);
    let mut found = json!({ "versions": begun });
    let pause = || {
        let (paused, _) = saver.round()?;
        Ok((paused, vec![]))
    };
    let measure = Measure::take(None, pairs, pause, || plain.copy(true, false))?;
    found["pause"] = report(&format!("{name}_pause"), &measure, bytes)?;
    let resume = || {
        let (_, resumed) = saver.round()?;
        Ok((resumed, vec![]))
    };
    let measure = Measure::take(None, pairs, resume, || plain.copy(false, true))?;
    found["resume"] = report(&format!("{name}_resume"), &measure, bytes)?;
    saver.leave()?;
    Ok(found)
}

struct Saver {
    child: Child,
    /// The process ends when this is closed.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Saver {
    fn start(gpu: &Gpu, tensors: usize, size: usize, kept: bool) -> Result<Self> {
        let mut command = Command::new("python3");
        command.arg(beside("torch").join("torch_saver.py"));
        command.args([tensors.to_string(), size.to_string(), u8::from(kept).to_string()]);
        command.env("PYTHONPATH", beside("peers")).env("CUDA_VISIBLE_DEVICES", gpu.uuid());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("python3")?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        Ok(Self { child, input, output })
    }

    /// Writes new content, pauses, resumes and checks the content. Returns how long pause and resume took.
    fn round(&mut self) -> Result<(Duration, Duration)> {
        writeln!(self.input.as_mut().context("it has been let go")?)?;
        let line = self.line()?;
        let seconds = |key: &str| line[key].as_f64().with_context(|| format!("no {key} in {line}"));
        Ok((Duration::from_secs_f64(seconds("paused_s")?), Duration::from_secs_f64(seconds("resumed_s")?)))
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).context("torch_saver.py has ended")
    }

    fn leave(mut self) -> Result<()> {
        drop(self.input.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "torch_saver.py ended with {status}");
        Ok(())
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        // Harmless if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
