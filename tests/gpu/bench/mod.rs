//! The benchmarks: the daemon's cost, and leaks.

mod acker;
mod copies;
mod hand_off;
mod leak;
mod log;
mod measure;
mod owner;
mod pins;
mod plain;
mod residency;
mod scene;
mod tiers;
mod victim;

pub(crate) use copies::run as copies;
pub(crate) use hand_off::run as hand_off;
pub(crate) use leak::run as leak;
pub(crate) use owner::run as bare_owner;
pub(crate) use pins::{pinner, run as pins};
pub(crate) use residency::{neighbour, run as residency};
pub(crate) use scene::{Driver, holder};
pub(crate) use tiers::run as tiers;
pub(crate) use victim::run as victim;
