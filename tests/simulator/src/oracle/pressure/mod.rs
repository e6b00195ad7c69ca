//! Pressure: its levels, the relief that it causes, and the settings that bound both.

mod levels;
mod relief;
pub(super) mod settings;
