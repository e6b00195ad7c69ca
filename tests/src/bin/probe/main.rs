//! A client process for tests: one command a line on its input, one line of JSON for each on its output.
//!
//! `open`, `reserve SIZE …`, `receive`, `map`, `acknowledge`, `write ID SEED`, `seal ID`, `attach NAME`, … each do
//! one step of the protocol and then wait, so that a test can kill or stop the process between any two. `last` as ID is
//! the allocation made last.

mod away;
mod fork;
mod sdk;
mod set;
mod small;
mod turns;

use std::{
    collections::BTreeMap,
    env,
    io::{self, Write as _},
    os::{fd::AsFd as _, unix::process::CommandExt as _},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context as _, Result, anyhow, bail};
use sdk::Sdk;
use serde_json::{Value, json};
use vramd_proto::v1::{
    AllocationSpec, DescribeAllocationRequest, GetNodeRequest, Lifetime, PartRef, ReleaseResult, SealRequest,
    SealResponse, UnmapReason, Unmapped, UnmappedPart, client_frame, describe_allocation_request::Target,
};
use vramd_tests::{
    Admin, Pending, Refused,
    session::{Parcel, RawSession, hello, hello_with_pins, spec},
};
use vramd_words::Access;

/// The variable that tells a new image that it was executed at a command, which it answers.
const EXECUTED: &str = "PROBE_EXECUTED";

fn main() -> Result<()> {
    let mut probe = Probe::new()?;
    if env::var_os(EXECUTED).is_some() {
        writeln!(io::stdout(), "{}", json!({}))?;
    }
    for line in io::stdin().lines() {
        let answer = probe.answer(&line?)?;
        writeln!(io::stdout(), "{answer}")?;
    }
    Ok(())
}

struct Probe {
    sockets: PathBuf,
    session: Option<RawSession>,
    /// Received and not mapped.
    parcel: Parcel,
    /// Mapped and not acknowledged.
    unacknowledged: Vec<PartRef>,
    sizes: BTreeMap<u64, u64>,
    /// The allocation that a command means by `last`.
    last: u64,
    sealing: Option<Pending<SealResponse>>,
    sdk: Sdk,
}

impl Probe {
    fn new() -> Result<Self> {
        let sockets = env::var_os("VRAMD_SOCKET_DIR").context("VRAMD_SOCKET_DIR is not set")?.into();
        let (parcel, unacknowledged) = (Parcel::new(), Vec::new());
        Ok(Self {
            sockets,
            session: None,
            parcel,
            unacknowledged,
            sizes: BTreeMap::new(),
            last: 0,
            sealing: None,
            sdk: Sdk::default(),
        })
    }

    /// Executes this program anew in this process. The new image answers in the old one's place.
    fn execute_anew(&self, inheriting: bool) -> Result<Value> {
        if inheriting {
            let session = self.session.as_ref().context("no session is open")?;
            rustix::io::fcntl_setfd(session.channel.as_fd(), rustix::io::FdFlags::empty())?;
        }
        Err(Command::new(env::current_exe()?).env(EXECUTED, "").exec().into())
    }

    fn answer(&mut self, line: &str) -> Result<Value> {
        let last = self.last.to_string();
        let (command, mut words) = words(line);
        words.iter_mut().filter(|word| **word == "last").for_each(|word| *word = &last);
        match command {
            "open" => return self.open(&words),
            "fork" => return fork::holder(),
            "fork-heir" => {
                let session = self.session.as_ref().context("no session is open")?;
                return fork::heir(session.channel.as_fd());
            }
            "exec" => return self.execute_anew(words.first() == Some(&"inheriting")),
            "fork-send" => return self.fork_and_send(number(&words, 0)?),
            "sdk" => return self.sdk.answer(&words),
            "node" => return Ok(self.node()),
            _ => {}
        }
        let session = self.session.as_mut().context("no session is open")?;
        Ok(match command {
            "reserve" | "allocate" => {
                let items = vec![allocation_spec(&words)?];
                let answer = match session.memory.allocate_batch(session.request(items)).wait() {
                    Ok(answer) => answer,
                    Err(status) => return Ok(refused(&Refused::from_status(&status))),
                };
                let allocation = answer.allocations.first().context("one item has one answer")?;
                self.sizes.insert(allocation.allocation_id, allocation.size_bytes);
                self.last = allocation.allocation_id;
                if command == "allocate" {
                    session.map_all(allocation.allocation_id);
                }
                json!({ "allocation": allocation.allocation_id, "charged": allocation.charged_bytes })
            }
            "receive" => {
                self.parcel.extend(session.receive_map());
                json!({ "parts": self.parcel.len() })
            }
            "map" => {
                self.unacknowledged.extend(session.map(std::mem::take(&mut self.parcel)));
                json!({ "parts": self.unacknowledged.len() })
            }
            "acknowledge" => {
                session.acknowledge(std::mem::take(&mut self.unacknowledged));
                json!({})
            }
            "write" => {
                let id = number(&words, 0)?;
                let size = *self.sizes.get(&id).context("not allocated here")?;
                session.write(id, &vramd_tests::content(size, number(&words, 1)?));
                json!({})
            }
            // Asks for the pin, and does not read its answer.
            "begin-seal" => {
                let allocation_id = number(&words, 0)?;
                let request = SealRequest { session_id: session.id(), request_id: Vec::new(), allocation_id };
                self.sealing = Some(session.memory.seal(request));
                session.receive_revoke();
                json!({})
            }
            "seal" => json!({ "digest": session.seal(number(&words, 0)?).digest }),
            // Its first part, by the word alone.
            "pin" => {
                let slot = session.slot(number(&words, 0)?, 0);
                session.word_table().client(slot).pin(Access::Read)?;
                json!({})
            }
            "attach" => {
                let request = session.attach_request(words.first().context("a name")?);
                match session.memory.attach(request).wait() {
                    Err(status) => refused(&Refused::from_status(&status)),
                    Ok(answer) => {
                        let allocation =
                            answer.allocation.context("an answer describes the attached allocation")?;
                        session.map_all(allocation.allocation_id);
                        let digest = session.digest(allocation.allocation_id, allocation.size_bytes);
                        json!({ "allocation": allocation.allocation_id, "told": allocation.digest, "found": digest })
                    }
                }
            }
            "digest" => json!({ "digest": session.digest(number(&words, 0)?, number(&words, 1)?) }),
            "free" => released(session.free(number(&words, 0)?)),
            "detach" => released(session.detach(number(&words, 0)?)),
            "describe" => {
                let target = Some(Target::AllocationId(number(&words, 1)?));
                let request = DescribeAllocationRequest { session_id: number(&words, 0)?, target };
                match session.memory.describe_allocation(request).wait() {
                    Ok(answer) => json!({ "name": answer.allocation.unwrap_or_default().name }),
                    Err(status) => refused(&Refused::from_status(&status)),
                }
            }
            "close" => {
                self.session = None;
                json!({})
            }
            other => bail!("`{other}` is no command of the probe"),
        })
    }

