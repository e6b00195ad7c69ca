//! The operator's configuration: one TOML file in which every key is optional and no unknown key is allowed.
//!
//! `schema` has the types of the file. Values are checked while they are read, so every error names its line and key.
//! `deploy/config/vramd.toml` is the example with every key, its unit and its default.

mod devices;
mod disk;
mod error;
mod files;
mod host;
mod limits;
mod pressure;
mod quantity;
mod schema;
mod shares;
mod telemetry;
mod tenants;
mod tenants_file;
mod turns;

use std::{fs, path::Path};

use serde::de::DeserializeOwned;

pub use devices::{SimDevices, UnknownDevice, choose, core_devices, share_of};
pub use disk::Disk;
pub use error::{ConfigError, ErrorLocation};
pub use files::Files;
pub use host::{HostTier, HostTooSmall, host_tier, pin_host};
pub use limits::Limits;
pub use pressure::Pressure;
pub use quantity::QuantityText;
pub use schema::{
    Cuda, Daemon, DefaultQuota, DeviceChoice, Driver, DriverKind, File as Config, HostSize, LogFormat,
    LogLevel, Memory, Sim, SimDevice, SimEffect, SimFault, SimOperation, SimRevocation, SimStep,
};
pub use shares::Shares;
pub use telemetry::{Endpoint, OtlpProtocol, SampleRatio, Signal, Telemetry};
pub use tenants::{Tenant, standings};
pub use tenants_file::{QuotaEntry, TENANTS_FILE_BYTES_MAX, TenantEntry, TenantsFile};
pub use turns::Turns;

/// Reads a configuration file.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let bytes = fs::read(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    let mut config =
        parse_bytes(&bytes).map_err(|location| ConfigError::Wrong { path: path.to_owned(), location })?;
    config.disk.file = config.disk.directory.is_some().then(|| path.to_owned());
    Ok(config)
}

/// Parses the bytes of a configuration file.
pub fn parse_bytes(bytes: &[u8]) -> Result<Config, ErrorLocation> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(text),
        Err(error) => Err(ErrorLocation::of_bytes(&error, bytes)),
    }
}

/// Parses the text of a configuration.
pub fn parse(text: &str) -> Result<Config, ErrorLocation> {
    let mut config: Config = deserialize(text)?;
    let wrong = [("pressure", config.pressure.wrong.take()), ("shares", config.shares.wrong.take())];
    if let Some((table, Wrong { at, field, problem })) =
        wrong.into_iter().find_map(|(table, it)| Some((table, it?)))
    {
        let before = text.get(..at).unwrap_or_default();
        return Err(ErrorLocation::after(before, format!("{table}.{field}"), problem));
    }
    if let Some((index, Wrong { at, field, problem })) = tenants::contradiction(&config.tenants) {
        let before = text.get(..at).unwrap_or_default();
        return Err(ErrorLocation::after(before, format!("tenants[{index}].{field}"), problem));
    }
    if config.disk.directory.is_some() {
        config.disk.locations = disk::locations(text);
    }
    Ok(config)
}

/// Deserializes TOML. The error names the line and the key.
fn deserialize<T: DeserializeOwned>(text: &str) -> Result<T, ErrorLocation> {
    let deserializer =
        toml::Deserializer::parse(text).map_err(|error| ErrorLocation::of(&error, String::new(), text))?;
    serde_path_to_error::deserialize(deserializer)
        .map_err(|error| ErrorLocation::of(error.inner(), error::field(error.path()), text))
}

/// An error that concerns several keys of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wrong {
    /// The position of the key's value in the text.
    at: usize,
    field: &'static str,
    problem: String,
}

#[cfg(test)]
mod tests;
