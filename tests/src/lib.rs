//! What the end-to-end tests stand on: real daemons in directories of their own, client processes that can be
//! stopped at any step, and the books as an operator sees them.
//!
//! Nothing here knows the broker's insides. A test sees what a client, an operator or the kernel sees: the sockets,
//! the tables of `admin.sock`, and `/proc`.

pub mod channel;
pub mod collector;
pub mod config;
pub mod daemon;
pub mod filter;
pub mod guide;
pub mod http;
pub mod mapping;
pub mod moves;
pub mod node_state;
pub mod outsider;
pub mod probe;
pub mod proc;
pub mod programs;
pub mod prometheus;
pub mod refusal;
pub mod rpc;
pub mod session;
pub mod stubborn;
pub mod tools;
pub mod victim;
pub mod wait;
pub mod watching;
pub mod words;

pub use self::{
    channel::RawChannel,
    config::{Config, Fault},
    daemon::{Daemon, Home},
    filter::Filter,
    node_state::NodeState,
    probe::Probe,
    refusal::Refused,
    rpc::{Admin, Memory, Pending},
    session::{RawSession, spec},
    watching::Watching,
};

/// What every charge is a multiple of.
pub const MIB_2: u64 = 2 << 20;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Who the tests run as; some need to become somebody else.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Bytes that look like nothing else: another seed, another content.
pub fn content(size: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..size.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(usize::try_from(size).expect("a test's content fits in memory")).collect()
}

/// The digest of some bytes, as the daemon prints it.
pub fn digest(bytes: &[u8]) -> String {
    format!("blake3:{}", blake3::hash(bytes))
}
