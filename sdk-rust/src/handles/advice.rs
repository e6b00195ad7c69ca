//! Advice: what an owner says about the use of an allocation.

use vramd_proto::v1;

/// How an allocation is used ([`crate::Allocation::advise`]). Advice holds until other advice is given or the
/// allocation is freed; repeating it is no error.
///
/// In-place access pays for memory that is read less than about once per fetch that it saves, or half of that where
/// the part must be mapped anew. A kernel reads host memory over the link that a copy would take, at about the same
/// speed, and needs no room on the device. Memory that is read again and again belongs on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The device accesses the memory in place: parts in host memory are mapped there, at the same address, for every
    /// session that pins them, and are not fetched. Parts on the device stay until their room is needed; parts on
    /// disk or in a file are fetched as usual. Only for movable memory that is not discardable. `TIER_UNSUPPORTED`
    /// where clients cannot map host memory.
    SetAccessedBy,
    /// Ends in-place access. Each session unmaps a part in host memory once it no longer pins it; its next pin
    /// fetches the part.
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
