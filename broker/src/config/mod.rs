//! What the operator says: one TOML file, every key optional, no key unknown.
//!
//! `file` is the shape of the text; what it says is checked while it is read, so that every complaint names its
//! line and field. `deploy/config/vramd.toml` is the same with every key, its unit and its default.

mod devices;
mod error;
mod file;
mod limits;
mod quantity;
mod tenants;

use std::{fs, path::Path};

pub use devices::{DeviceNotThere, SimDevices, choose, core_devices};
pub use error::ConfigError;
pub use file::{
    Cuda, Daemon, DeviceChoice, Driver, DriverKind, File as Config, LogFormat, LogLevel, Memory, Sim,
    SimDevice, SimEffect, SimFault, SimOperation,
};
pub use limits::Limits;
pub use quantity::QuantityText;
pub use tenants::Tenant;

/// Reads a configuration file.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    parse(&text).map_err(|place| ConfigError::Wrong { path: path.to_owned(), place })
}

/// Reads a configuration's text.
pub fn parse(text: &str) -> Result<Config, error::Place> {
    let deserializer = match toml::Deserializer::parse(text) {
        Ok(deserializer) => deserializer,
        Err(error) => return Err(error::Place::of(&error, String::new(), text)),
    };
    serde_path_to_error::deserialize(deserializer)
        .map_err(|error| error::Place::of(error.inner(), error.path().to_string(), text))
}

#[cfg(test)]
mod tests;
