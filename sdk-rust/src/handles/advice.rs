//! Advice: what an owner says about the use of an allocation.

use std::ops::Range;

use vramd_proto::v1;

/// How memory is used ([`crate::Allocation::advise`]). Advice holds until it is withdrawn or the allocation is freed;
/// repeating it is no error.
///
/// From [`Advice::DoNotNeed`] on it says which parts leave their device first when another client needs room. It orders
/// the parts of one tenant among themselves. Which tenant gives up memory does not depend on it. Only for movable memory.
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
    /// The parts are not needed on their device: they leave first. This ends for a part once it has left.
    DoNotNeed,
    /// Ends [`Self::DoNotNeed`].
    Need,
    /// Parts of lower importance leave first, in percent: 0 to 100. Parts without this advice count as 50.
    SetImportance(u8),
    /// Ends [`Self::SetImportance`].
    UnsetImportance,
    /// Among parts of the same importance, the class decides which leave first.
    SetClass(MemoryClass),
    /// Ends [`Self::SetClass`].
    UnsetClass,
}

/// The use of memory. Among parts of the same importance they leave in this order; memory of no class comes
/// between weights and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryClass {
    /// Intermediate results that are soon overwritten.
    Scratch,
    /// Weights. They are seldom written, so they mostly leave without a copy.
    Weights,
    Activations,
    /// A cache, such as one of keys and values.
    Cache,
}

/// The advice that stands for parts of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvisedParts {
    pub parts: Range<u32>,
    pub not_needed: bool,
    pub importance_percent: Option<u8>,
    pub class: Option<MemoryClass>,
}

impl From<v1::AdvisedParts> for AdvisedParts {
    fn from(wire: v1::AdvisedParts) -> Self {
        let class = match wire.memory_class() {
            v1::MemoryClass::Unspecified => None,
            v1::MemoryClass::Scratch => Some(MemoryClass::Scratch),
            v1::MemoryClass::Weights => Some(MemoryClass::Weights),
            v1::MemoryClass::Activations => Some(MemoryClass::Activations),
            v1::MemoryClass::Cache => Some(MemoryClass::Cache),
        };
        let span = wire.parts.unwrap_or_default();
        Self {
            parts: span.first_index..span.first_index.saturating_add(span.count),
            not_needed: wire.not_needed,
            importance_percent: wire.importance_percent.and_then(|percent| percent.try_into().ok()),
            class,
        }
    }
}

impl From<MemoryClass> for v1::MemoryClass {
    fn from(class: MemoryClass) -> Self {
        match class {
            MemoryClass::Scratch => Self::Scratch,
            MemoryClass::Weights => Self::Weights,
            MemoryClass::Activations => Self::Activations,
            MemoryClass::Cache => Self::Cache,
        }
    }
}

impl Advice {
    /// The request for these parts, or for all, without its session and ids.
    pub(crate) fn request(self, parts: Option<Range<u32>>) -> v1::AdviseRequest {
        let span = |parts: Range<u32>| v1::PartSpan {
            first_index: parts.start,
            count: parts.end.saturating_sub(parts.start),
        };
        let mut request = v1::AdviseRequest { parts: parts.map(span), ..Default::default() };
        let advice = match self {
            Self::SetAccessedBy => v1::Advice::SetAccessedBy,
            Self::UnsetAccessedBy => v1::Advice::UnsetAccessedBy,
            Self::DoNotNeed => v1::Advice::DoNotNeed,
            Self::Need => v1::Advice::Need,
            Self::SetImportance(percent) => {
                request.importance_percent = Some(percent.into());
                v1::Advice::SetImportance
            }
            Self::UnsetImportance => v1::Advice::UnsetImportance,
            Self::SetClass(class) => {
                request.set_memory_class(class.into());
                v1::Advice::SetClass
            }
            Self::UnsetClass => v1::Advice::UnsetClass,
        };
        request.set_advice(advice);
        request
    }
}
