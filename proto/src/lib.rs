//! The protocol of vramd, package `vramd.v1`.
//!
//! It has gRPC services on `vramd.sock` and `admin.sock`, and the frames of `channel.sock`. The sources are
//! `proto/vramd/v1/*.proto`; the build generates this code from them.

/// Generated messages, clients and servers.
#[allow(missing_debug_implementations, unreachable_pub, reason = "generated code")]
#[allow(clippy::all, clippy::pedantic, clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("vramd.v1");
}

/// The compiled descriptors of the package and of all its imports, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));

pub mod channel;
mod policy;
