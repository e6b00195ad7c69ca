//! Numbers that both ends of `channel.sock` must agree on.

/// Refused unless both sides have the same.
pub const PROTOCOL_MAJOR: u32 = 1;
/// Grows with what is added.
pub const PROTOCOL_MINOR: u32 = 0;
/// Most bytes of one frame, descriptors not counted.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;
/// Most file descriptors in one packet.
pub const FDS_PER_PACKET_MAX: usize = 128;
/// Most parts that one `Mapped`, `Unmapped` or `Revoke` frame names.
pub const PARTS_PER_FRAME_MAX: usize = 1024;

/// The bit of a feature in `Hello.features` and `Welcome.features`.
pub const fn feature_bit(feature: crate::v1::Feature) -> u64 {
    1 << (feature as u32)
}

/// All features that this build speaks.
pub const FEATURES: u64 = feature_bit(crate::v1::Feature::StandingMappings) | PINS | PRESSURE;

/// The bit of [`crate::v1::Feature::Pins`].
pub const PINS: u64 = feature_bit(crate::v1::Feature::Pins);

/// The bit of [`crate::v1::Feature::Pressure`].
pub const PRESSURE: u64 = feature_bit(crate::v1::Feature::Pressure);
