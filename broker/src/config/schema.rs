//! The types of the configuration file, with their defaults.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use broker_core::EvictionPolicy;
use broker_platform::Platform;
use serde::{Deserialize, Deserializer, de};
use vramd_types::{Bytes, Quantity};

use super::{Disk, Files, Limits, Pressure, QuantityText, Shares, Telemetry, Tenant, Turns, quantity};

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pub daemon: Daemon,
    pub driver: Driver,
    pub memory: Memory,
    pub disk: Disk,
    pub files: Files,
    pub pressure: Pressure,
    pub shares: Shares,
    pub quota: Quota,
    /// In order. The first matching rule names the tenant. Entries may also give a tenant its class and its weight.
    pub tenants: Vec<Tenant>,
    pub limits: Limits,
    pub turns: Turns,
    pub telemetry: Telemetry,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Daemon {
    pub socket_dir: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
    /// Name or number of a group whose members may connect to `admin.sock`. They must be operators too.
    pub admin_group: Option<String>,
    /// Uids. `None` means root and the daemon's own uid.
    pub operators: Option<Vec<u32>>,
    /// A file of tenants with their rules, classes and quotas. The daemon applies it at the start and on SIGHUP.
    pub tenants_file: Option<PathBuf>,
    pub log_format: LogFormat,
    pub log_level: LogLevel,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Driver {
    pub kind: DriverKind,
    pub cuda: Cuda,
    pub sim: Sim,
}

/// The paths of NVIDIA's libraries. `None` means as the loader finds them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cuda {
    pub library: Option<PathBuf>,
    pub nvml_library: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriverKind {
    /// `cuda` if the node has a usable GPU, else `sim`.
    #[default]
    Auto,
    Sim,
    Cuda,
}

/// The simulated node, and its faults for tests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sim {
    #[serde(deserialize_with = "at_least_one_device")]
    pub devices: Vec<SimDevice>,
    /// Bytes a second from the host to each device; 0 means as fast as the machine copies.
    #[serde(deserialize_with = "quantity::bytes")]
    pub link_to_device: Bytes,
    /// The same from each device to the host.
    #[serde(deserialize_with = "quantity::bytes")]
    pub link_to_host: Bytes,
    /// The same for the one uplink that all devices share.
    #[serde(deserialize_with = "quantity::bytes")]
    pub uplink_to_device: Bytes,
    #[serde(deserialize_with = "quantity::bytes")]
    pub uplink_to_host: Bytes,
    /// The platform that the simulated devices play.
    #[serde(deserialize_with = "sim_platform")]
    pub platform: Platform,
    pub faults: Vec<SimFault>,
    pub revocations: Vec<SimRevocation>,
}