    fn open(&mut self, words: &[&str]) -> Result<Value> {
        let (mut hello, words) = match words.split_first() {
            Some((&"pins", words)) => (hello_with_pins(), words),
            _ => (hello(), words),
        };
        hello.client_name = "probe".to_owned();
        hello.unmapped_session_ids = words.iter().map(|word| Ok(word.parse()?)).collect::<Result<_>>()?;
        Ok(match RawSession::open_with(&self.sockets, hello) {
            Err(why) => refused(&why),
            Ok(session) => {
                let answer = json!({ "session": session.id(), "tenant": session.tenant() });
                self.session = Some(session);
                answer
            }
        })
    }

    /// Has a forked child report on the inherited channel that a part is unmapped.
    fn fork_and_send(&self, allocation_id: u64) -> Result<Value> {
        let session = self.session.as_ref().context("no session is open")?;
        let part = Some(PartRef { allocation_id, part_index: 0 });
        let part = UnmappedPart { part, reason: UnmapReason::Done.into(), ..UnmappedPart::default() };
        let frame = client_frame::Frame::Unmapped(Unmapped { parts: vec![part] });
        fork::run(|| session.channel.send(frame).is_ok())
    }

    /// Sends a request that only operators may send.
    fn node(&self) -> Value {
        match Admin::new(&self.sockets).get_node(GetNodeRequest {}).wait() {
            Ok(node) => json!({ "driver": node.driver }),
            Err(status) => refused(&Refused::from_status(&status)),
        }
    }
}

/// `SIZE [name=N] [persistent] [readers=A,B] [part=N] [device=D]`
fn allocation_spec(words: &[&str]) -> Result<AllocationSpec> {
    let mut spec: AllocationSpec = spec(number(words, 0)?);
    for word in words.iter().skip(1) {
        match word.split_once('=').unwrap_or((*word, "")) {
            ("name", name) => spec.name = Some(name.to_owned()),
            ("persistent", _) => spec.lifetime = Lifetime::Persistent.into(),
            ("readers", readers) => spec.readers = readers.split(',').map(str::to_owned).collect(),
            ("part", size) => spec.part_size_bytes = Some(size.parse()?),
            ("device", device) => spec.device = Some(device.to_owned()),
            ("uninitialized", _) => spec.uninitialized = true,
            _ => bail!("`{word}` says nothing about an allocation"),
        }
    }
    Ok(spec)
}

fn words(line: &str) -> (&str, Vec<&str>) {
    let mut words = line.split_whitespace();
    (words.next().unwrap_or_default(), words.collect())
}

fn number(words: &[&str], nth: usize) -> Result<u64> {
    let word = words.get(nth).ok_or_else(|| anyhow!("word {nth} is missing"))?;
    word.parse().with_context(|| format!("`{word}` is no number"))
}

fn released(result: ReleaseResult) -> Value {
    match result.error {
        Some(error) => refused(&Refused::from_item(error)),
        None => json!({ "still_charged": result.still_charged_bytes, "mappers": result.mapper_count }),
    }
}

fn refused(refused: &Refused) -> Value {
    json!({ "refused": {
        "code": i32::from(refused.code), "reason": refused.reason, "message": refused.message, "facts": refused.facts,
    }})
}
