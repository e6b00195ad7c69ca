//! Pressure: the daemon's reports on how full a session's devices are, and the program's callback.
//!
//! The reader of the channel stores each report here and goes on. The program's callback has a thread of its own,
//! `vramd-pressure`: it may be slow, or panic, and nothing waits for it. Reports that arrive while it runs wait; only
//! the newest of each device and tier is kept.

use std::{
    collections::BTreeMap,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use vramd_proto::v1::{self, Device, Tier};

use crate::process::fork::ProcessBound;

pub use vramd_proto::v1::PressureLevel;

/// How full a device is, or a tier below it: the bytes charged to all tenants, as a share of the capacity there.
#[derive(Clone, Debug, PartialEq)]
pub struct Pressure {
    /// UUID.
    pub device: String,
    pub tier: Tier,
    pub level: PressureLevel,
    /// The factor by which a program should scale its batches: 0.8 where room is short, 1.2 where it is plenty, and
    /// changing slowly between the two.
    pub batch_factor: f64,
    /// The time until the tier is full at the present rate. `None` if it does not fill, or needs more than five
    /// minutes.
    pub full_in: Option<Duration>,
}

/// The program's callback.
#[derive(Clone)]
pub(crate) struct OnPressure(Arc<dyn Fn(Pressure) + Send + Sync>);

/// A device's index, and a tier.
type Place = (u32, Tier);

/// The reports of a session.
#[derive(Debug, Default)]
pub(crate) struct Pressures {
    devices: Vec<Device>,
    shared: Arc<SharedReports>,
}

#[derive(Debug, Default)]
struct SharedReports {
    state: Mutex<Reports>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Reports {
    last: BTreeMap<Place, Pressure>,
    /// Reports that the thread has not delivered yet, if there is a thread.
    unreported: BTreeMap<Place, Pressure>,
    has_thread: bool,
    ended: bool,
}

impl Pressures {
    /// Starts the thread only if there is a callback.
    pub(crate) fn start(devices: &[Device], on_pressure: Option<OnPressure>) -> io::Result<Self> {
        let devices = devices.to_vec();
        let last =
            devices.iter().map(|device| ((device.index, Tier::Device), initial_pressure(device))).collect();
        let state = Reports { last, has_thread: on_pressure.is_some(), ..Reports::default() };
        let shared = Arc::new(SharedReports { state: Mutex::new(state), changed: Condvar::default() });
        if let Some(on_pressure) = on_pressure {
            let (shared, on_pressure) = (Arc::clone(&shared), ProcessBound::new(on_pressure));
            thread::Builder::new()
                .name("vramd-pressure".to_owned())
                .spawn(move || run(&shared, &on_pressure))?;
        }
        Ok(Self { devices, shared })
    }

    /// Stores a report of the daemon. One of an unknown device or tier is ignored.
    pub(crate) fn report(&self, wire: &v1::Pressure) {
        let device = self.devices.iter().find(|device| device.index == wire.device);
        let Some(device) = device.filter(|_| wire.tier() != Tier::Unspecified) else { return };
        let pressure = Pressure {
            device: device.uuid.clone(),
            tier: wire.tier(),
            level: wire.level(),
            batch_factor: wire.batch_factor,
            full_in: wire.full_in_ms.map(Duration::from_millis),
        };
        let place = (wire.device, wire.tier());
        let mut state = self.shared.lock();
        if state.has_thread && !state.ended {
            state.unreported.insert(place, pressure.clone());
            self.shared.changed.notify_one();
        }
        state.last.insert(place, pressure);
    }

    /// The last report of a device, named by UUID or index; of the only one, if none is named.
    pub(crate) fn device(&self, name: Option<&str>) -> Option<Pressure> {
        let device = match (name, &self.devices[..]) {
            (Some(name), devices) => {
                devices.iter().find(|device| device.uuid == name || device.index.to_string() == name)?
            }
            (None, [only]) => only,
            (None, _) => return None,
        };
        self.shared.lock().last.get(&(device.index, Tier::Device)).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Pressure> {
        self.shared.lock().last.values().cloned().collect()
    }

    /// Ends the session's reports: the thread ends once the callback has returned.
    pub(crate) fn end(&self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

/// A session that failed to open ends its reports here.
impl Drop for Pressures {
    fn drop(&mut self) {
        self.end();
    }
}

impl SharedReports {
    /// The next report to deliver; `None` at the end.
    fn next(&self) -> Option<Pressure> {
        let mut state = self.lock();
        while !state.ended {
            if let Some((_, pressure)) = state.unreported.pop_first() {
                return Some(pressure);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, Reports> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Delivers reports. A child that the callback forks returns here too, and its thread ends: it gets no reports, and a
/// lock that another thread held at the fork is never released in it.
fn run(shared: &SharedReports, on_pressure: &ProcessBound<OnPressure>) {
    while on_pressure.is_own_process()
        && let Some(pressure) = shared.next()
    {
        // The panic hook has reported it. The next report is delivered all the same.
        let _ = catch_unwind(AssertUnwindSafe(|| (on_pressure.0)(pressure)));
    }
}

/// The report of a device before the daemon's first one.
fn initial_pressure(device: &Device) -> Pressure {
    Pressure {
        device: device.uuid.clone(),
        tier: Tier::Device,
        level: PressureLevel::Normal,
        batch_factor: 1.0,
        full_in: None,
    }
}

impl OnPressure {
    pub(crate) fn new(call: impl Fn(Pressure) + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }
}

impl fmt::Debug for OnPressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnPressure")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn device(index: u32) -> Device {
        Device { uuid: format!("GPU-{index}"), index, name: String::new(), simulated: true }
    }

    fn wire(device: u32, tier: Tier, level: PressureLevel) -> v1::Pressure {
        v1::Pressure {
            device,
            tier: tier.into(),
            level: level.into(),
            batch_factor: 0.8,
            full_in_ms: Some(1500),
        }
    }

    /// A callback that sends each report to the test, and then runs `then`.
    fn recording_callback(
        then: impl Fn(&Pressure) + Send + Sync + 'static,
    ) -> (OnPressure, Receiver<Pressure>) {
        let (sender, heard): (Sender<Pressure>, _) = mpsc::channel();
        let call = move |pressure: Pressure| {
            sender.send(pressure.clone()).unwrap();
            then(&pressure);
        };
        (OnPressure::new(call), heard)
    }

    #[test]
    fn last_report_is_returned() {
        let pressures = Pressures::start(&[device(0), device(3)], None).unwrap();
        let three = pressures.device(Some("GPU-3")).unwrap();
        assert_eq!((three.level, three.batch_factor, three.full_in), (PressureLevel::Normal, 1.0, None));
        pressures.report(&wire(3, Tier::Device, PressureLevel::High));
        pressures.report(&wire(3, Tier::Host, PressureLevel::Critical));
        pressures.report(&wire(4, Tier::Device, PressureLevel::Critical));
        pressures.report(&wire(0, Tier::Unspecified, PressureLevel::Critical));
        let three = pressures.device(Some("GPU-3")).unwrap();
        assert_eq!((three.level, three.tier), (PressureLevel::High, Tier::Device));
        assert_eq!((three.batch_factor, three.full_in), (0.8, Some(Duration::from_millis(1500))));
        assert_eq!(pressures.device(Some("3")), Some(three));
        let all: Vec<_> = pressures.all().into_iter().map(|it| (it.device, it.tier, it.level)).collect();
        let of = |uuid: &str, tier, level| (uuid.to_owned(), tier, level);
        assert_eq!(
            all,
            [
                of("GPU-0", Tier::Device, PressureLevel::Normal),
                of("GPU-3", Tier::Device, PressureLevel::High),
                of("GPU-3", Tier::Host, PressureLevel::Critical),
            ]
        );
        assert_eq!((pressures.device(None), pressures.device(Some("GPU-9"))), (None, None));
    }

    #[test]
    fn only_device_needs_no_name() {
        let pressures = Pressures::start(&[device(3)], None).unwrap();
        assert_eq!(pressures.device(None), pressures.device(Some("GPU-3")));
        assert!(pressures.device(None).is_some());
    }

    #[test]
    fn slow_callback_gets_the_newest_report_and_delays_nothing() {
        let (go_on, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let (on_pressure, heard) = recording_callback(move |_| {
            let _ = gate.lock().unwrap().recv();
        });
        let pressures = Pressures::start(&[device(0)], Some(on_pressure)).unwrap();
        pressures.report(&wire(0, Tier::Device, PressureLevel::Elevated));
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap().level, PressureLevel::Elevated);
        for level in [PressureLevel::High, PressureLevel::Critical, PressureLevel::High] {
            pressures.report(&wire(0, Tier::Device, level));
        }
        assert_eq!(pressures.device(None).unwrap().level, PressureLevel::High);
        // The callback still runs: it ends with the gate.
        drop(go_on);
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap().level, PressureLevel::High);
        pressures.end();
        assert_eq!(
            heard.recv_timeout(PATIENCE),
            Err(RecvTimeoutError::Disconnected),
            "nothing else was told"
        );
    }

    #[test]
    fn report_after_a_panic_is_delivered() {
        let (on_pressure, heard) = recording_callback(|pressure| {
            assert_ne!(pressure.level, PressureLevel::High, "a panic of a test, which is meant")
        });
        let pressures = Pressures::start(&[device(0)], Some(on_pressure)).unwrap();
        for level in [PressureLevel::High, PressureLevel::Critical] {
            pressures.report(&wire(0, Tier::Device, level));
            assert_eq!(heard.recv_timeout(PATIENCE).unwrap().level, level);
        }
    }

    #[test]
    fn last_report_stands_after_the_end() {
        let (on_pressure, heard) = recording_callback(|_| {});
        let pressures = Pressures::start(&[device(0)], Some(on_pressure)).unwrap();
        pressures.end();
        pressures.report(&wire(0, Tier::Device, PressureLevel::High));
        assert_eq!(heard.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
        assert_eq!(pressures.device(None).unwrap().level, PressureLevel::High);
    }

    #[test]
    fn failed_session_leaves_no_pressure_thread() {
        let (on_pressure, heard) = recording_callback(|_| {});
        drop(Pressures::start(&[device(0)], Some(on_pressure)).unwrap());
        assert_eq!(heard.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    }
}
