//! The same steps through the SDK.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use vramd_client::{
    Access, Advice, Allocation, AllocationRequest, Bytes, Client, Error, Pinnable, Pinned, Prefetch,
    PrefetchRequest, Sealed,
};

use crate::{away::Traveller, fork, set::SetUser, small, turns::Turner};

/// The process's objects of the SDK, the latest of each.
#[derive(Default)]
pub(crate) struct Sdk {
    open: Option<Allocation>,
    sealed: Option<Sealed>,
    /// Memory without a handle pin.
    kept: Vec<Sealed>,
    guards: Vec<Pinned>,
    requests: Vec<Prefetch>,
    turner: Option<Turner>,
    set: Option<SetUser>,
    traveller: Option<Traveller>,
    client: Option<Client>,
}

impl Sdk {
    pub(crate) fn answer(&mut self, words: &[&str]) -> Result<Value> {
        let (command, words) = words.split_first().context("a command of the SDK")?;
        if *command == "open" {
            return Ok(match Client::connect() {
                Ok(client) => {
                    let answer = json!({ "session": client.session_id().get(), "tenant": client.tenant() });
                    self.client = Some(client);
                    answer
                }
                Err(error) => refused(&error),
            });
        }
        let client = self.client.as_ref().context("no client is connected")?;
        Ok(match *command {
            "allocate" => match client.allocate(request(words)?) {
                Ok(allocation) => {
                    let answer = json!({ "allocation": allocation.id().get() });
                    self.open = Some(allocation);
                    answer
                }
                Err(error) => refused(&error),
            },
            "write" => {
                let bytes = self.open.as_mut().context("nothing is allocated")?.as_mut_slice()?;
                bytes.copy_from_slice(&vramd_tests::content(bytes.len() as u64, words[0].parse()?));
                json!({})
            }
            "seal" => match self.open.take().context("nothing is allocated")?.seal() {
                Ok(sealed) => {
                    let answer = json!({ "digest": sealed.digest() });
                    self.sealed = Some(sealed);
                    answer
                }
                Err(failed) => refused(&failed.error),
            },
            "attach" => match client.attach(words[0]) {
                Ok(sealed) => {
                    let found = vramd_tests::digest(sealed.as_slice()?);
                    let answer = json!({ "told": sealed.digest(), "found": found });
                    self.sealed = Some(sealed);
                    answer
                }
                Err(error) => refused(&error),
            },
            // The bytes as they are mapped now, even if the daemon has ended.
            "digest" => {
                let open = self.open.as_ref().map(Allocation::as_slice);
                let bytes = open
                    .or_else(|| self.sealed.as_ref().map(Sealed::as_slice))
                    .context("nothing is mapped")??;
                json!({ "digest": vramd_tests::digest(bytes), "address": bytes.as_ptr().addr() })
            }
            "unhold" => {
                self.open.as_mut().context("nothing is allocated")?.unpin()?;
                json!({})
            }
            // Of one that is kept, by its number; else of what is allocated, or of what was kept last.
            "pinned-digest" => {
                let pinned = match (words.first(), &self.open) {
                    (Some(kept), _) => self.kept[kept.parse::<usize>()?].pin(Access::Read)?,
                    (None, Some(open)) => open.pin(Access::Read)?,
                    (None, None) => {
                        self.kept.last().context("nothing is allocated or kept")?.pin(Access::Read)?
                    }
                };
                json!({ "digest": vramd_tests::digest(pinned.as_slice()?) })
            }
            // Pins, compares and rewrites its memory, for this many milliseconds, with a pause of this many
            // microseconds between two pins or without one.
            "pin-for" => {
                let open = self.open.as_ref().context("nothing is allocated")?;
                let (end, mut pins) = (Instant::now() + Duration::from_millis(words[0].parse()?), 0_u64);
                while Instant::now() < end {
                    let mut pinned = open.pin(Access::Write)?;
                    for page in pinned.as_mut_slice()?.chunks_mut(4096) {
                        let (counter, _) = page.split_at_mut(8);
                        ensure!(*counter == pins.to_le_bytes(), "not what was written last");
                        counter.copy_from_slice(&(pins + 1).to_le_bytes());
                    }
                    pins += 1;
                    drop(pinned);
                    if let Some(pause) = words.get(1) {
                        thread::sleep(Duration::from_micros(pause.parse()?));
                    }
                }
                json!({ "pins": pins })
            }
            // Parts and their size in bytes, milliseconds, and the seed.
            "turn" => {
                let (parts, size) = (words[0].parse()?, words[1].parse()?);
                let (span, seed) = (Duration::from_millis(words[2].parse()?), words[3].parse()?);
                self.turner.insert(Turner::new(client, parts, size, seed)?).turn(span)?
            }
            // A working set of so many parts of 2 MiB, with a seed and a name.
            "set" => {
                let set = SetUser::new(client, words[0].parse()?, words[1].parse()?, words[2])?;
                self.set = Some(set);
                json!({})
            }
            "acquire" | "use" | "turn-state" | "yield" | "fork-turn" => {
                let set = self.set.as_mut().context("there is no working set")?;
                match *command {
                    "acquire" => set.acquire().map_or_else(|error| refused(&error), |()| json!({})),
                    "use" => set.use_all()?,
                    "fork-turn" => set.fork()?,
                    "turn-state" => json!({ "state": set.state()? }),
                    _ => {
                        set.yield_turn();
                        json!({})
                    }
                }
            }
            // Compares all of it, and drops it.
            "turned-over" => self.turner.take().context("nothing was turned over")?.compare()?,
            // Adds the memory that was last sealed or attached to those that are pinned by number.
            "keep" => {
                let mut sealed = self.sealed.take().context("nothing is sealed")?;
                sealed.unpin()?;
                self.kept.push(sealed);
                json!({})
            }
            "pin" => {
                let kept = words.iter().map(|word| Ok(&self.kept[word.parse::<usize>()?]));
                let kept = kept.collect::<Result<Vec<_>>>()?;
                let set: Vec<_> = kept.iter().map(|one| (*one as &dyn Pinnable, Access::Read)).collect();
                match client.pin_set(&set) {
                    Ok(pinned) => {
                        self.guards.extend(pinned.into_guards());
                        json!({})
                    }
                    Err(error) => refused(&error),
                }
            }
            // Some parts of the allocation, from the first to before the second number.
            "pin-parts" => {
                let parts = words[0].parse()?..words[1].parse()?;
                match self.open.as_ref().context("nothing is allocated")?.pin_parts(parts, Access::Read) {
                    Ok(pinned) => {
                        let digest = vramd_tests::digest(pinned.as_slice()?);
                        self.guards.push(pinned);
                        json!({ "digest": digest })
                    }
                    Err(error) => refused(&error),
                }
            }
            // Of the allocation, or of the memory that was last sealed or attached: `advise set` or `advise unset`.
            "advise" => {
                let advice = match words[0] {
                    "set" => Advice::SetAccessedBy,
                    "unset" => Advice::UnsetAccessedBy,
                    other => bail!("`{other}` is no advice"),
                };
                let advised = match &self.open {
                    Some(open) => open.advise(advice),
                    None => self.kept.last().context("nothing is allocated or kept")?.advise(advice),
                };
                advised.map_or_else(|error| refused(&error), |()| json!({}))
            }
            "unpin" => {
                drop(self.guards.pop().context("nothing is pinned")?);
                json!({})
            }
            // A child of either kind pins nothing, and drops what it inherited without a trace.
            "fork-pins" => {
                let mut statuses = Vec::new();
                for fork in [fork::fork, fork::raw_clone] {
                    let (kept, guards) = (&self.kept, &mut self.guards);
                    statuses.push(fork::run_by(fork, || {
                        let pins =
                            kept.iter().all(|one| matches!(one.pin(Access::Read), Err(Error::Forked { .. })));
                        let looks =
                            guards.iter().all(|one| matches!(one.as_slice(), Err(Error::Forked { .. })));
                        guards.clear();
                        pins && looks
                    })?);
                }
                json!({ "statuses": statuses })
            }
            // Asks for parts of the allocation ahead of their use, from the first to before the second number.
            "prefetch" => {
                let open = self.open.as_ref().context("nothing is allocated")?;
                let request = PrefetchRequest::new().parts(open, words[0].parse()?..words[1].parse()?);
                match client.prefetch(request) {
                    Ok(asked) => {
                        let answer = json!({ "number": asked.number() });
                        self.requests.push(asked);
                        answer
                    }
                    Err(error) => refused(&error),
                }
            }
            // Waits for the ends of all requests.
            "prefetches" => {
                let states = self.requests.iter().map(|it| Ok(format!("{:?}", it.state()?)));
                json!({ "states": states.collect::<Result<Vec<_>>>()? })
            }
            "prefetched" => {
                let ends = self.requests.drain(..).map(|it| Ok(format!("{:?}", it.wait()?)));
                json!({ "ends": ends.collect::<Result<Vec<_>>>()? })
            }
            // A child of either kind neither sees nor ends the requests that it inherited, and makes none.
            "fork-prefetches" => {
                let mut statuses = Vec::new();
                for fork in [fork::fork, fork::raw_clone] {
                    let (open, requests) = (&self.open, &mut self.requests);
                    statuses.push(fork::run_by(fork, || {
                        let is_foreign = |it: &Prefetch| {
                            let outcomes = [it.state().map(drop), it.wait().map(drop), it.cancel()];
                            outcomes.iter().all(|it| matches!(it, Err(Error::Forked { .. })))
                        };
                        let are_foreign = !requests.is_empty() && requests.iter().all(is_foreign);
                        requests.clear();
                        let asked =
                            open.as_ref().map(|open| client.prefetch(PrefetchRequest::new().all(open)));
                        are_foreign && matches!(asked, Some(Err(Error::Forked { .. })))
                    })?);
                }
                json!({ "statuses": statuses })
            }
            "drop" => {
                (self.open, self.sealed) = (None, None);
                json!({})
            }
            "free" => {
                self.kept.pop().context("nothing is kept")?.free()?;
                json!({})
            }
            "flush" => client.flush().map_or_else(|error| refused(&error), |()| json!({})),
            // A child uses what it inherited: it is refused, and then drops everything.
            "fork" => {
                let Self { open, sealed, client, .. } = std::mem::take(self);
                let child = (client.clone(), &open, &sealed);
                let answer = fork::run(|| {
                    let (client, _, _) = child;
                    let refused = client.as_ref().is_some_and(|client| {
                        matches!(client.list(""), Err(error) if error.reason() == Some(vramd_client::Reason::SessionForeign))
                    });
                    drop(client);
                    refused
                })?;
                *self = Self { open, sealed, client, ..Self::default() };
                answer
            }
            // Memory of every kind that a session may have, with the sealed allocation of this name.
            "travel" => {
                self.traveller = Some(Traveller::new(client, words[0])?);
                json!({})
            }
            "compare" => self.traveller.as_ref().context("nothing travels")?.compare()?,
            "detach-all" => client.detach_all().map_or_else(|error| refused(&error), |()| json!({})),
            "attach-all" => client.attach_all().map_or_else(|error| refused(&error), |()| json!({})),
            "is-away" => json!({ "away": client.is_away() }),
            "hold" | "release" | "slice" | "end-slice" | "unhold-all" => {
                self.traveller.as_mut().context("nothing travels")?.step(command)?
            }
            "try-all" => self.traveller.as_mut().context("nothing travels")?.try_all(client),
            "fork-away" => self.traveller.as_mut().context("nothing travels")?.fork(client)?,
            "small-strict" => small::strict(client, words[0].parse()?)?,
            "small-fork" => small::forked(client)?,
            "limit-fds" => {
                let maximum = getrlimit(Resource::Nofile).maximum;
                setrlimit(Resource::Nofile, Rlimit { current: Some(words[0].parse()?), maximum })?;
                json!({})
            }
            other => bail!("`sdk {other}` is no command of the probe"),
        })
    }
}

/// `SIZE [name=N] [persistent] [reader=T] [part=N] [wait=MILLISECONDS]`
fn request(words: &[&str]) -> Result<AllocationRequest> {
    let size = words.first().context("a size")?.parse()?;
    let mut request = AllocationRequest::new(Bytes::new(size));
    for word in &words[1..] {
        request = match word.split_once('=').unwrap_or((*word, "")) {
            ("name", name) => request.name(name),
            ("persistent", _) => request.persistent(),
            ("reader", tenant) => request.reader(tenant),
            ("part", size) => request.part_size(Bytes::new(size.parse()?)),
            ("wait", millis) => request.wait(Duration::from_millis(millis.parse()?)),
            _ => bail!("`{word}` says nothing about an allocation"),
        };
    }
    Ok(request)
}

pub(crate) fn refused(error: &Error) -> Value {
    json!({ "refused": {
        "code": error.code().map(|code| code as i32),
        "reason": error.reason().map(|reason| reason.name()),
        "message": error.to_string(),
        "facts": error.facts(),
    }})
}
