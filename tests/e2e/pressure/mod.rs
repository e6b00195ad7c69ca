//! Levels of pressure: the clients that are told, and what the daemon does before it refuses a request.

mod cached;
mod host;
mod line;

use std::{
    fmt::Debug,
    str::FromStr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client, Pressure, PressureLevel};
use vramd_proto::v1::{EventKind, MoveCause, Tier, WatchRequest, daemon_frame, watch_response::Event};
use vramd_tests::{
    Config, Daemon, MIB, MIB_2, RawSession, Watching,
    channel::Packet,
    other_programs::take_device_memory,
    session::hello_with_pins,
    wait::{PATIENCE, always, eventually, until},
};

use crate::moves::operators::list::listed as moves;

/// One hundred parts: one part is one percent.
const DEVICE: &str = "200MiB";
pub(crate) const MEASURED: &str = "prometheus_listen = \"127.0.0.1:0\"";

/// The reports to a client's callback about its device, in order.
type Heard = Arc<Mutex<Vec<Pressure>>>;

fn listening(daemon: &Daemon) -> (Client, Heard) {
    let heard = Heard::default();
    let ears = Arc::clone(&heard);
    let builder = Client::builder().socket_dir(daemon.sockets()).request_timeout(PATIENCE);
    let client = builder.on_pressure(move |told| ears.lock().unwrap().push(told)).connect().unwrap();
    (client, heard)
}

fn quiet(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).request_timeout(PATIENCE).connect().unwrap()
}

/// The levels of one tier, in order.
fn levels(heard: &Heard, tier: Tier) -> Vec<PressureLevel> {
    let heard = heard.lock().unwrap();
    let mut levels: Vec<_> = heard.iter().filter(|told| told.tier == tier).map(|told| told.level).collect();
    levels.dedup();
    levels
}

fn last(heard: &Heard) -> Option<PressureLevel> {
    levels(heard, Tier::Device).pop()
}

fn watching(daemon: &Daemon) -> Watching {
    let request = WatchRequest { kinds: vec![EventKind::Pressure.into()], ..Default::default() };
    Watching::start(&daemon.admin, request).unwrap()
}

fn listed(daemon: &Daemon) -> Value {
    let output = daemon.vramctl().args(["device", "list", "--json"]).output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["devices"][0].clone()
}

/// The value of the series whose labels contain all of these.
pub(crate) fn metric<T: FromStr<Err: Debug>>(daemon: &Daemon, name: &str, labels: &[&str]) -> Option<T> {
    let text = daemon.metrics();
    let series = text.lines().filter_map(|line| line.rsplit_once(' '));
    let of = series.filter(|(series, _)| series.split('{').next() == Some(name));
    let of: Vec<_> = of.filter(|(series, _)| labels.iter().all(|label| series.contains(label))).collect();
    // Series of the same labels and others begin at zero.
    let (_, value) = of.iter().find(|(_, value)| *value != "0").or_else(|| of.first())?;
    Some(value.parse().expect("a value of that kind"))
}

/// Parts of 2 MiB, this many percent of the device.
fn percent(count: u64) -> AllocationRequest {
    AllocationRequest::new(Bytes::new(count * MIB_2)).part_size(Bytes::mib(2))
}

/// Each part is filled with its own number.
fn content(parts: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in 1..=parts {
        bytes.resize(bytes.len() + usize::try_from(MIB_2).unwrap(), part);
    }
    bytes
}

