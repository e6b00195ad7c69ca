//! `DescribeAllocation`, one call in flight, beside the bare echo, the SDK's own call, and a ping-pong.

use std::{
    fs,
    io::{self, Write as _},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use prost::Message as _;
use serde_json::json;
use tempfile::TempDir;
use vramd_client::{AllocationId, Client};
use vramd_proto::v1::DescribeAllocationResponse;
use vramd_tests::{Config, Daemon, MIB, RawSession, session::persistent};

use crate::{
    bare::Bare,
    caller::Caller,
    load,
    ping_pong::Pinger,
    report::Results,
    samples::{Figures, Samples, micros},
};

const TARGET: f64 = 1.5;

/// How many calls a run makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) pairs: usize,
    warm_up: usize,
    calls: usize,
}

const FULL: Extent = Extent { pairs: 9, warm_up: 2_000, calls: 20_000 };
const QUICK: Extent = Extent { pairs: 3, warm_up: 200, calls: 2_000 };

/// The daemon and the bare processes beside it. All of them run from start to end.
pub(crate) struct Scene {
    pub(crate) daemon: Daemon,
    pub(crate) session: RawSession,
    pub(crate) allocation: u64,
    pub(crate) folder: TempDir,
    _echo: Bare,
    _ping_pong: Bare,
}

impl Scene {
    /// Creates a named allocation of two parts, and an echo that gives the daemon's answer.
    fn set() -> Result<Self> {
        let daemon = Daemon::start(&Config::default());
        let mut session = daemon.open();
        let allocation = session.allocate(persistent("bench", 512 * MIB)).allocation_id;
        let ours =
            Caller::connect(&daemon.sockets().join("vramd.sock"), session.id(), allocation)?.answer()?;
        ensure!(ours.parts.len() == 2, "{} parts", ours.parts.len());
        let folder = tempfile::tempdir()?;
        let answer = folder.path().join("answer");
        let response = DescribeAllocationResponse { allocation: Some(ours.clone()) };
        fs::write(&answer, response.encode_to_vec())?;
        let echo = Bare::start("echo", &folder.path().join("echo.sock"), &[answer.as_os_str()])?;
        let ping_pong = Bare::start("ping-pong", &folder.path().join("ping-pong.sock"), &[])?;
        let scene = Self { daemon, session, allocation, folder, _echo: echo, _ping_pong: ping_pong };
        ensure!(scene.bare(scene.session.id())?.answer()? == ours, "the echo's answer is not the daemon's");
        Ok(scene)
    }

    /// Connects a client to the daemon.
    pub(crate) fn ours(&self, session: u64) -> Result<Caller> {
        Caller::connect(&self.daemon.sockets().join("vramd.sock"), session, self.allocation)
    }

    /// Connects a client to the echo.
    pub(crate) fn bare(&self, session: u64) -> Result<Caller> {
        Caller::connect(&self.folder.path().join("echo.sock"), session, self.allocation)
    }
}

pub(crate) fn run(quick: bool) -> Result<Results> {
    let scene = Scene::set()?;
    let extent = if quick { QUICK } else { FULL };
    let one = one_in_flight(&scene, extent)?;
    let many = load::run(&scene, extent.pairs, quick)?;
    Ok(Results {
        keys: vec![("describe_ratio", one.ratio)],
        name: "describe",
        details: json!({ "one_in_flight": one.details, "clients_at_once": many }),
    })
}

struct Measured {
    ratio: f64,
    details: serde_json::Value,
}

/// Runs the four sides in turns. In each pair the daemon and the bare echo swap the first place.
fn one_in_flight(scene: &Scene, extent: Extent) -> Result<Measured> {
    let (mut ours, mut bare) = (scene.ours(scene.session.id())?, scene.bare(scene.session.id())?);
    let mut pinger = Pinger::connect(&scene.folder.path().join("ping-pong.sock"))?;
    let sdk = Client::builder().socket_dir(scene.daemon.sockets()).connect()?;
    let mut taken = Taken::default();
    for pair in 0..extent.pairs {
        if pair % 2 == 0 {
            taken.ours.push(extent.take(|calls| ours.time(calls))?);
            taken.bare.push(extent.take(|calls| bare.time(calls))?);
        } else {
            taken.bare.push(extent.take(|calls| bare.time(calls))?);
            taken.ours.push(extent.take(|calls| ours.time(calls))?);
        }
        taken.sdk.push(extent.take(|calls| time_sdk(&sdk, scene.allocation, calls))?);
        taken.ping_pong.push(extent.take(|calls| pinger.time(calls))?);
    }
    taken.summarize(extent)
}

fn time_sdk(client: &Client, allocation: u64, calls: usize) -> Result<Vec<Duration>> {
    let call = |_| {
        let started = Instant::now();
        let info = client.describe(AllocationId::from_raw(allocation))?;
        let took = started.elapsed();
        ensure!(info.parts.len() == 2, "{} parts", info.parts.len());
        Ok(took)
    };
    (0..calls).map(call).collect()
}

impl Extent {
    /// Makes the warm-up calls, then times the calls that count.
    fn take(self, mut time: impl FnMut(usize) -> Result<Vec<Duration>>) -> Result<Samples> {
        time(self.warm_up)?;
        Ok(Samples::new(time(self.calls)?))
    }
}

/// The timed calls of each side, one block for each pair.
#[derive(Default)]
struct Taken {
    ours: Vec<Samples>,
    bare: Vec<Samples>,
    sdk: Vec<Samples>,
    ping_pong: Vec<Samples>,
}

impl Taken {
    fn summarize(&self, extent: Extent) -> Result<Measured> {
        let medians =
            |side: &[Samples]| -> Vec<f64> { side.iter().map(|block| micros(block.median())).collect() };
        let (ours, bare) = (medians(&self.ours), medians(&self.bare));
        let (sdk, ping_pong) = (medians(&self.sdk), medians(&self.ping_pong));
        let ratio = Figures::ratios(&ours, &bare);
        let sdk_ratio = Figures::ratios(&sdk, &bare);
        let ping_pong_ratio = Figures::ratios(&ours, &ping_pong);
        let verdict = if ratio.median() <= TARGET { "within" } else { "MISSED" };
        let middle = |medians: &[f64]| Figures::new(medians.iter().copied()).median();
        let mut out = io::stdout();
        writeln!(
            out,
            "describe  {} times the bare echo; ours {:.1} us, bare {:.1} us; target {TARGET}: {verdict}",
            ratio.text(),
            middle(&ours),
            middle(&bare),
        )?;
        writeln!(
            out,
            "          {} times a ping-pong of 64 bytes, {:.1} us",
            ping_pong_ratio.text(),
            middle(&ping_pong)
        )?;
        writeln!(
            out,
            "          by the SDK {} times the bare echo, {:.1} us",
            sdk_ratio.text(),
            middle(&sdk)
        )?;
        let blocks = |side: &[Samples]| side.iter().map(Samples::json).collect::<Vec<_>>();
        let details = json!({
            "target": TARGET, "pairs": extent.pairs, "warm_up_calls": extent.warm_up, "calls": extent.calls,
            "ratio_to_echo": ratio.json(),
            "ratio_to_ping_pong": ping_pong_ratio.json(),
            "sdk_ratio_to_echo": sdk_ratio.json(),
            "ours": blocks(&self.ours), "echo": blocks(&self.bare),
            "sdk": blocks(&self.sdk), "ping_pong": blocks(&self.ping_pong),
        });
        Ok(Measured { ratio: ratio.median(), details })
    }
}
