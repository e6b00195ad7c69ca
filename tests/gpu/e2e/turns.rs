//! Three tenants that together own several times what the daemon may hand out. Idle memory makes room, and every byte stays where kernels
//! wrote it, while clients are killed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vramd_proto::v1::Tier;
use vramd_tests::{
    Config, Daemon, MIB, MIB_2, Probe, is_root,
    moves::{disk_io_bytes, has_returned},
    wait::{eventually, until},
};

use crate::bench::Driver;

const TENANTS: [(u32, &str); 3] = [(20_001, "first"), (20_002, "second"), (20_003, "third")];
/// Longer than any run, so that a client that is to be killed does not end by itself.
const NO_END: Duration = Duration::from_secs(600);

/// The tiers for memory that does not fit on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Below {
    Host,
    /// Host and disk, with a host tier for less than half of the memory.
    HostAndDisk,
}

/// The amount of memory, the duration of use, and the least number of moves.
struct Scale {
    driver: Driver,
    below: Below,
    part: u64,
    /// The memory of each client.
    parts: u64,
    span: Duration,
    moves_min: f64,
}

/// One lasting client of each tenant takes turns. Beside it other clients of the same tenants start, use as much memory, and are killed at
/// any point.
pub(super) fn three_tenants(driver: Driver, below: Below, quick: bool) -> Value {
    let scale = Scale::new(driver, below, quick);
    let daemon = Daemon::start(&scale.config());
    let before = disk_io_bytes(&daemon);
    let mut residents: Vec<_> =
        TENANTS.iter().map(|(uid, _)| scale.client(&daemon, *uid, scale.span)).collect();
    let (begun, mut killed) = (Instant::now(), 0_u64);
    let lowest = scale.below.lowest();
    for ((uid, _), comes_back) in TENANTS.iter().cycle().zip([false, true].into_iter().cycle()) {
        kill_one(&scale, &daemon, *uid, comes_back.then_some(lowest));
        killed += 1;
        if begun.elapsed() > scale.span * 3 / 4 {
            break;
        }
    }
    // A client ends with an error if a byte is not what it wrote.
    let reports: Vec<_> = residents.iter_mut().map(|client| client.listen("its turns")).collect();
    // Comparing all memory fetches all of it.
    let moves = moved(&daemon);
    assert!(moves >= scale.moves_min, "{moves} moves for {reports:?}");
    residents.iter_mut().for_each(|client| client.tell("compare"));
    let reports: Vec<_> = residents.iter_mut().map(|client| client.listen("a look at all of it")).collect();
    residents.into_iter().for_each(Probe::leave);
    daemon.drains();
    let state = daemon.state();
    assert_eq!(state.node.invariant_violations, 0, "{state:?}");
    let [to_disk, from_disk] = [0, 1].map(|way| disk_io_bytes(&daemon)[way] - before[way]);
    let has_disk = below == Below::HostAndDisk;
    assert_eq!([to_disk > 0, from_disk > 0], [has_disk; 2], "{to_disk} and {from_disk} bytes");
    assert!(daemon.stop().0.success(), "the daemon ends well");
    json!({
        "tenants": if is_root() { TENANTS.len() } else { 1 },
        "device_bytes": scale.device(), "capacity_bytes": state.devices[0].capacity_bytes,
        "bytes_of_each_client": scale.owned(), "clients": reports, "killed": killed, "moves": moves,
        "to_disk_bytes": to_disk, "from_disk_bytes": from_disk,
    })
}

/// Starts one more client and kills it in the middle of its work, or once one of its parts was in that tier and has come back.
#[track_caller]
fn kill_one(scale: &Scale, daemon: &Daemon, uid: u32, comes_back: Option<Tier>) {
    let client = scale.client(daemon, uid, NO_END);
    let pid = client.pid();
    let uses = || {
        let mut sessions = daemon.state().sessions.into_iter();
        sessions.find(|session| session.pid == pid && session.mapped_bytes > 0)
    };
    let session = eventually("it has memory and uses it", uses).session_id;
    if let Some(tier) = comes_back {
        until("some of it was there, and is back", || has_returned(daemon, session, tier));
    }
    let held = daemon.state().charged();
    assert!(held <= scale.device(), "{held} bytes are handed out, and {} are there", scale.device());
    client.kill();
    until("it is gone", || daemon.state().sessions.iter().all(|session| session.pid != pid));
}