impl Default for Sim {
    fn default() -> Self {
        let device = SimDevice { memory: Bytes::gib(16), name: None, uuid: None };
        Self {
            devices: vec![device],
            link_to_device: Bytes::ZERO,
            link_to_host: Bytes::ZERO,
            uplink_to_device: Bytes::ZERO,
            uplink_to_host: Bytes::ZERO,
            platform: Platform::Discrete,
            faults: vec![],
            revocations: vec![],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimDevice {
    #[serde(deserialize_with = "quantity::device_size")]
    pub memory: Bytes,
    /// `None` means `Simulated GPU` and the index.
    pub name: Option<String>,
    /// `None` means a UUID made from the socket directory and the index.
    pub uuid: Option<String>,
}

/// A scheduled fault: from the `nth` submission of a kind, counted from 1, `count` submissions meet the effect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "SimFaultText")]
pub struct SimFault {
    pub on: SimOperation,
    pub nth: u64,
    pub count: u64,
    pub effect: SimEffect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimOperation {
    Create,
    CreateHost,
    CreateDisk,
    Release,
    Digest,
    Copy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimEffect {
    OutOfMemory,
    Fail(String),
    Delay(Duration),
    Hold(PathBuf),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SimFaultText {
    on: SimOperation,
    #[serde(default = "one")]
    nth: u64,
    #[serde(default = "one")]
    count: u64,
    effect: EffectText,
    delay_ms: Option<u64>,
    message: Option<String>,
    until_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EffectText {
    OutOfMemory,
    Fail,
    Delay,
    Hold,
}

const fn one() -> u64 {
    1
}

impl TryFrom<SimFaultText> for SimFault {
    type Error = &'static str;

    fn try_from(text: SimFaultText) -> Result<Self, &'static str> {
        if text.delay_ms.is_some() && !matches!(text.effect, EffectText::Delay) {
            return Err("`delay_ms` is for effect `delay`");
        }
        if text.message.is_some() && !matches!(text.effect, EffectText::Fail) {
            return Err("`message` is for effect `fail`");
        }
        if text.until_file.is_some() && !matches!(text.effect, EffectText::Hold) {
            return Err("`until_file` is for effect `hold`");
        }
        let effect = match text.effect {
            EffectText::OutOfMemory => SimEffect::OutOfMemory,
            EffectText::Fail => {
                SimEffect::Fail(text.message.unwrap_or_else(|| "a scheduled fault".to_owned()))
            }
            EffectText::Delay => match text.delay_ms {
                Some(delay_ms) => SimEffect::Delay(Duration::from_millis(delay_ms)),
                None => return Err("effect `delay` needs `delay_ms`"),
            },
            EffectText::Hold => match text.until_file {
                Some(file) => SimEffect::Hold(file),
                None => return Err("effect `hold` needs `until_file`"),
            },
        };
        if text.nth == 0 {
            return Err("`nth` counts from 1");
        }
        if text.on == SimOperation::Release && !matches!(effect, SimEffect::Delay(_) | SimEffect::Hold(_)) {
            return Err("a release can only be delayed or held: it cannot fail");
        }
        Ok(Self { on: text.on, nth: text.nth, count: text.count, effect })
    }
}

/// A scheduled revocation: at the `nth` step of a kind, counted from 1, and at every `every`-th step after it, the
/// mappings of the step's parts are revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimRevocation {
    pub at: SimStep,
    #[serde(default = "first")]
    pub nth: NonZeroU64,
    pub every: Option<NonZeroU64>,
    /// Revoke by fence, which waits for pins, instead of by eviction.
    #[serde(default)]
    pub wait: bool,
}

/// A step at which the daemon sends or receives a message about parts. The core handles a received message before the
/// revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimStep {
    MapSent,
    Mapped,
    /// A pin call by a frame, which waits.
    Pin,
    /// For any reason: evicted, freed, detached, sealed, ended.
    RevokeSent,
    Unmapped,
    /// The driver is about to hash the part.
    Digest,
}

const fn first() -> NonZeroU64 {
    NonZeroU64::MIN
}

/// The configured size of the host tier of each device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostSize {
    /// A share of the memory that is free at the start.
    #[default]
    Auto,
    Bytes(Bytes),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    pub devices: DeviceChoice,
    /// The broker's share of each device.
    #[serde(deserialize_with = "quantity_of")]
    pub device_share: Quantity,
    /// Kept back from the share of each device.
    #[serde(deserialize_with = "quantity_of")]
    pub margin: Quantity,
    /// Number of clients for whose CUDA contexts memory is set aside.
    pub sessions_reserved: u32,
    #[serde(deserialize_with = "quantity::part_size")]
    pub part_size: Bytes,
    /// The size of the host tier of each device.
    #[serde(deserialize_with = "quantity::host_size")]
    pub host_size: HostSize,
    /// Interval of the harvest, if parts can move.
    #[serde(rename = "harvest_ms", deserialize_with = "harvest")]
    pub harvest: Duration,
    /// Whether a part that would leave without a copy is first compared with its clean backing.
    pub check_shadows: bool,
    /// The order in which unused parts leave a full device.
    #[serde(deserialize_with = "eviction_policy")]
    pub eviction_policy: EvictionPolicy,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            devices: DeviceChoice::All,
            device_share: Quantity::Percent(100),
            margin: Quantity::Bytes(Bytes::ZERO),
            sessions_reserved: 8,
            part_size: Bytes::mib(256),
            host_size: HostSize::Auto,
            harvest: Duration::from_millis(100),
            check_shadows: false,
            eviction_policy: EvictionPolicy::default(),
        }
    }
}

fn eviction_policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<EvictionPolicy, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

/// `"all"`, or a list of UUIDs and indices.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "DeviceChoiceText")]
pub enum DeviceChoice {
    All,
    These(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected \"all\", or a list of UUIDs and indices like [\"0\"]")]
enum DeviceChoiceText {
    Word(String),
    List(Vec<String>),
}

impl TryFrom<DeviceChoiceText> for DeviceChoice {
    type Error = &'static str;

    fn try_from(text: DeviceChoiceText) -> Result<Self, &'static str> {
        match text {
            DeviceChoiceText::Word(word) if word == "all" => Ok(Self::All),
            DeviceChoiceText::List(list) if !list.is_empty() => Ok(Self::These(list)),
            _ => Err("expected \"all\", or a list of UUIDs and indices like [\"0\"]"),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    pub default: DefaultQuota,
}

/// The limits of tenants without a stored quota, on each device and in each tier below it. They have no guarantee.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultQuota {
    #[serde(deserialize_with = "quantity_of")]
    pub limit: Quantity,
    #[serde(deserialize_with = "quantity_of")]
    pub host_limit: Quantity,
    #[serde(deserialize_with = "quantity_of")]
    pub disk_limit: Quantity,
}

impl Default for DefaultQuota {
    fn default() -> Self {
        let all = Quantity::Percent(100);
        Self { limit: all, host_limit: all, disk_limit: all }
    }
}

fn quantity_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Quantity, D::Error> {
    QuantityText::deserialize(deserializer).map(|text| text.0)
}

/// The choice of victims must know the use of parts within the last minute.
const HARVEST_MS_MAX: u64 = 60_000;

fn harvest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    match u64::deserialize(deserializer)? {
        millis @ 1..=HARVEST_MS_MAX => Ok(Duration::from_millis(millis)),
        millis => Err(de::Error::custom(format!("{millis} ms is not between 1 and {HARVEST_MS_MAX} ms"))),
    }
}

fn sim_platform<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Platform, D::Error> {
    match Platform::deserialize(deserializer)? {
        Platform::NoGpu => Err(de::Error::custom("a simulated device is a GPU: `no-gpu` is not possible")),
        platform => Ok(platform),
    }
}

fn at_least_one_device<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SimDevice>, D::Error> {
    let devices = Vec::deserialize(deserializer)?;
    if devices.is_empty() { Err(de::Error::custom("there must be at least one device")) } else { Ok(devices) }
}
