//! Clients that live while others die, and compare their bytes all the time.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use serde_json::Value;
use vramd_tests::{Daemon, MIB, Probe, content, digest};
use vramd_types::Reason;

use crate::plan::TENANTS;

/// Between two comparisons, to leave the processor to others.
const PAUSE: Duration = Duration::from_millis(100);
/// The size of memory that stays unchanged. Odd, so that it ends within a part.
const SIZE: u64 = 3 * MIB + 12_345;
/// The size of memory that is rewritten each time.
const REWRITTEN_SIZE: u64 = 200_001;
const NAME: &str = "weights";

#[derive(Debug)]
pub(crate) struct Survivors {
    all: Vec<Survivor>,
    target: String,
}

#[derive(Debug)]
struct Survivor {
    probe: Probe,
    role: Role,
    checks: u64,
}

#[derive(Debug)]
enum Role {
    /// Has sealed memory that every tenant may read.
    Owner { id: u64, digest: String },
    /// Maps that memory.
    Reader { id: u64, digest: String },
    /// Rewrites its own memory.
    Writer { id: u64, seed: u64 },
    /// Allocates, writes, seals and frees.
    Busy { round: u64 },
    /// Maps through the SDK.
    Sdk { digest: String },
    /// The same, and pins its own or sealed memory only while it compares.
    Pins { digest: String },
    /// The same as the owner of the sealed memory.
    PinsOwn { digest: String },
    /// Allocates, and uses the memory in turns.
    Turns { round: u64 },
}

impl Survivors {
    pub(crate) fn new(daemon: &Daemon) -> Self {
        let written = digest(&content(SIZE, 1));
        let open = |uid: Option<u32>| {
            let mut probe = uid.map_or_else(|| daemon.probe(), |uid| daemon.probe_as(uid));
            let tenant = probe.ask("open")["tenant"].as_str().expect("a session has a tenant").to_owned();
            (probe, tenant)
        };
        let (mut owner, tenant) = open(None);
        let id =
            number(&owner.ask(&format!("allocate {SIZE} name={NAME} persistent readers=* part=2097152")));
        owner.ask(&format!("write {id} 1"));
        assert_eq!(owner.ask(&format!("seal {id}"))["digest"], written);
        let target = format!("{tenant}/{NAME}");
        let mut all = vec![Survivor::new(owner, Role::Owner { id, digest: written.clone() })];

        let others = TENANTS.iter().map(|&(uid, _)| vramd_tests::is_root().then_some(uid));
        for uid in others {
            let (mut reader, _) = open(uid);
            assert_eq!(reader.ask(&format!("attach {target}"))["found"], written);
            all.push(Survivor::new(reader, Role::Reader { id, digest: written.clone() }));
        }
        let (mut writer, _) = open(None);
        let own = number(&writer.ask(&format!("allocate {REWRITTEN_SIZE}")));
        all.push(Survivor::new(writer, Role::Writer { id: own, seed: 0 }));
        all.push(Survivor::new(open(None).0, Role::Busy { round: 0 }));

        let by_sdk = |seed| {
            let mut sdk = daemon.probe();
            sdk.ask("sdk open");
            sdk.ask(&format!("sdk allocate {SIZE} part=2097152"));
            sdk.ask(&format!("sdk write {seed}"));
            (sdk, digest(&content(SIZE, seed)))
        };
        let (sdk, digest) = by_sdk(2);
        all.push(Survivor::new(sdk, Role::Sdk { digest }));
        let (mut pins, digest) = by_sdk(3);
        pins.ask("sdk unhold");
        all.push(Survivor::new(pins, Role::Pins { digest }));
        Self { all, target }
    }