/// Returns how many parts have arrived, by the daemon's counters.
#[track_caller]
fn moved(daemon: &Daemon) -> f64 {
    let scrape = daemon.metrics();
    let done = |line: &&str| line.starts_with("vramd_migrations_total{") && line.contains("\"moved\"");
    scrape.lines().filter(done).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

impl Below {
    const fn lowest(self) -> Tier {
        match self {
            Self::Host => Tier::Host,
            Self::HostAndDisk => Tier::Disk,
        }
    }
}

impl Scale {
    fn new(driver: Driver, below: Below, quick: bool) -> Self {
        let part = match driver {
            Driver::Cuda => 64 * MIB,
            Driver::Sim => MIB_2,
        };
        let parts = match (driver, below) {
            (Driver::Cuda, Below::Host) => 64,
            (Driver::Cuda, Below::HostAndDisk) => 60,
            (Driver::Sim, Below::Host) => 12,
            (Driver::Sim, Below::HostAndDisk) => 30,
        };
        let (seconds, moves_min) = match (driver, quick) {
            (Driver::Cuda, false) => (30, 2_000.0),
            (Driver::Cuda, true) => (8, 400.0),
            (Driver::Sim, false) => (12, 100.0),
            (Driver::Sim, true) => (5, 50.0),
        };
        let moves_min = match (driver, below) {
            // Enough for a disk of 1 GB/s.
            (Driver::Cuda, Below::HostAndDisk) => moves_min / 10.0,
            _ => moves_min,
        };
        Self { driver, below, part, parts, span: Duration::from_secs(seconds), moves_min }
    }

    /// How many times the device the lasting clients own.
    fn times(&self) -> u64 {
        match self.below {
            Below::Host => 4,
            Below::HostAndDisk => 10,
        }
    }

    fn owned(&self) -> u64 {
        self.parts * self.part
    }

    fn device(&self) -> u64 {
        self.owned() * TENANTS.len() as u64 / self.times()
    }

    /// Room for the lasting clients, one beside them, and memory of the one before that the driver has not returned yet.
    fn all_below(&self) -> u64 {
        self.owned() * (TENANTS.len() as u64 + 2)
    }

    fn host(&self) -> u64 {
        match self.below {
            Below::Host => self.all_below(),
            Below::HostAndDisk => 3 * self.device(),
        }
    }

    fn config(&self) -> Config {
        let config = match self.driver {
            Driver::Cuda => {
                // The reserve for contexts is taken from the share too.
                let reserve = Daemon::start(&Config::cuda()).state().devices[0].context_reserve_bytes;
                Config::cuda().memory(&format!("device_share = \"{}\"", self.device() + reserve))
            }
            Driver::Sim => Config::devices(&[&self.device().to_string()]),
        };
        let config =
            config.memory(&format!("part_size = \"{}\"\nhost_size = \"{}\"", self.part, self.host()));
        let config = match self.below {
            Below::Host => config,
            Below::HostAndDisk => config.disk(&self.all_below().to_string()),
        };
        let config = config.telemetry("prometheus_listen = \"127.0.0.1:0\"");
        TENANTS.iter().fold(config, |config, (uid, tenant)| config.tenant(*uid, tenant))
    }

    /// Starts a process of that user, if the suite may switch users.
    #[track_caller]
    fn client(&self, daemon: &Daemon, uid: u32, span: Duration) -> Probe {
        let words =
            format!("turner {} {} {} {}", self.driver.name(), self.parts, self.part, span.as_millis());
        let words: Vec<_> = words.split(' ').collect();
        Probe::start_program("gpu-suite", &words, &daemon.sockets(), is_root().then_some(uid))
    }
}