/// Checks that every view of operators and clients has this level.
#[track_caller]
fn is_seen(daemon: &Daemon, clients: [&Client; 2], heard: &Heard, held: u64, level: PressureLevel) {
    until("this much is charged", || daemon.state().charged() == held * MIB_2);
    let name = level.as_str_name().trim_start_matches("PRESSURE_LEVEL_").to_lowercase();
    assert_eq!(listed(daemon)["pressure"], json!(name), "{held}");
    for client in clients {
        until("the client is told", || client.pressure(None).unwrap().level == level);
    }
    until("the callback is told", || last(heard) == Some(level));
    let step = [PressureLevel::Normal, PressureLevel::Elevated, PressureLevel::High, PressureLevel::Critical];
    let step = step.iter().zip(0..).find(|(it, _)| **it == level).map(|(_, step)| step);
    let on_device = ["vramd_tier=\"device\""];
    assert_eq!(metric(daemon, "vramd_pressure_level", &on_device), step, "{held}");
    let shown = |name: &str| metric::<f64>(daemon, name, &on_device);
    until("the factor and the forecast are shown as they were told", || {
        let told = clients[0].pressure(None).unwrap();
        let full_in = told.full_in.map(|time| time.as_secs_f64());
        (shown("vramd_pressure_batch_factor_ratio"), shown("vramd_pressure_full_in_seconds"))
            == (Some(told.batch_factor), full_in)
    });
}

#[test]
fn levels_end_three_points_below_where_they_begin() {
    use PressureLevel::{Critical, Elevated, High, Normal};
    let daemon = Daemon::start(&Config::devices(&[DEVICE]).telemetry(MEASURED));
    let mut watch = watching(&daemon);
    let (client, heard) = listening(&daemon);
    let other = quiet(&daemon);
    is_seen(&daemon, [&client, &other], &heard, 0, Normal);
    let mut all: Vec<Allocation> = Vec::new();
    let rising = [(79, Normal), (80, Elevated), (89, Elevated), (90, High), (94, High), (95, Critical)];
    for (held, level) in rising {
        let more = held - all.len();
        all.extend(client.allocate_batch(vec![percent(1); more]).unwrap());
        is_seen(&daemon, [&client, &other], &heard, held as u64, level);
    }
    let output = daemon.vramctl().args(["device", "list"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("PRESSURE") && text.contains("critical/-/-"), "{text}");
    let falling = [(92, Critical), (91, High), (87, High), (86, Elevated), (77, Elevated), (76, Normal)];
    for (held, level) in falling {
        for freed in all.drain(held..) {
            freed.free().unwrap();
        }
        is_seen(&daemon, [&client, &other], &heard, held as u64, level);
    }
    assert_eq!(levels(&heard, Tier::Device), [Normal, Elevated, High, Critical, High, Elevated, Normal]);
    let device = daemon.state().devices[0].device.clone().unwrap();
    assert!(heard.lock().unwrap().iter().all(|told| told.device == device.uuid));

    let told: Vec<_> = (0..6).map(|_| watch.read()).collect();
    let told = told.iter().map(|event| match &event.event {
        Some(Event::Pressure(it)) => {
            assert_eq!((&it.device, it.tier(), it.capacity_bytes), (&device.uuid, Tier::Device, 200 * MIB));
            (it.from(), it.to(), it.held_bytes / MIB_2)
        }
        other => panic!("{other:?}"),
    });
    let expected = [
        (Normal, Elevated, 80),
        (Elevated, High, 90),
        (High, Critical, 95),
        (Critical, High, 91),
        (High, Elevated, 86),
        (Elevated, Normal, 76),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    let entered = |level: &str| {
        let label = format!("vramd_pressure_level=\"{level}\"");
        metric(&daemon, "vramd_pressure_changes_total", &["vramd_tier=\"device\"", &label])
    };
    let counts = ["normal", "elevated", "high", "critical"].map(entered);
    assert_eq!(counts, [Some(1), Some(2), Some(2), Some(1)]);
    let log = daemon.log();
    let lines = log.lines().filter(|line| line.contains("pressure changed"));
    assert!(lines.clone().all(|line| line.contains(" INFO ")), "{log}");
    assert_eq!(lines.count(), 6);
}

/// A device with a host tier, where a part is cold after a moment without use.
fn cold_soon() -> Config {
    let config = Config::devices(&[DEVICE]).memory("host_size = \"400MiB\"").telemetry(MEASURED);
    config.pressure("cold_after_ms = 200")
}

/// The parts that left because of pressure, with this outcome.
fn left(daemon: &Daemon, outcome: &str) -> u64 {
    let outcome = format!("vramd_migration_outcome=\"{outcome}\"");
    let labels = ["vramd_migration_cause=\"pressure\"", "vramd_migration_direction=\"out\"", &outcome];
    metric(daemon, "vramd_migrations_total", &labels).unwrap_or_default()
}

/// The percent of the device that can leave without a copy.
fn clean(daemon: &Daemon) -> u64 {
    let labels = ["vramd_memory_state=\"clean\"", "vramd_tier=\"device\""];
    metric::<u64>(daemon, "vramd_quota_usage_bytes", &labels).unwrap_or_default() / MIB_2
}

#[test]
fn cold_parts_are_written_back_and_leave_and_used_parts_stay() {
    let daemon = Daemon::start(&cold_soon());
    let (client, heard) = listening(&daemon);
    let mut cold = client.allocate(percent(64)).unwrap();
    cold.copy_from_host(0, &content(64)).unwrap();
    cold.unpin().unwrap();
    let held = client.allocate(percent(6)).unwrap();
    let mut pinned = client.allocate(percent(4)).unwrap();
    pinned.unpin().unwrap();
    let mut warm = client.allocate(percent(4)).unwrap();
    warm.unpin().unwrap();
    let guard = pinned.pin(Access::Write).unwrap();

    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(warm.pin(Access::Write).unwrap());
                thread::sleep(Duration::from_millis(10));
            }
        });
        // 78 of 100: the daemon does nothing, however cold the parts are.
        always("nothing is written back", Duration::from_millis(1500), || clean(&daemon) == 0);
        let more = client.allocate(percent(6)).unwrap();
        until("it is elevated", || last(&heard) == Some(PressureLevel::Elevated));
        until("cold parts are clean", || clean(&daemon) == 64);
        always("and nothing leaves", Duration::from_millis(1500), || daemon.state().charged() == 84 * MIB_2);
        assert_eq!(clean(&daemon), 64, "used parts are not written back");

        let yet_more = client.allocate(percent(8)).unwrap();
        until("it was high", || levels(&heard, Tier::Device).contains(&PressureLevel::High));
        until("as much leaves as has to", || daemon.state().charged() == 85 * MIB_2);
        until("it is elevated again", || last(&heard) == Some(PressureLevel::Elevated));
        always("no more leaves", Duration::from_millis(1500), || daemon.state().charged() == 85 * MIB_2);
        assert_eq!((left(&daemon, "clean"), left(&daemon, "moved")), (7, 0), "no copy was waited for");
        for used in [&held, &pinned, &warm, &more, &yet_more] {
            let info = client.describe(used.id()).unwrap();
            assert_eq!(info.resident, info.charged, "{info:?}");
        }
        assert_eq!(client.describe(cold.id()).unwrap().resident, Bytes::new(57 * MIB_2));
        stop.store(true, Ordering::Relaxed);
    });
    drop(guard);
    let mut seen = vec![0; content(64).len()];
    cold.copy_to_host(0, &mut seen).unwrap();
    assert!(seen == content(64));
}

