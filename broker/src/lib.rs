//! The shell of the broker: everything that touches the operating system, around a core that does not.
//!
//! ```text
//!   vramd.sock, admin.sock        channel.sock            driver, disk
//!          │ gRPC                     │ frames, fds            │ completions
//!        grpc/ ──────── events ───▶ reactor/ ◀──── events ─────┘
//!          ▲                          │ the only owner of broker_core::Broker
//!          └─────────── replies ──────┴── commands ──▶ channel/, driver, state/
//! ```
//!
//! [`config`] reads the operator's configuration, and [`platform`] asks the kernel about peers, sockets and files.
//! [`state`] keeps what outlives the daemon, and [`tenants`] applies tenants files. [`driver_choice`] opens a driver. [`events`] feeds watches, [`moves`]
//! lists moves between tiers, [`harvest`] reads which parts clients use, and [`recorder`]
//! records traces. [`telemetry`] has metrics, traces and
//! logs. [`socket_keeper`] keeps the sockets in place, and [`service_manager`] reports to systemd. [`node_report`] says
//! what the daemon found and chose, and [`fall_backs`] counts files that clients copied instead of reading them in
//! place. [`surroundings`] warns where the configuration does not fit the machine. [`app`]
//! assembles all of them, and [`exit`] maps failures to exit statuses.

pub mod app;
pub mod args;
pub mod channel;
pub mod config;
pub mod driver_choice;
pub mod events;
pub mod exit;
pub mod fall_backs;
pub mod grpc;
pub mod harvest;
pub mod moves;
pub mod node_report;
pub mod platform;
pub mod reactor;
pub mod recorder;
pub mod service_manager;
pub mod socket_keeper;
pub mod state;
pub mod surroundings;
pub mod telemetry;
pub mod tenants;
