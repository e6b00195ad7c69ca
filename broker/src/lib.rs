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
//! [`platform`] asks the kernel who a peer is and where the sockets lie; [`config`] is what the operator says;
//! [`state`] is what outlives the daemon; [`events`] is what operators watch, [`moves`] what is on its
//! way; [`harvest`] reads what clients use; [`app`] puts the pieces together.

pub mod app;
pub mod args;
pub mod channel;
pub mod config;
pub mod driver_choice;
pub mod events;
pub mod exit;
pub mod grpc;
pub mod harvest;
pub mod moves;
pub mod platform;
pub mod reactor;
pub mod state;
pub mod telemetry;
