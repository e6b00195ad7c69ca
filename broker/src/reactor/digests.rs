//! What the driver hashes: an allocation that is sealed, or both ends of a copy that should not be needed, since its
//! destination is the comparison of its source. A driver knows tickets alone.

use std::collections::BTreeMap;

use broker_driver::CopyError;
use vramd_types::{AllocationId, Bytes, ExtentId};

type Digest = [u8; 32];

#[derive(Debug, Default)]
pub(super) struct Digests {
    last: u64,
    tickets: BTreeMap<u64, Subject>,
    /// By where they would be copied to.
    comparisons: BTreeMap<ExtentId, Comparison>,
}

#[derive(Clone, Copy, Debug)]
enum Subject {
    Allocation(AllocationId),
    /// One end of that comparison's copy.
    End(ExtentId),
}

#[derive(Debug)]
struct Comparison {
    from: ExtentId,
    bytes: Bytes,
    cancelled: bool,
    /// Of the end that was hashed first.
    first: Option<Result<Digest, CopyError>>,
}

/// What is known once there is no more to hash.
#[derive(Debug)]
pub(super) enum DigestOutcome {
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
    pub(super) fn begin_allocation(&mut self, allocation: AllocationId) -> u64 {
        self.issue_ticket(Subject::Allocation(allocation))
    }

    /// A ticket for each end.
    pub(super) fn begin_comparison(
        &mut self,
        from: ExtentId,
        to: ExtentId,
        bytes: Bytes,
    ) -> [(u64, ExtentId); 2] {
        self.comparisons.insert(to, Comparison { from, bytes, cancelled: false, first: None });
        [from, to].map(|end| (self.issue_ticket(Subject::End(to)), end))
    }

    /// Nobody wants it copied any more; whether it is still compared.
    pub(super) fn cancel(&mut self, to: ExtentId) -> bool {
        self.comparisons.get_mut(&to).map(|comparison| comparison.cancelled = true).is_some()
    }

    /// The driver's answer. `None`: the other end is being hashed still.
    pub(super) fn end(&mut self, ticket: u64, result: Result<Digest, CopyError>) -> Option<DigestOutcome> {
        let to = match self.tickets.remove(&ticket)? {
            Subject::Allocation(allocation) => return Some(DigestOutcome::Allocation(allocation, result)),
            Subject::End(to) => to,
        };
        let comparison = self.comparisons.get_mut(&to)?;
        let Some(first) = comparison.first.take() else {
            comparison.first = Some(result);
            return None;
        };
        let Comparison { from, bytes, cancelled, .. } = self.comparisons.remove(&to)?;
        Some(match (first, result) {
            _ if cancelled => DigestOutcome::Compared { to, result: Err("cancelled".to_owned()) },
            (Ok(one), Ok(other)) if one == other => DigestOutcome::Compared { to, result: Ok(()) },
            (Ok(_), Ok(_)) => DigestOutcome::Copy { from, to, bytes, differs: true },
            _ => DigestOutcome::Copy { from, to, bytes, differs: false },
        })
    }

    fn issue_ticket(&mut self, subject: Subject) -> u64 {
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
    fn compared(digests: &mut Digests, ends: [Option<u8>; 2]) -> DigestOutcome {
        let [(one, _), (other, _)] = digests.begin_comparison(FROM, TO, Bytes::mib(2));
        let hashed = |end: Option<u8>| end.map(|byte| [byte; 32]).ok_or(CopyError::Cancelled);
        // They end in any order.
        assert!(digests.end(other, hashed(ends[1])).is_none(), "one end is not enough");
        digests.end(one, hashed(ends[0])).expect("both are hashed")
    }

    #[test]
    fn equal_extents_are_not_copied() {
        let same = compared(&mut Digests::default(), [Some(1), Some(1)]);
        assert!(matches!(same, DigestOutcome::Compared { to: TO, result: Ok(()) }), "{same:?}");
    }

    #[test]
    fn extents_that_differ_or_cannot_be_hashed_are_copied() {
        let mut digests = Digests::default();
        for (ends, should) in [([Some(1), Some(2)], true), ([Some(1), None], false), ([None, None], false)] {
            let DigestOutcome::Copy { from: FROM, to: TO, bytes, differs } = compared(&mut digests, ends)
            else {
                panic!("{ends:?} is to be copied");
            };
            assert_eq!((bytes, differs), (Bytes::mib(2), should), "{ends:?}");
        }
        assert!(digests.comparisons.is_empty() && digests.tickets.is_empty(), "{digests:?}");
    }

    #[test]
    fn a_cancelled_comparison_is_answered_after_both_digests() {
        let mut digests = Digests::default();
        let [(one, _), (other, _)] = digests.begin_comparison(FROM, TO, Bytes::mib(2));
        assert!(digests.cancel(TO));
        assert!(digests.end(one, Ok([1; 32])).is_none());
        let ended = digests.end(other, Ok([2; 32]));
        assert!(matches!(ended, Some(DigestOutcome::Compared { to: TO, result: Err(_) })), "{ended:?}");
        assert!(!digests.cancel(TO), "a copy of the same extents is another matter");
    }

    #[test]
    fn an_allocation_and_an_extent_of_one_number_have_own_tickets() {
        let mut digests = Digests::default();
        let sealed = digests.begin_allocation(AllocationId::from_raw(TO.get()));
        let [(one, _), (other, _)] = digests.begin_comparison(FROM, TO, Bytes::mib(2));
        assert!(sealed != one && sealed != other && one != other);
        let ended = digests.end(sealed, Ok([1; 32]));
        assert!(
            matches!(ended, Some(DigestOutcome::Allocation(id, Ok(_))) if id.get() == TO.get()),
            "{ended:?}"
        );
    }
}
