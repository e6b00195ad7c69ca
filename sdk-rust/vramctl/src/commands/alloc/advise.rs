//! `vramctl alloc advise`: advice of operators about which parts leave their device first.

use clap::{Args, ValueEnum};
use vramd_client::admin::AdminClient;
use vramd_proto::v1::{self, advise_parts_request::Target as Wire};

use super::{Target, part_ranges::PartRange, show};
use crate::output::{Output, failure::Failure};

#[derive(Debug, Args)]
pub(crate) struct Advise {
    /// Id like a-1099511627777, or `tenant/name`.
    target: Target,
    /// Apply to this part alone, or to a range like `0-99`. Without it the advice is for all parts.
    #[arg(long = "part", value_name = "INDEX|FIRST-LAST")]
    range: Option<PartRange>,
    #[command(flatten)]
    advice: Advice,
}

/// Exactly one of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Advice {
    /// The parts leave before all others of their tenant, until they have left once.
    #[arg(long)]
    not_needed: bool,
    /// Ends `--not-needed` and `--needed-within-ms`. Alone it says nothing, so that no advice has an effect.
    #[arg(long)]
    needed: bool,
    /// The parts leave after all others of their tenant, until they are used or twice this time is over.
    #[arg(long)]
    needed_within_ms: Option<u64>,
    /// Parts of lower importance leave first, in percent. Parts without advice count as 50.
    #[arg(long, value_name = "PERCENT")]
    importance: Option<u32>,
    /// Scratch leaves first, then weights, memory of no class, activations and caches.
    #[arg(long, value_enum)]
    class: Option<Class>,
    /// Tier that the parts should lie in.
    #[arg(long, value_enum)]
    location: Option<Location>,
    /// The parts are seldom written: they leave before written ones.
    #[arg(long)]
    read_mostly: bool,
    /// How the program goes through the parts.
    #[arg(long, value_enum)]
    pattern: Option<Pattern>,
    /// Class, location, read mostly and pattern of a common use.
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// End all advice of operators for the parts: the owner's has an effect again.
    #[arg(long)]
    clear: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Class {
    Scratch,
    Weights,
    Activations,
    Cache,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Location {
    Device,
    Host,
    Disk,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Pattern {
    Sequential,
    Strided,
    Window,
    Loop,
    Random,
    Sparse,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Preset {
    Weights,
    KvCache,
    Activations,
    Staging,
}

pub(crate) fn run(advise: Advise, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let Advise { target, range, advice } = advise;
    let mut request = advice.request();
    request.target = Some(match target {
        Target::Id(id) => Wire::AllocationId(id.get()),
        Target::Name(name) => Wire::Name(name),
    });
    request.parts = range.map(|PartRange { first, last }| v1::PartSpan {
        first_index: first,
        count: last.saturating_sub(first).saturating_add(1),
    });
    show::show(&admin.advise_parts(request)?, output)
}

impl Advice {
    /// The request, without its parts.
    fn request(self) -> v1::AdvisePartsRequest {
        let mut request = v1::AdvisePartsRequest { clear: self.clear, ..Default::default() };
        let kinds = [
            (self.not_needed, v1::Advice::DoNotNeed),
            (self.needed, v1::Advice::Need),
            (self.needed_within_ms.is_some(), v1::Advice::WillNeed),
            (self.importance.is_some(), v1::Advice::SetImportance),
            (self.class.is_some(), v1::Advice::SetClass),
            (self.location.is_some(), v1::Advice::SetLocation),
            (self.read_mostly, v1::Advice::SetReadMostly),
            (self.pattern.is_some(), v1::Advice::SetPattern),
            (self.preset.is_some(), v1::Advice::Preset),
        ];
        if let Some((_, kind)) = kinds.into_iter().find(|(is_given, _)| *is_given) {
            request.set_advice(kind);
        }
        request.needed_within_ms = self.needed_within_ms;
        request.importance_percent = self.importance;
        request.set_memory_class(self.class.map_or(v1::MemoryClass::Unspecified, Class::wire));
        request.set_location(self.location.map_or(v1::Tier::Unspecified, Location::wire));
        request.set_pattern(self.pattern.map_or(v1::AccessPattern::Unspecified, Pattern::wire));
        request.set_preset(self.preset.map_or(v1::AdvicePreset::Unspecified, Preset::wire));
        request
    }
}

impl Class {
    const fn wire(self) -> v1::MemoryClass {
        match self {
            Self::Scratch => v1::MemoryClass::Scratch,
            Self::Weights => v1::MemoryClass::Weights,
            Self::Activations => v1::MemoryClass::Activations,
            Self::Cache => v1::MemoryClass::Cache,
        }
    }
}

impl Location {
    const fn wire(self) -> v1::Tier {
        match self {
            Self::Device => v1::Tier::Device,
            Self::Host => v1::Tier::Host,
            Self::Disk => v1::Tier::Disk,
        }
    }
}

impl Pattern {
    const fn wire(self) -> v1::AccessPattern {
        match self {
            Self::Sequential => v1::AccessPattern::Sequential,
            Self::Strided => v1::AccessPattern::Strided,
            Self::Window => v1::AccessPattern::Window,
            Self::Loop => v1::AccessPattern::Loop,
            Self::Random => v1::AccessPattern::Random,
            Self::Sparse => v1::AccessPattern::Sparse,
        }
    }
}

impl Preset {
    const fn wire(self) -> v1::AdvicePreset {
        match self {
            Self::Weights => v1::AdvicePreset::Weights,
            Self::KvCache => v1::AdvicePreset::KvCache,
            Self::Activations => v1::AdvicePreset::Activations,
            Self::Staging => v1::AdvicePreset::Staging,
        }
    }
}
