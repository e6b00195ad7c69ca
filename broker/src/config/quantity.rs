//! Quantities in the configuration: text as people type it, or a bare integer of bytes.

use std::fmt;

use serde::{Deserialize, Deserializer, de};
use vramd_types::{Bytes, Quantity};

use super::HostSize;

/// A [`Quantity`] that is read from `"24GiB"`, `"90%"` or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantityText(pub Quantity);

struct Visitor;

impl de::Visitor<'_> for Visitor {
    type Value = QuantityText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity like \"24GiB\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<QuantityText, E> {
        text.parse().map(QuantityText).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<QuantityText, E> {
        let bytes = u64::try_from(bytes)
            .map_err(|_| E::custom(format!("{bytes} is below zero; a quantity is not negative")))?;
        self.visit_u64(bytes)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<QuantityText, E> {
        Ok(QuantityText(Quantity::Bytes(Bytes::new(bytes))))
    }
}

impl<'de> Deserialize<'de> for QuantityText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

/// Reads a number of bytes, and refuses a share.
pub(super) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    bytes_of(QuantityText::deserialize(deserializer)?)
}

fn bytes_of<E: de::Error>(text: QuantityText) -> Result<Bytes, E> {
    match text.0 {
        Quantity::Bytes(bytes) => Ok(bytes),
        Quantity::Percent(_) => Err(E::custom("a share is not allowed here; give a number of bytes")),
    }
}

/// Reads a number of bytes, or `"auto"`.
pub(super) fn host_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HostSize, D::Error> {
    /// [`QuantityText`], and one word.
    struct SizeVisitor;

    impl de::Visitor<'_> for SizeVisitor {
        type Value = HostSize;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("\"auto\" or a quantity like \"24GiB\"")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<HostSize, E> {
            if text == "auto" { Ok(HostSize::Auto) } else { of(Visitor.visit_str(text)?) }
        }

        fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<HostSize, E> {
            of(Visitor.visit_i64(bytes)?)
        }

        fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<HostSize, E> {
            of(Visitor.visit_u64(bytes)?)
        }
    }

    fn of<E: de::Error>(text: QuantityText) -> Result<HostSize, E> {
        bytes_of(text).map(HostSize::Bytes)
    }
    deserializer.deserialize_any(SizeVisitor)
}

/// Reads a number of bytes that is a multiple of an extent's granularity.
pub(super) fn whole_extents<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let size = bytes(deserializer)?;
    match size.is_multiple_of(vramd_types::GRANULARITY) {
        true => Ok(size),
        false => Err(de::Error::custom(format!("{size} is not a multiple of 2 MiB"))),
    }
}

/// Reads the size of a part: a multiple of 2 MiB that the core accepts.
pub(super) fn part_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let size = bytes(deserializer)?;
    let largest = broker_core::limits::PART_SIZE_MAX;
    if !size.is_zero() && size.is_multiple_of(vramd_types::GRANULARITY) && size <= largest {
        Ok(size)
    } else {
        Err(de::Error::custom(format!("{size} is not a multiple of 2 MiB from 2 MiB to {largest}")))
    }
}

/// Reads the size of a simulated device, in which at least one extent fits.
pub(super) fn device_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let size = bytes(deserializer)?;
    if size < vramd_types::GRANULARITY {
        return Err(de::Error::custom(format!("{size} is less than 2 MiB")));
    }
    Ok(size)
}
