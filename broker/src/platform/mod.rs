//! Asks the operating system about peers, sockets, files that clients have open, and other daemons.

pub mod cgroup;
pub mod client_files;
pub mod credentials;
pub mod descriptor_shares;
pub mod descriptors;
pub mod gpu;
pub mod host;
pub mod lock;
pub mod paths;
pub mod peer;
pub mod private_dir;
pub mod process;
pub mod readiness;
pub mod shared_memory;
pub mod sockets;
pub mod tenant_rules;
pub mod unread;
