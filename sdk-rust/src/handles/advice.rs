//! What an owner knows about the use of its memory.

use vramd_proto::v1;

/// How an allocation is used, as its owner says ([`crate::Allocation::advise`]). It holds until other advice is given, or the
/// allocation is gone; what it says already is no error.
///
/// It pays for what is read less than about once each time it would have come, or about half of it where it must be mapped anew: a
/// kernel reads the host's memory over the same link that a copy takes, at about the same speed, and what is read in place takes
/// no room on the device. What is read again and again belongs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Its device accesses it in place: what of it lies in the host's memory is mapped there for whoever pins it, at the same
    /// address, and does not come to the device. What lies on the device stays until its room is needed; what lies on disk or
    /// in a file comes to the device as ever. For movable memory that is not discardable. `TIER_UNSUPPORTED` where clients cannot
    /// map the host's memory.
    SetAccessedBy,
    /// No more: whoever maps a part there unmaps it as soon as nobody pins it, and who pins it then has it come.
    UnsetAccessedBy,
}

impl From<Advice> for v1::Advice {
    fn from(advice: Advice) -> Self {
        match advice {
            Advice::SetAccessedBy => Self::SetAccessedBy,
            Advice::UnsetAccessedBy => Self::UnsetAccessedBy,
        }
    }
}
