//! A trace, prepared for devices of one size: parts and devices have dense numbers, and every step a time of its own.

use std::{collections::BTreeMap, fmt};

use broker_core::Time;
use vramd_types::{Bytes, GRANULARITY};

use crate::{
    bound::{self, Sequence},
    trace::{Names, PartKey, Start, Trace, What, index},
};

/// Maximum parts of a trace.
pub const PARTS_MAX: usize = 1_000_000;

/// The facts that a replay needs beside the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The memory of each device, in place of what the trace says.
    pub device_bytes: Option<u64>,
    /// Bytes per second of the link to each device, for the time that stalls take. Not 0.
    pub link_bytes_per_second: u64,
}

#[derive(Debug)]
pub struct Scenario {
    pub(crate) link_bytes_per_second: u64,
    pub(crate) tenants: Vec<String>,
    pub(crate) devices: Vec<Device>,
    pub(crate) parts: Vec<Part>,
    pub(crate) steps: Vec<Step>,
    recorded: Option<Recorded>,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    /// The memory, in granules of 2 MiB.
    pub(crate) granules: u64,
}

#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) key: PartKey,
    pub(crate) tenant: usize,
    pub(crate) device: usize,
    /// The size, rounded up to granules of 2 MiB.
    pub(crate) granules: u64,
    pub(crate) start: Start,
    /// When it is used, ascending.
    pub(crate) uses: Vec<Time>,
}

/// A step for one part, by its number. No two steps have the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) at: Time,
    pub(crate) part: u32,
    pub(crate) action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Only of parts that start on their device. All others are there from the beginning.
    Create,
    Use {
        deadline: Option<u64>,
    },
    Write,
    Hold,
    Release,
    Free,
}

/// The work of the daemon while it was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    pub fetches: u64,
    pub fetched_bytes: u64,
    /// Bytes that were copied because parts left their devices, or ahead of that.
    pub written_back_bytes: u64,
    /// Pin calls that waited, and the sum of their times.
    pub stalls: u64,
    pub stalled_micros: u64,
}

/// Why a trace cannot be played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScenarioError {
    NothingUsed,
    DeviceBytesMissing { device: String },
    DeviceTooSmall { bytes: u64 },
    PartTooLarge { part: PartKey, bytes: Bytes, device: String, device_bytes: Bytes },
    TooManyParts,
    TimeTooLate,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingUsed => write!(f, "the trace has no use of any part"),
            Self::DeviceBytesMissing { device } => {
                write!(
                    f,
                    "the trace does not say how many bytes device {device} has: name them (--device-bytes)"
                )
            }
            Self::DeviceTooSmall { bytes } => write!(f, "a device has at least 2 MiB: {bytes} bytes given"),
            Self::PartTooLarge { part: PartKey { allocation, part }, bytes, device, device_bytes } => write!(
                f,
                "part {part} of allocation {allocation} has {bytes}, and device {device} only {device_bytes}"
            ),
            Self::TooManyParts => write!(f, "the trace has more than {PARTS_MAX} parts"),
            Self::TimeTooLate => write!(f, "the last times of the trace are too large"),
        }
    }
}

impl std::error::Error for ScenarioError {}

impl Scenario {
    /// Prepares a trace.
    pub fn new(trace: &Trace, options: Options) -> Result<Self, ScenarioError> {
        let mut builder = Builder::default();
        for record in &trace.records {
            builder.take(record.at, record.what)?;
        }
        let Builder { parts, steps, memory, recorded, has_recorded, .. } = builder;
        if parts.iter().all(|part| part.uses.is_empty()) {
            return Err(ScenarioError::NothingUsed);
        }
        let devices = devices(&trace.names, &memory, options.device_bytes)?;
        for Part { key, granules, device, .. } in &parts {
            let Device { name, granules: room } = &devices[*device];
            if granules > room {
                return Err(ScenarioError::PartTooLarge {
                    part: *key,
                    bytes: bytes_of(*granules),
                    device: name.clone(),
                    device_bytes: bytes_of(*room),
                });
            }
        }
        Ok(Self {
            link_bytes_per_second: options.link_bytes_per_second,
            tenants: trace.names.tenants().to_vec(),
            devices,
            parts,
            steps,
            recorded: has_recorded.then_some(recorded),
        })
    }

    /// Returns the work of the daemon, if the trace was recorded.
    pub fn recorded(&self) -> Option<Recorded> {
        self.recorded
    }

    /// Returns the devices with their memory.
    pub fn devices(&self) -> impl Iterator<Item = (&str, Bytes)> {
        self.devices.iter().map(|device| (device.name.as_str(), bytes_of(device.granules)))
    }

    pub fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// Returns the bytes of all parts together.
    pub fn part_bytes(&self) -> Bytes {
        bytes_of(self.parts.iter().map(|part| part.granules).fold(0, u64::saturating_add))
    }

    /// Returns how often parts are used, and the bytes to fetch if no part ever stayed.
    pub fn uses(&self) -> (u64, Bytes) {
        let mut sum = (0_u64, 0_u64);
        for Step { part, action, .. } in &self.steps {
            if matches!(action, Action::Use { .. }) {
                sum = (sum.0 + 1, sum.1.saturating_add(self.parts[index(*part)].granules));
            }
        }
        (sum.0, bytes_of(sum.1))
    }

