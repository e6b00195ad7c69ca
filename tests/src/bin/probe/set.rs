//! A program that uses a working set in turns.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vramd_client::{
    Access, Allocation, AllocationRequest, Bytes, Client, Error, Turn, TurnState, WorkingSet,
};
use vramd_tests::{MIB_2, content, digest};

use crate::fork;

pub(crate) struct SetUser {
    memory: Allocation,
    seed: u64,
    set: WorkingSet,
    turn: Option<Turn>,
}

impl SetUser {
    /// Allocates and writes the memory of the set.
    pub(crate) fn new(client: &Client, parts: u64, seed: u64, name: &str) -> Result<Self> {
        let request = AllocationRequest::new(Bytes::new(parts * MIB_2)).part_size(Bytes::mib(2)).unpinned();
        let mut memory = client.allocate(request)?;
        memory.copy_from_host(0, &content(parts * MIB_2, seed))?;
        let set = client.working_set(name, &[&memory])?;
        Ok(Self { memory, seed, set, turn: None })
    }

    pub(crate) fn acquire(&mut self) -> vramd_client::Result<()> {
        self.turn = Some(self.set.acquire()?);
        Ok(())
    }

    /// Pins all of the set, compares what was written last, and writes something else.
    pub(crate) fn use_all(&mut self) -> Result<Value> {
        let mut pinned = self.memory.pin(Access::Write)?;
        let bytes = pinned.as_mut_slice()?;
        let size = bytes.len() as u64;
        ensure!(digest(bytes) == digest(&content(size, self.seed)), "not what was written last");
        self.seed += 1;
        bytes.copy_from_slice(&content(size, self.seed));
        Ok(json!({ "compared": size }))
    }

    pub(crate) fn state(&self) -> Result<&'static str> {
        Ok(match self.turn.as_ref().context("it has no turn")?.state() {
            TurnState::Held => "held",
            TurnState::Ending { .. } => "ending",
            TurnState::Lost(_) => "lost",
            TurnState::Yielded => "yielded",
        })
    }

    /// A child of either kind has no turn: it gets none, and to drop what it inherited yields nothing.
    pub(crate) fn fork(&mut self) -> Result<Value> {
        let mut statuses = Vec::new();
        for fork in [fork::fork, fork::raw_clone] {
            let (set, turn) = (&self.set, &mut self.turn);
            statuses.push(fork::run_by(fork, || {
                let is_refused = matches!(set.acquire(), Err(Error::Forked { .. }));
                let had = turn.take();
                had.as_ref().inspect(|turn| turn.yield_now()).is_some() && is_refused
            })?);
        }
        Ok(json!({ "statuses": statuses }))
    }

    pub(crate) fn yield_turn(&mut self) {
        self.turn = None;
    }
}
