//! A client process of the suite. It reads one command a line and answers each with one line of JSON.
//!
//! The process allocates through the SDK, as programs do, and reads memory through the suite's own driver calls in the same primary
//! context. `e2e/actor.rs` is the other side.

mod capture;
mod files;
mod memory;
mod pins;
mod turner;

use std::io::{self, Write as _};

use anyhow::{Context as _, Error, Result, anyhow, bail};
use serde_json::{Value, json};
use vramd_client::{Client, Pinned};

use crate::cuda::{self, Failed, Gpu, Graph};
use memory::Memory;

pub(crate) use turner::run as turner;

#[derive(Default)]
struct Actor {
    // Declared before its session, so that it is dropped first.
    pinned: Option<Pinned>,
    memory: Option<Memory>,
    client: Option<Client>,
    graph: Option<Graph>,
    gpu: Option<Gpu>,
    /// The address of plain memory of this process.
    hog: Option<u64>,
}

pub(crate) fn run() -> Result<()> {
    let mut actor = Actor::default();
    for line in io::stdin().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let answer = actor.answer(command, &words.collect::<Vec<_>>());
        writeln!(io::stdout(), "{}", answer.unwrap_or_else(|error| why(&error)))?;
    }
    Ok(())
}

impl Actor {
    fn answer(&mut self, command: &str, words: &[&str]) -> Result<Value> {
        Ok(match command {
            "open" => {
                let mut builder = Client::builder();
                if !words.is_empty() {
                    builder = builder.devices(words.iter().copied());
                }
                let client = self.client.insert(builder.connect()?);
                json!({ "session": client.session_id().get(), "tenant": client.tenant() })
            }
            "allocate" | "attach" | "attach-fixed" => {
                let client = self.client.as_ref().context("no session is open")?;
                let memory = match command {
                    "allocate" => Memory::allocate(client, words)?,
                    "attach-fixed" => Memory::attach_fixed(client, words.first().context("a name")?)?,
                    _ => Memory::attach(client, words.first().context("a name")?)?,
                };
                self.memory.insert(memory).facts()
            }
            "in-place" => {
                let client = self.client.as_ref().context("no session is open")?;
                files::read(client, self.gpu()?, words.first().context("a path")?)?
            }
            "seal" => {
                let sealed = self.memory.take().context("no memory")?.seal()?;
                self.memory.insert(sealed).facts()
            }
            "free" => {
                self.memory.take().context("no memory")?.free()?;
                json!({})
            }
            "drop" => {
                self.memory = None;
                self.client.as_ref().context("no session is open")?.flush()?;
                json!({})
            }
            "copies" => self.memory.as_mut().context("no memory")?.copies(number(words, 0)?)?,
            "advise" => json!({ "advised": self.memory()?.advise()? }),
            "graph" => {
                self.graph = Some(pins::graph(self.gpu()?, self.memory()?, number(words, 0)?)?);
                json!({})
            }
            "run-graph" => {
                self.gpu()?.run(self.graph.as_ref().context("there is no graph")?)?;
                json!({})
            }
            // The SDK must not leave the context that it used current.
            "current" => json!({ "nothing": cuda::nothing_is_current()? }),
            "captures" => capture::rows(self.client.as_ref().context("no session is open")?, self.gpu()?)?,
            "gpu" => {
                self.gpu = Some(Gpu::open(words.first().copied())?);
                json!({})
            }
            other => match &mut self.memory {
                Some(memory) => {
                    match pins::answer(other, words, memory, &mut self.pinned, self.gpu.as_ref())? {
                        Some(answer) => answer,
                        None => self.check(other, words)?,
                    }
                }
                None => self.check(other, words)?,
            },
        })
    }

    /// Runs a command through the suite's own driver calls.
    fn check(&mut self, command: &str, words: &[&str]) -> Result<Value> {
        match command {
            "hog" => return self.hog(number(words, 0)?),
            "unhog" => {
                let address = self.hog.take().context("there is no hog")?;
                self.gpu()?.free(address)?;
                return Ok(json!({}));
            }
            "fault" => {
                // No allocation has so low an address.
                self.gpu()?.poke(0x10, 1)?;
                return Ok(json!({}));
            }
            _ => {}
        }
        let (gpu, memory) = (self.gpu()?, self.memory()?);
        let (address, bytes) = (memory.address()?, memory.bytes());
        match command {
            "write" => memory::write(gpu, address, bytes, number(words, 0)?)?,
            "fill" => gpu.fill(address, bytes, number(words, 0)?)?,
            "digest" => return Ok(json!({ "digest": memory::digest(gpu, address, bytes)? })),
            "sum" => return Ok(json!({ "sum": gpu.sum(address, bytes)? })),
            "upload" => gpu.upload(address, &number(words, 0)?.to_le_bytes())?,
            "poke" => gpu.poke(address, number(words, 0)?)?,
            "has-ended" => return Ok(json!({ "ended": gpu.aside_has_ended()? })),
            "capture" => return pins::capture(gpu, memory, Some(number(words, 0)?)),
            "replay" => return pins::capture(gpu, memory, None),
            "spin" => gpu.spin(address, bytes, number(words, 0)? * 1_000_000)?,
            other => bail!("`{other}` is no command"),
        }
        Ok(json!({}))
    }

    /// Allocates plain memory until at most `leave` bytes are free.
    fn hog(&mut self, leave: u64) -> Result<Value> {
        let gpu = self.gpu()?;
        let (free, total) = gpu.memory()?;
        let bytes = free.checked_sub(leave).context("less is free already")?;
        let address = gpu.alloc(usize::try_from(bytes)?)?;
        self.hog = Some(address);
        Ok(json!({ "bytes": bytes, "total": total }))
    }

    fn gpu(&self) -> Result<&Gpu> {
        self.gpu.as_ref().context("no GPU is open")
    }

    fn memory(&self) -> Result<&Memory> {
        self.memory.as_ref().context("no memory")
    }
}

fn why(error: &Error) -> Value {
    if let Some(Failed { call, code, name }) = error.downcast_ref() {
        return json!({ "failed": { "call": call, "code": code, "name": name } });
    }
    match error.downcast_ref::<vramd_client::Error>() {
        Some(error) => json!({ "refused": {
            "code": error.code().map(|code| code as i32),
            "reason": error.reason().map(|reason| reason.name()),
            "message": error.to_string(),
            "facts": error.facts(),
        }}),
        None => json!({ "problem": format!("{error:#}") }),
    }
}

fn number(words: &[&str], nth: usize) -> Result<u64> {
    let word = words.get(nth).ok_or_else(|| anyhow!("word {nth} is missing"))?;
    word.parse().with_context(|| format!("`{word}` is no number"))
}
