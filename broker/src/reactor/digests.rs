//! Tracks what the driver hashes: a sealed allocation, or both ends of a copy that should be unnecessary because its
//! destination is the clean backing of its source. The driver knows only tickets.

use std::collections::BTreeMap;

use broker_driver::CopyError;
use vramd_types::{AllocationId, Bytes, ExtentId};

type Digest = [u8; 32];

#[derive(Debug, Default)]
pub(super) struct Digests {
    last: u64,
    tickets: BTreeMap<u64, Subject>,
    /// By the extent that would be copied into.
    comparisons: BTreeMap<ExtentId, Comparison>,
}

#[derive(Clone, Copy, Debug)]
enum Subject {
    Allocation(AllocationId),
    /// One end of the comparison with that destination.
    End(ExtentId),
}

#[derive(Debug)]
struct Comparison {
    from: ExtentId,
    bytes: Bytes,
    cancelled: bool,
    /// The result of the end that was hashed first.
    first: Option<Result<Digest, CopyError>>,
}

/// The result once all digests of a subject are known.
#[derive(Debug)]
pub(super) enum DigestOutcome {
    Allocation(AllocationId, Result<Digest, CopyError>),
    /// The extents are equal, or the comparison was cancelled: there is nothing to copy.
    Compared {
        to: ExtentId,
        result: Result<(), String>,
    },
    /// The extents differ or could not be hashed: the part must be copied.
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

    /// Begins to compare two extents. Returns a ticket for each.
    pub(super) fn begin_comparison(
        &mut self,
        from: ExtentId,
        to: ExtentId,
        bytes: Bytes,
    ) -> [(u64, ExtentId); 2] {
        self.comparisons.insert(to, Comparison { from, bytes, cancelled: false, first: None });
        [from, to].map(|end| (self.issue_ticket(Subject::End(to)), end))
    }

    /// Cancels the comparison with that destination. Returns whether there was one.
    pub(super) fn cancel(&mut self, to: ExtentId) -> bool {
        self.comparisons.get_mut(&to).map(|comparison| comparison.cancelled = true).is_some()
    }

    /// Takes the driver's answer to a ticket. `None` if the other end is still being hashed.
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

    /// Compares two extents with digests of these bytes; `None` cannot be hashed.
    fn compared(digests: &mut Digests, ends: [Option<u8>; 2]) -> DigestOutcome {
        let [(one, _), (other, _)] = digests.begin_comparison(FROM, TO, Bytes::mib(2));
        let hashed = |end: Option<u8>| end.map(|byte| [byte; 32]).ok_or(CopyError::Cancelled);
        // The ends finish in any order.
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
        let sealed = digests.begin_allocation(AllocationId::from_shown(TO.get()));
        let [(one, _), (other, _)] = digests.begin_comparison(FROM, TO, Bytes::mib(2));
        assert!(sealed != one && sealed != other && one != other);
        let ended = digests.end(sealed, Ok([1; 32]));
        assert!(
            matches!(ended, Some(DigestOutcome::Allocation(id, Ok(_))) if id.shown() == TO.get()),
            "{ended:?}"
        );
    }
}
