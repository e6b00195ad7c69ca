//! Advice: what an owner says about the use of an allocation.

use std::{ops::Range, time::Duration};

use vramd_proto::v1;

use super::info::Tier;

/// How memory is used ([`crate::Allocation::advise`]). Advice holds until it is withdrawn or the allocation is freed;
/// repeating it is no error. [`crate::Error::AdviceForbidden`] if an operator forbids the tenant's advice.
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
    /// Ends [`Self::DoNotNeed`] and [`Self::WillNeed`].
    Need,
    /// The parts are needed that much later, 1 ms to a day: they leave last. This ends for a part with its first use that
    /// the daemon sees, or after twice that time. It replaces [`Self::DoNotNeed`], and is replaced by it.
    WillNeed(Duration),
    /// Parts of lower importance leave first, in percent: 0 to 100. Parts without this advice count as 50.
    SetImportance(u8),
    /// Ends [`Self::SetImportance`].
    UnsetImportance,
    /// Among parts of the same importance, the class decides which leave first.
    SetClass(MemoryClass),
    /// Ends [`Self::SetClass`].
    UnsetClass,
    /// The tier that the parts should lie in. Among parts of the same need, those that should lie below the device leave
    /// first, and those that should lie on it last. Under pressure in the host, of the cold parts those for the disk
    /// leave first and those for the host last.
    SetLocation(Tier),
    /// Ends [`Self::SetLocation`].
    UnsetLocation,
    /// The parts are seldom written. Among parts of the same class they leave first, and on a device under pressure the
    /// daemon writes them back although they are not cold, so that they leave without a copy.
    SetReadMostly,
    /// Ends [`Self::SetReadMostly`].
    UnsetReadMostly,
    /// How the parts are used orders those that are otherwise equal. It also says how much of a part each use reads: all of
    /// it, or little of a sparse one. So a pinned part in host memory moves to its device only if that pays, and is read in
    /// place otherwise.
    SetPattern(AccessPattern),
    /// Ends [`Self::SetPattern`].
    UnsetPattern,
    /// Several pieces of advice at once.
    Preset(Preset),
}

/// How a program goes through the parts of an allocation, in the order of their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessPattern {
    /// One after the other. The parts furthest behind the last use leave first, then those furthest ahead of it.
    Sequential,
    /// One after the other, with gaps. They leave as with [`Self::Sequential`].
    Strided,
    /// Some parts in a row at a time, which move on. They leave as with [`Self::Sequential`].
    Window,
    /// One after the other, again and again. The part of the last use leaves first, since it is needed again last; then
    /// those before it, and then those furthest ahead of it.
    Loop,
    /// In no order: the eviction policy decides.
    Random,
    /// Few of them, in no order: the eviction policy decides.
    Sparse,
}

/// Advice for a common use of memory. It sets class, location, pattern and [`Advice::SetReadMostly`], and withdraws those
/// that it does not name. Need and importance stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// [`MemoryClass::Weights`], mostly read.
    Weights,
    /// [`MemoryClass::Cache`], preferred on the device.
    KvCache,
    /// [`MemoryClass::Activations`].
    Activations,
    /// [`MemoryClass::Scratch`], preferred in the host, [`AccessPattern::Sequential`].
    Staging,
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

/// The advice of one giver that stands for parts of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvisedParts {
    pub parts: Range<u32>,
    pub not_needed: bool,
    pub importance_percent: Option<u8>,
    pub class: Option<MemoryClass>,
    /// When they are needed, from now on. Zero if that time has passed and the advice still stands.
    pub needed_within: Option<Duration>,
    /// The tier that they should lie in.
    pub location: Option<Tier>,
    pub read_mostly: bool,
    pub pattern: Option<AccessPattern>,
    /// Whether an operator gave it, and not the owner. For these parts the owner's advice has no effect.
    pub by_operator: bool,
    /// Whether an operator's advice stands over it, or the tenant's advice is forbidden.
    pub without_effect: bool,
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
        let pattern = match wire.pattern() {
            v1::AccessPattern::Unspecified => None,
            v1::AccessPattern::Sequential => Some(AccessPattern::Sequential),
            v1::AccessPattern::Strided => Some(AccessPattern::Strided),
            v1::AccessPattern::Window => Some(AccessPattern::Window),
            v1::AccessPattern::Loop => Some(AccessPattern::Loop),
            v1::AccessPattern::Random => Some(AccessPattern::Random),
            v1::AccessPattern::Sparse => Some(AccessPattern::Sparse),
        };
        let location = Some(wire.location()).filter(|tier| *tier != Tier::Unspecified);
        let span = wire.parts.unwrap_or_default();
        Self {
            parts: span.first_index..span.first_index.saturating_add(span.count),
            not_needed: wire.not_needed,
            importance_percent: wire.importance_percent.and_then(|percent| percent.try_into().ok()),
            class,
            needed_within: wire.needed_within_ms.map(Duration::from_millis),
            location,
            read_mostly: wire.read_mostly,
            pattern,
            by_operator: wire.source() == v1::AdviceSource::Operator,
            without_effect: wire.without_effect,
        }
    }
}

impl From<AccessPattern> for v1::AccessPattern {
    fn from(pattern: AccessPattern) -> Self {
        match pattern {
            AccessPattern::Sequential => Self::Sequential,
            AccessPattern::Strided => Self::Strided,
            AccessPattern::Window => Self::Window,
            AccessPattern::Loop => Self::Loop,
            AccessPattern::Random => Self::Random,
            AccessPattern::Sparse => Self::Sparse,
        }
    }
}

impl From<Preset> for v1::AdvicePreset {
    fn from(preset: Preset) -> Self {
        match preset {
            Preset::Weights => Self::Weights,
            Preset::KvCache => Self::KvCache,
            Preset::Activations => Self::Activations,
            Preset::Staging => Self::Staging,
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
            Self::WillNeed(within) => {
                request.needed_within_ms = Some(within.as_millis().try_into().unwrap_or(u64::MAX));
                v1::Advice::WillNeed
            }
            Self::SetLocation(tier) => {
                request.set_location(tier);
                v1::Advice::SetLocation
            }
            Self::UnsetLocation => v1::Advice::UnsetLocation,
            Self::SetReadMostly => v1::Advice::SetReadMostly,
            Self::UnsetReadMostly => v1::Advice::UnsetReadMostly,
            Self::SetPattern(pattern) => {
                request.set_pattern(pattern.into());
                v1::Advice::SetPattern
            }
            Self::UnsetPattern => v1::Advice::UnsetPattern,
            Self::Preset(preset) => {
                request.set_preset(preset.into());
                v1::Advice::Preset
            }
        };
        request.set_advice(advice);
        request
    }
}
