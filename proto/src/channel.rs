//! Constants on which both ends of `channel.sock` must agree.

/// The daemon refuses a client with another major version.
pub const PROTOCOL_MAJOR: u32 = 1;
/// Grows with each addition to the protocol.
pub const PROTOCOL_MINOR: u32 = 0;
/// Maximum bytes of one frame, without descriptors.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;
/// Maximum file descriptors in one packet.
pub const FDS_PER_PACKET_MAX: usize = 128;
/// Maximum parts in one `Mapped`, `Unmapped` or `Revoke` frame.
pub const PARTS_PER_FRAME_MAX: usize = 1024;
/// Maximum steps of a `Sequence`, and maximum ranges in all its steps together.
pub const SEQUENCE_STEPS_MAX: usize = 2048;
/// Maximum parts of all steps of a `Sequence`. A part counts once for each step that names it.
pub const SEQUENCE_PARTS_MAX: usize = 65_536;

/// Maximum allocations of a `WorkingSet`.
pub const WORKING_SET_ALLOCATIONS_MAX: usize = 4096;

/// Maximum orders of a `ManagedOrders`.
pub const MANAGED_ORDERS_MAX: usize = 512;

/// Maximum bytes of the problem of one order that failed.
pub const MANAGED_PROBLEM_BYTES_MAX: usize = 64;

/// The bit of a feature in `Hello.features` and `Welcome.features`.
pub const fn feature_bit(feature: crate::v1::Feature) -> u64 {
    1 << (feature as u32)
}

/// All features of this build.
pub const FEATURES: u64 = feature_bit(crate::v1::Feature::StandingMappings)
    | PINS
    | PRESSURE
    | PREFETCH
    | SEQUENCES
    | TURNS
    | MANAGED_ORDERS;

/// The bit of [`crate::v1::Feature::Pins`].
pub const PINS: u64 = feature_bit(crate::v1::Feature::Pins);

/// The bit of [`crate::v1::Feature::Prefetch`].
pub const PREFETCH: u64 = feature_bit(crate::v1::Feature::Prefetch);

/// The bit of [`crate::v1::Feature::Sequences`].
pub const SEQUENCES: u64 = feature_bit(crate::v1::Feature::Sequences);

/// The bit of [`crate::v1::Feature::Turns`].
pub const TURNS: u64 = feature_bit(crate::v1::Feature::Turns);

/// The bit of [`crate::v1::Feature::ManagedOrders`].
pub const MANAGED_ORDERS: u64 = feature_bit(crate::v1::Feature::ManagedOrders);

/// The bit of [`crate::v1::Feature::Pressure`].
pub const PRESSURE: u64 = feature_bit(crate::v1::Feature::Pressure);
