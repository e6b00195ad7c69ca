//! Bounds the requests of each method: on the wire, and once they are decoded.
//!
//! A repeated field of two bytes on the wire is a hundred in memory. So the items of a batch are counted before any is
//! decoded, with the core's own bounds.

use broker_core::Refusal;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::config::TENANTS_FILE_BYTES_MAX;

const ALLOCATE_BATCH: &str = "/vramd.v1.MemoryService/AllocateBatch";
const FREE_BATCH: &str = "/vramd.v1.MemoryService/FreeBatch";
const APPLY_TENANTS: &str = "/vramd.v1.AdminService/ApplyTenants";
const DETACH: &str = "/vramd.v1.MemoryService/Detach";
/// The methods whose client sends more than one message begin with this.
const REFLECTION: &str = "/grpc.reflection.";

/// Fields of `AllocateBatchRequest` and of `AllocationSpec`.
const ITEMS: u32 = 3;
const READERS: u32 = 6;

/// Maximum bytes of a batch, and of a request without a rule of its own.
const BATCH_BYTES_MAX: usize = 4 << 20;
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of a tenants file, with its source. The daemon refuses a larger file with its reason.
const TENANTS_BYTES_MAX: usize = TENANTS_FILE_BYTES_MAX + REQUEST_BYTES_MAX;
/// Maximum bytes of an id on the wire, with the field's key.
const ID_BYTES_MAX: usize = 11;

/// The bytes of an item and of a reader in memory beside their text, in the message and in the core.
const ITEM_BYTES: usize = 512;
const READER_BYTES: usize = 64;
/// An id of one byte on the wire takes eight in memory, an empty text 24.
const ID_GROWTH: usize = 8;
const FIELD_GROWTH: usize = 12;

/// The bounds that the configuration sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageRules {
    pub(super) batch_items_max: usize,
    pub(super) readers_max: usize,
}

/// The messages that the client of a method sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One message of at most this many bytes.
    Message { bytes_max: usize },
    /// Messages until it ends the call.
    Stream,
}

impl MessageRules {
    pub(super) fn shape(self, path: &str) -> Shape {
        let bytes_max = match path {
            ALLOCATE_BATCH => BATCH_BYTES_MAX,
            // The core refuses a batch with a few ids more.
            FREE_BATCH | DETACH => {
                let ids = self.batch_items_max.saturating_mul(ID_BYTES_MAX);
                ids.saturating_add(REQUEST_BYTES_MAX).min(BATCH_BYTES_MAX)
            }
            APPLY_TENANTS => TENANTS_BYTES_MAX,
            path if path.starts_with(REFLECTION) => return Shape::Stream,
            _ => REQUEST_BYTES_MAX,
        };
        Shape::Message { bytes_max }
    }

    /// Returns an upper bound of the bytes that a message takes once it is decoded, or the core's refusal of a batch
    /// with too many items.
    pub(super) fn decoded_bytes(self, path: &str, message: &[u8]) -> Result<usize, Refusal> {
        let growth = match path {
            ALLOCATE_BATCH => return self.batch_bytes(message),
            FREE_BATCH | DETACH => ID_GROWTH,
            _ => FIELD_GROWTH,
        };
        Ok(message.len() * growth)
    }

    fn batch_bytes(self, message: &[u8]) -> Result<usize, Refusal> {
        let (mut items, mut readers_of_all, mut most_readers) = (0, 0, 0);
        each_text(message, ITEMS, |item| {
            items += 1;
            let mut readers = 0;
            each_text(item, READERS, |_| readers += 1);
            readers_of_all += readers;
            most_readers = most_readers.max(readers);
        });
        let too_many = |items_max, items| Err(Refusal::BatchTooLarge { items_max, items });
        if items > self.batch_items_max {
            return too_many(self.batch_items_max, items);
        }
        if most_readers > self.readers_max {
            return too_many(self.readers_max, most_readers);
        }
        Ok(message.len() + items * ITEM_BYTES + readers_of_all * READER_BYTES)
    }
}

/// Calls `note` with each field of this number that has a length. Ends at the first fault, as the decoder does.
fn each_text<'a>(mut message: &'a [u8], number: u32, mut note: impl FnMut(&'a [u8])) {
    while let Ok((field, wire_type)) = decode_key(&mut message) {
        if wire_type != WireType::LengthDelimited {
            if skip_field(wire_type, field, &mut message, DecodeContext::default()).is_err() {
                return;
            }
            continue;
        }
        let length = decode_varint(&mut message).ok().and_then(|length| usize::try_from(length).ok());
        let Some((text, rest)) = length.and_then(|length| message.split_at_checked(length)) else { return };
        message = rest;
        if field == number {
            note(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use vramd_proto::v1::{AllocateBatchRequest, AllocationSpec};

    use super::*;

    const RULES: MessageRules = MessageRules { batch_items_max: 3, readers_max: 2 };

    fn batch(items: usize, readers: usize) -> Vec<u8> {
        let spec =
            AllocationSpec { size_bytes: 1, readers: vec!["b".to_owned(); readers], ..Default::default() };
        let request_id = vec![7; 16];
        AllocateBatchRequest { session_id: 9, request_id, items: vec![spec; items], wait_ms: 5 }
            .encode_to_vec()
    }

    #[test]
    fn items_and_readers_are_counted_before_they_are_decoded() {
        let bytes = |message: &[u8]| RULES.decoded_bytes(ALLOCATE_BATCH, message);
        assert!(bytes(&batch(3, 2)).is_ok_and(|bytes| bytes >= 3 * ITEM_BYTES + 6 * READER_BYTES));
        let too_many = |items_max, items| Err(Refusal::BatchTooLarge { items_max, items });
        assert_eq!(bytes(&batch(4, 0)), too_many(3, 4));
        assert_eq!(bytes(&batch(1, 3)), too_many(2, 3));
        assert_eq!(bytes(&[0x1a, 0].repeat(2_000_000)), too_many(3, 2_000_000));
    }

    #[test]
    fn a_malformed_message_is_counted_up_to_its_fault() {
        let whole = batch(3, 2);
        for end in 0..whole.len() {
            assert!(RULES.decoded_bytes(ALLOCATE_BATCH, &whole[..end]).is_ok());
        }
        let mut message = batch(4, 0);
        message.push(0xff);
        assert!(RULES.decoded_bytes(ALLOCATE_BATCH, &message).is_err());
    }

    #[test]
    fn each_method_has_a_bound() {
        assert_eq!(RULES.shape(ALLOCATE_BATCH), Shape::Message { bytes_max: 4 << 20 });
        assert_eq!(RULES.shape(DETACH), Shape::Message { bytes_max: (64 << 10) + 33 });
        assert_eq!(RULES.shape("/grpc.health.v1.Health/Watch"), Shape::Message { bytes_max: 64 << 10 });
        assert_eq!(RULES.shape("/nonsense"), Shape::Message { bytes_max: 64 << 10 });
        let reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
        assert_eq!(RULES.shape(reflection), Shape::Stream);
        let many = MessageRules { batch_items_max: usize::MAX, ..RULES };
        assert_eq!(many.shape(FREE_BATCH), Shape::Message { bytes_max: 4 << 20 });
    }
}
