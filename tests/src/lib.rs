//! The harness of the end-to-end tests: real daemons in directories of their own, client processes that can be stopped
//! at any step, and the node's state as operators see it.
//!
//! Nothing here knows the broker's internals. A test sees what clients, operators and the kernel see: the sockets, the
//! tables of `admin.sock`, and `/proc`.

pub mod beyond_deadline;
pub mod browser;
pub mod channel;
pub mod collector;
pub mod config;
pub mod daemon;
pub mod dashboards;
pub mod filter;
pub mod guide;
pub mod hostile;
pub mod http;
pub mod mapping;
pub mod moves;
pub mod node_state;
pub mod other_programs;
pub mod probe;
pub mod proc;
pub mod programs;
pub mod prometheus;
pub mod refusal;
pub mod rpc;
pub mod rules;
pub mod session;
pub mod terminal;
pub mod tools;
pub mod victim;
pub mod wait;
pub mod watching;
pub mod words;

pub use self::{
    channel::RawChannel,
    config::{Config, Fault},
    daemon::{Daemon, Home},
    filter::SyscallFilter,
    node_state::NodeState,
    probe::Probe,
    refusal::Refused,
    rpc::{Admin, Memory, Pending},
    session::{RawSession, spec},
    terminal::Terminal,
    watching::Watching,
};

/// The unit of every charge.
pub const MIB_2: u64 = 2 << 20;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Whether the tests run as root, which some need to become other users.
///
/// # Panics
/// If it is not although `VRAMD_EXPECT_ROOT=1` says so: then some check would be left out.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let must = std::env::var_os("VRAMD_EXPECT_ROOT").is_some_and(|must| must == "1");
    assert!(is_root || !must, "VRAMD_EXPECT_ROOT=1, and this process is not root");
    is_root
}

/// Unmistakable bytes: another seed gives another content.
pub fn content(size: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; usize::try_from(size).expect("a test's content fits in memory")];
    // In a build for tests a byte at a time would take ten times as long.
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}

/// The digest of some bytes, as the daemon prints it.
pub fn digest(bytes: &[u8]) -> String {
    format!("blake3:{}", blake3::hash(bytes))
}