#[test]
fn critical_pressure_evicts_cold_parts_without_a_write_back() {
    let daemon = Daemon::start(&cold_soon());
    let client = quiet(&daemon);
    let mut cold = client.allocate(percent(70)).unwrap();
    cold.copy_from_host(0, &content(70)).unwrap();
    cold.unpin().unwrap();
    // All parts are cold, and the device is not full yet.
    thread::sleep(Duration::from_millis(500));
    let used = client.allocate(percent(26)).unwrap();
    until("as much leaves as has to", || daemon.state().charged() == 85 * MIB_2);
    assert_eq!(left(&daemon, "moved") + left(&daemon, "clean"), 11);
    let info = client.describe(used.id()).unwrap();
    assert_eq!(info.resident, info.charged);
    let mut seen = vec![0; content(70).len()];
    cold.copy_to_host(0, &mut seen).unwrap();
    assert!(seen == content(70));
}

#[test]
fn critical_pressure_begins_evictions_before_the_answer() {
    let daemon = Daemon::start(&cold_soon());
    let client = quiet(&daemon);
    let mut cold = client.allocate(percent(70)).unwrap();
    cold.unpin().unwrap();
    let _used = client.allocate(percent(12)).unwrap();
    until("all of it is cold", || clean(&daemon) == 70);
    // The next survey would report the same level. It comes once a second, and this check is immediate.
    let _more = client.allocate(percent(14)).unwrap();
    let answered = SystemTime::now();
    // A move that has just ended is listed a moment later.
    let begun = eventually("every eviction is listed", || {
        let moves = moves(&daemon);
        let all = moves.moves.iter().map(|it| (it.cause(), it.began_at));
        let all = all.chain(moves.ended.iter().map(|it| (it.cause(), it.began_at)));
        let begun: Vec<_> = all.filter(|(cause, _)| *cause == MoveCause::Pressure).map(|it| it.1).collect();
        (begun.len() == 11).then_some(begun)
    });
    let begun = begun.into_iter().map(|began| SystemTime::try_from(began.unwrap()).unwrap());
    assert!(begun.max() <= Some(answered));
    until("as much leaves as has to", || daemon.state().charged() == 85 * MIB_2);
}

