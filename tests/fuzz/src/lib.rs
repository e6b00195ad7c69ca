//! Fuzz targets: parsers of input from clients, daemons and operators, and the properties that must hold for any input.
//!
//! ```text
//!   corpus/<target>/*  ──▶  replay (tests/corpus.rs), in every test run
//!                      ──▶  libFuzzer (main.rs, `tests/fuzz/run`), which goes on from there, led by coverage
//! ```
//!
//! A target is a function of bytes. It panics where a property does not hold, and returns whether the input was accepted,
//! so that the replay notices a corpus that has become useless. That nothing panics is the least of the properties:
//! each target has an oracle of our own rules, written a second time, or a law that relates two runs. Whether bytes are
//! a message at all, `client_frame` and `daemon_frame` leave to prost, as the product does: it is not under test.

mod client_frame;
mod config;
mod daemon_frame;
mod memory;
mod names;
mod quantity;
mod trace;
mod written_frame;

/// The outcome of an input for which every property holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Accepted,
    Refused,
}

impl Verdict {
    fn of<T, E>(result: &Result<T, E>) -> Self {
        if result.is_ok() { Self::Accepted } else { Self::Refused }
    }
}

/// One target. Its corpus is the folder of its name.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub check: fn(&[u8]) -> Verdict,
}

pub const TARGETS: [Target; 7] = [
    Target { name: "client_frame", check: client_frame::check },
    Target { name: "daemon_frame", check: daemon_frame::check },
    Target { name: "written_frame", check: written_frame::check },
    Target { name: "quantity", check: quantity::check },
    Target { name: "config", check: config::check },
    Target { name: "names", check: names::check },
    Target { name: "trace", check: trace::check },
];
