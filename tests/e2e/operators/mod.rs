//! Operators set, ask and see; tenants read each other's memory only where an owner allows it.

pub(crate) mod admin;
pub(crate) mod classes;
pub(crate) mod doctor;
pub(crate) mod messages;
pub(crate) mod quotas;
pub(crate) mod replays;
pub(crate) mod settings;
pub(crate) mod sharing;
pub(crate) mod tenants;
pub(crate) mod tenants_file;
pub(crate) mod top;
pub(crate) mod vramctl;
pub(crate) mod watch;
