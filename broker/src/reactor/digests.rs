//! What the driver hashes: an allocation that is sealed, or both ends of a copy that should not be needed, since its
//! destination is the shadow of its source. A driver knows tickets alone.

use std::collections::BTreeMap;

use broker_driver::CopyError;
use vramd_types::{AllocationId, Bytes, ExtentId};

type Digest = [u8; 32];

#[derive(Debug, Default)]
pub(super) struct Digests {
    last: u64,
    tickets: BTreeMap<u64, Subject>,
    /// By where they would be copied to.
    shadows: BTreeMap<ExtentId, Shadow>,
}

#[derive(Clone, Copy, Debug)]
enum Subject {
    Allocation(AllocationId),
    /// One end of that shadow's copy.
    End(ExtentId),
}

#[derive(Debug)]
struct Shadow {
    from: ExtentId,
    bytes: Bytes,
    cancelled: bool,
    /// Of the end that was hashed first.
    first: Option<Result<Digest, CopyError>>,
}

/// What is known once there is no more to hash.
#[derive(Debug)]
pub(super) enum Hashed {
    Allocation(AllocationId, Result<Digest, CopyError>),
    /// It need not be copied, or nobody wants that any more.
    Compared {
        to: ExtentId,
        result: Result<(), String>,
    },
    /// It is to be copied: what is there differs, or could not be hashed.
    Copy {
        from: ExtentId,
        to: ExtentId,
        bytes: Bytes,
        differs: bool,
    },
}

impl Digests {
    pub(super) fn of_allocation(&mut self, allocation: AllocationId) -> u64 {
        self.ticket(Subject::Allocation(allocation))
    }

    /// A ticket for each end.
    pub(super) fn of_shadow(&mut self, from: ExtentId, to: ExtentId, bytes: Bytes) -> [(u64, ExtentId); 2] {
        self.shadows.insert(to, Shadow { from, bytes, cancelled: false, first: None });
        [from, to].map(|end| (self.ticket(Subject::End(to)), end))
    }

    /// Nobody wants it copied any more; whether it is still compared.
    pub(super) fn cancel(&mut self, to: ExtentId) -> bool {
        self.shadows.get_mut(&to).map(|shadow| shadow.cancelled = true).is_some()
    }

    /// The driver's answer. `None`: the other end is being hashed still.
    pub(super) fn ended(&mut self, ticket: u64, result: Result<Digest, CopyError>) -> Option<Hashed> {
        let to = match self.tickets.remove(&ticket)? {
            Subject::Allocation(allocation) => return Some(Hashed::Allocation(allocation, result)),
            Subject::End(to) => to,
        };
        let shadow = self.shadows.get_mut(&to)?;
        let Some(first) = shadow.first.take() else {
            shadow.first = Some(result);
            return None;
        };
        let Shadow { from, bytes, cancelled, .. } = self.shadows.remove(&to)?;
        Some(match (first, result) {
            _ if cancelled => Hashed::Compared { to, result: Err("cancelled".to_owned()) },
            (Ok(one), Ok(other)) if one == other => Hashed::Compared { to, result: Ok(()) },
            (Ok(_), Ok(_)) => Hashed::Copy { from, to, bytes, differs: true },
            _ => Hashed::Copy { from, to, bytes, differs: false },
        })
    }

    fn ticket(&mut self, subject: Subject) -> u64 {
        self.last += 1;
        self.tickets.insert(self.last, subject);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: ExtentId = ExtentId::from_raw(3);
    const TO: ExtentId = ExtentId::from_raw(7);

    /// The end of a comparison of digests of these bytes; `None` could not be hashed.
    fn compared(digests: &mut Digests, ends: [Option<u8>; 2]) -> Hashed {
        let [(one, _), (other, _)] = digests.of_shadow(FROM, TO, Bytes::mib(2));
        let hashed = |end: Option<u8>| end.map(|byte| [byte; 32]).ok_or(CopyError::Cancelled);
        // They end in any order.
        assert!(digests.ended(other, hashed(ends[1])).is_none(), "one end is not enough");
        digests.ended(one, hashed(ends[0])).expect("both are hashed")
    }

    #[test]
    fn what_a_shadow_holds_is_not_copied_again() {
        let same = compared(&mut Digests::default(), [Some(1), Some(1)]);
        assert!(matches!(same, Hashed::Compared { to: TO, result: Ok(()) }), "{same:?}");
    }

    #[test]
    fn what_differs_is_copied_and_so_is_what_cannot_be_hashed() {
        let mut digests = Digests::default();
        for (ends, should) in [([Some(1), Some(2)], true), ([Some(1), None], false), ([None, None], false)] {
            let Hashed::Copy { from: FROM, to: TO, bytes, differs } = compared(&mut digests, ends) else {
                panic!("{ends:?} is to be copied");
            };
            assert_eq!((bytes, differs), (Bytes::mib(2), should), "{ends:?}");
        }
        assert!(digests.shadows.is_empty() && digests.tickets.is_empty(), "{digests:?}");
    }

    #[test]
    fn what_is_cancelled_is_answered_once_nothing_is_hashed() {
        let mut digests = Digests::default();
        let [(one, _), (other, _)] = digests.of_shadow(FROM, TO, Bytes::mib(2));
        assert!(digests.cancel(TO));
        assert!(digests.ended(one, Ok([1; 32])).is_none());
        let ended = digests.ended(other, Ok([2; 32]));
        assert!(matches!(ended, Some(Hashed::Compared { to: TO, result: Err(_) })), "{ended:?}");
        assert!(!digests.cancel(TO), "a copy of the same extents is another matter");
    }

    #[test]
    fn a_sealed_allocation_is_told_from_an_extent_of_the_same_number() {
        let mut digests = Digests::default();
        let sealed = digests.of_allocation(AllocationId::from_raw(TO.get()));
        let [(one, _), (other, _)] = digests.of_shadow(FROM, TO, Bytes::mib(2));
        assert!(sealed != one && sealed != other && one != other);
        let ended = digests.ended(sealed, Ok([1; 32]));
        assert!(matches!(ended, Some(Hashed::Allocation(id, Ok(_))) if id.get() == TO.get()), "{ended:?}");
    }
}