    /// Returns the fewest bytes that any policy has to fetch, and whether some policy reaches that.
    pub fn bound(&self) -> (Bytes, bool) {
        let (mut granules, mut is_exact) = (0_u64, true);
        for (number, device) in self.devices.iter().enumerate() {
            let mut local = BTreeMap::new();
            let (mut sizes, mut steps) = (Vec::new(), Vec::new());
            for step in self.steps.iter().filter(|step| self.parts[index(step.part)].device == number) {
                let part = *local.entry(step.part).or_insert_with(|| {
                    sizes.push(self.parts[index(step.part)].granules);
                    u32::try_from(sizes.len() - 1).unwrap_or(u32::MAX)
                });
                match step.action {
                    Action::Create => steps.push(bound::Step::Create(part)),
                    Action::Use { .. } => steps.push(bound::Step::Use(part)),
                    Action::Free => steps.push(bound::Step::Free(part)),
                    Action::Write | Action::Hold | Action::Release => {}
                }
            }
            let sequence =
                Sequence { memory: device.granules, sizes: &sizes, steps: &steps, counted_from: 0 };
            granules = granules.saturating_add(bound::furthest_next_use(&sequence));
            is_exact &= sequence.is_exact();
        }
        (bytes_of(granules), is_exact)
    }
}

pub(crate) fn bytes_of(granules: u64) -> Bytes {
    Bytes::new(granules.saturating_mul(GRANULARITY.get()))
}

/// The granules of each device: those that were given, or those that the trace says.
fn devices(
    names: &Names,
    memory: &BTreeMap<u32, u64>,
    given: Option<u64>,
) -> Result<Vec<Device>, ScenarioError> {
    let device = |(number, name): (u32, &String)| {
        let missing = || ScenarioError::DeviceBytesMissing { device: name.clone() };
        let bytes = given.or_else(|| memory.get(&number).copied()).ok_or_else(missing)?;
        match bytes / GRANULARITY.get() {
            0 => Err(ScenarioError::DeviceTooSmall { bytes }),
            granules => Ok(Device { name: name.clone(), granules }),
        }
    };
    (0..).zip(names.devices()).map(device).collect()
}

#[derive(Default)]
struct Builder {
    parts: Vec<Part>,
    steps: Vec<Step>,
    numbers: BTreeMap<PartKey, u32>,
    memory: BTreeMap<u32, u64>,
    recorded: Recorded,
    has_recorded: bool,
    last: u64,
}

impl Builder {
    fn take(&mut self, at: u64, what: What) -> Result<(), ScenarioError> {
        match what {
            What::Device { device, bytes } => _ = self.memory.insert(device, bytes),
            What::Allocate { part, bytes, tenant, device, start } => {
                let number = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
                if self.parts.len() >= PARTS_MAX {
                    return Err(ScenarioError::TooManyParts);
                }
                self.numbers.insert(part, number);
                self.parts.push(Part {
                    key: part,
                    tenant: index(tenant),
                    device: index(device),
                    granules: bytes.div_ceil(GRANULARITY.get()),
                    start,
                    uses: Vec::new(),
                });
                if start == Start::Device {
                    self.step(at, number, Action::Create)?;
                }
            }
            What::Free { allocation } => {
                let all = PartKey { allocation, part: 0 }..=PartKey { allocation, part: u32::MAX };
                let parts: Vec<_> = self.numbers.range(all).map(|(_, number)| *number).collect();
                for part in parts {
                    self.step(at, part, Action::Free)?;
                }
            }
            What::Use { part, deadline } => {
                if let Some(part) = self.numbers.get(&part).copied() {
                    let at = self.step(at, part, Action::Use { deadline })?;
                    self.parts[index(part)].uses.push(at);
                }
            }
            What::Write { part } => self.step_of(at, part, Action::Write)?,
            What::Hold { part } => self.step_of(at, part, Action::Hold)?,
            What::Release { part } => self.step_of(at, part, Action::Release)?,
            What::Fetch { bytes, .. } => {
                self.recorded.fetches += 1;
                self.recorded.fetched_bytes = self.recorded.fetched_bytes.saturating_add(bytes);
            }
            What::Evict { bytes, copied: true, .. } | What::WriteBack { bytes, .. } => {
                self.recorded.written_back_bytes = self.recorded.written_back_bytes.saturating_add(bytes);
            }
            What::Evict { copied: false, .. } => {}
            What::Wait { micros, .. } => {
                self.recorded.stalls += 1;
                self.recorded.stalled_micros = self.recorded.stalled_micros.saturating_add(micros);
            }
        }
        self.has_recorded |= matches!(
            what,
            What::Fetch { .. } | What::Evict { .. } | What::WriteBack { .. } | What::Wait { .. }
        );
        Ok(())
    }

    fn step_of(&mut self, at: u64, part: PartKey, action: Action) -> Result<(), ScenarioError> {
        let part = self.numbers.get(&part).copied();
        part.map_or(Ok(()), |part| self.step(at, part, action).map(drop))
    }

    /// Adds a step, later than all before, and returns its time.
    fn step(&mut self, at: u64, part: u32, action: Action) -> Result<Time, ScenarioError> {
        // The first step is at 1, after all that the trace begins with.
        self.last = at.max(self.last.checked_add(1).ok_or(ScenarioError::TimeTooLate)?);
        let at = Time::from_micros(self.last);
        self.steps.push(Step { at, part, action });
        Ok(at)
    }
}
