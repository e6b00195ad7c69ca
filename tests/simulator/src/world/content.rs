//! The content of memory, which clients write and copies carry.

use broker_core::FileId;
use vramd_types::Bytes;

/// The content of one piece of memory. Each number is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Zeros,
    /// A process of the tenant wrote it.
    Written {
        tenant: &'static str,
        number: u64,
    },
    /// A file, from an offset on.
    File {
        file: FileId,
        offset: Bytes,
    },
    /// Memory that was not zeroed, or that a failed copy has spoiled: it may be anything, bytes of other
    /// tenants among it.
    Garbage(u64),
}

#[derive(Debug, Default)]
pub(super) struct Contents {
    last: u64,
}

impl Contents {
    pub(super) fn written_by(&mut self, tenant: &'static str) -> Content {
        Content::Written { tenant, number: self.next() }
    }

    pub(super) fn garbage(&mut self) -> Content {
        Content::Garbage(self.next())
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}