#[test]
fn memory_of_other_programs_counts_as_pressure() {
    use PressureLevel::{Critical, Elevated, Normal};
    let daemon = Daemon::start(&Config::devices(&[DEVICE]).limit("survey_interval_ms = 20"));
    let (client, heard) = listening(&daemon);
    let mut watch = watching(&daemon);
    let _kept = client.allocate(percent(60)).unwrap();
    let uuid = client.devices()[0].uuid.clone();
    let taken = take_device_memory(&uuid, 60 * MIB);
    until("there is less to be had", || last(&heard) == Some(Elevated));
    let Some(Event::Pressure(event)) = watch.read().event else { panic!() };
    assert_eq!((event.held_bytes, event.capacity_bytes), (120 * MIB, 140 * MIB));
    drop(taken);
    until("it is to be had again", || last(&heard) == Some(Normal));
    let taken = take_device_memory(&uuid, 100 * MIB);
    until("there is less than is held", || last(&heard) == Some(Critical));
    drop(taken);
    until("it is to be had again", || last(&heard) == Some(Normal));
}

#[test]
fn a_client_without_the_pressure_feature_gets_no_frames() {
    let daemon = Daemon::start(&Config::devices(&[DEVICE]));
    let session = RawSession::open_with_pins(&daemon.sockets());
    let speaking = vramd_proto::v1::Hello { features: vramd_proto::channel::FEATURES, ..hello_with_pins() };
    let speaks = RawSession::open_with(&daemon.sockets(), speaking).unwrap();
    let told = || match speaks.channel.receive(PATIENCE) {
        Packet::Frame(daemon_frame::Frame::Pressure(told), _) => (told.device, told.tier(), told.level()),
        other => panic!("{other:?}"),
    };
    assert_eq!(told(), (0, Tier::Device, PressureLevel::Normal), "as it is at the beginning");
    let client = quiet(&daemon);
    let full = client.allocate(percent(100)).unwrap();
    let critical = (0, Tier::Device, PressureLevel::Critical);
    assert_eq!(eventually("the client is told", || Some(told()).filter(|told| *told == critical)), critical);
    assert!(!session.channel.waits(Duration::from_millis(300)), "the other has nothing to read");
    drop(full);
}

#[test]
fn a_new_session_gets_the_level_again() {
    let daemon = Daemon::start(&Config::devices(&[DEVICE]));
    let (client, heard) = listening(&daemon);
    let full = client.allocate(percent(90)).unwrap();
    until("the client is told", || last(&heard) == Some(PressureLevel::High));
    heard.lock().unwrap().clear();
    let again = client.reconnect().unwrap();
    until("the new session is told", || last(&heard) == Some(PressureLevel::High));
    assert_eq!(again.pressure("0"), again.pressure(&*again.devices()[0].uuid));
    assert_eq!(again.pressure("GPU-none"), None);
    assert_eq!(again.pressures().len(), 1, "there is nothing below");
    let task = vramd_client::aio::Client::from(again);
    until("the other face says it too", || task.pressure(None).unwrap().level == PressureLevel::High);
    drop(full);
}