    /// Survivors without handle pins, so that all their memory can move.
    pub(crate) fn unpinned(daemon: &Daemon) -> Self {
        let written = digest(&content(SIZE, 1));
        let open = |uid: Option<u32>| {
            let mut probe = uid.map_or_else(|| daemon.probe(), |uid| daemon.probe_as(uid));
            let tenant = probe.ask("sdk open")["tenant"].as_str().expect("a session has a tenant").to_owned();
            (probe, tenant)
        };
        let (mut owner, tenant) = open(None);
        owner.ask(&format!("sdk allocate {SIZE} name={NAME} persistent reader=* part=2097152"));
        owner.ask("sdk write 1");
        assert_eq!(owner.ask("sdk seal")["digest"], written);
        owner.ask("sdk keep");
        let target = format!("{tenant}/{NAME}");
        let mut all = vec![Survivor::new(owner, Role::PinsOwn { digest: written.clone() })];

        // In the tenants of the victims beside them.
        for uid in TENANTS.iter().map(|&(uid, _)| vramd_tests::is_root().then_some(uid)) {
            let (mut reader, _) = open(uid);
            reader.ask(&format!("sdk attach {target}"));
            reader.ask("sdk keep");
            all.push(Survivor::new(reader, Role::Pins { digest: written.clone() }));
            let (mut writer, _) = open(uid);
            let seed = 2 + all.len() as u64;
            writer.ask(&format!("sdk allocate {SIZE} part=2097152"));
            writer.ask(&format!("sdk write {seed}"));
            writer.ask("sdk unhold");
            all.push(Survivor::new(writer, Role::Pins { digest: digest(&content(SIZE, seed)) }));
            all.push(Survivor::new(open(uid).0, Role::Turns { round: 0 }));
        }
        Self { all, target }
    }

    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    /// How often bytes were compared.
    pub(crate) fn checks(&self) -> u64 {
        self.all.iter().map(|survivor| survivor.checks).sum()
    }

    /// Runs each survivor on a thread of its own until `over`, and then once more.
    pub(crate) fn run_until(&mut self, over: &AtomicBool) {
        thread::scope(|scope| {
            for survivor in &mut self.all {
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        survivor.check();
                        thread::sleep(PAUSE);
                    }
                    survivor.check();
                });
            }
        });
    }

    pub(crate) fn leave(self) {
        // Readers leave first, so that none is asked to unmap memory that its owner frees.
        for Survivor { mut probe, role, .. } in self.all.into_iter().rev() {
            match role {
                Role::Owner { id, .. } => drop(probe.ask(&format!("free {id}"))),
                Role::PinsOwn { .. } => drop(probe.ask("sdk free")),
                _ => {}
            }
            probe.leave();
        }
    }
}

impl Survivor {
    fn new(probe: Probe, role: Role) -> Self {
        Self { probe, role, checks: 0 }
    }

    fn check(&mut self) {
        let probe = &mut self.probe;
        match &mut self.role {
            Role::Owner { id, digest } | Role::Reader { id, digest } => {
                assert_eq!(
                    probe.ask(&format!("digest {id} {SIZE}"))["digest"],
                    *digest,
                    "sealed bytes changed"
                );
            }
            Role::Writer { id, seed } => {
                let before = digest(&content(REWRITTEN_SIZE, *seed));
                if *seed > 0 {
                    assert_eq!(
                        probe.ask(&format!("digest {id} {REWRITTEN_SIZE}"))["digest"],
                        before,
                        "bytes changed"
                    );
                }
                *seed += 1;
                probe.ask(&format!("write {id} {seed}"));
            }
            Role::Busy { round } => {
                *round += 1;
                let allocated =
                    probe.answer(&format!("allocate {REWRITTEN_SIZE} name=busy-{round} persistent"));
                if allocated["refused"]["reason"] == Reason::Draining.name() {
                    return;
                }
                let id = number(&allocated);
                probe.ask(&format!("write {id} {round}"));
                let written = digest(&content(REWRITTEN_SIZE, *round));
                assert_eq!(probe.ask(&format!("seal {id}"))["digest"], written, "sealed other bytes");
                let found = &probe.ask(&format!("digest {id} {REWRITTEN_SIZE}"))["digest"];
                assert_eq!(*found, written, "bytes changed");
                probe.ask(&format!("free {id}"));
            }
            Role::Sdk { digest } => {
                assert_eq!(probe.ask("sdk digest")["digest"], *digest, "bytes changed");
            }
            Role::Pins { digest } | Role::PinsOwn { digest } => {
                assert_eq!(probe.ask("sdk pinned-digest")["digest"], *digest, "bytes changed");
            }
            Role::Turns { round } => {
                *round += 1;
                // The process ends with an error if a byte differs.
                probe.ask(&format!("sdk turn 3 2097152 50 {round}"));
                assert_eq!(probe.ask("sdk turned-over")["compared"], 3);
            }
        }
        self.checks += 1;
    }
}

fn number(answer: &Value) -> u64 {
    answer["allocation"].as_u64().unwrap_or_else(|| panic!("nothing was allocated: {answer}"))
}
