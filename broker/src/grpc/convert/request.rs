//! Converts requests for the core. Values that a message can express and the core cannot are refused here. The core
//! checks everything that needs state or a rule.

use std::time::Duration;

use broker_core::{
    Advice, AdvicePermission, AllocationSpec, DeviceSelector, Kind, Lifetime, MemoryClass, PartSpan, Pattern,
    Preset, Refusal, RequestKey, Retention, Target, TenantClass, Tier,
};
use prost::Message;
use vramd_proto::v1;
use vramd_types::{AllocationId, Bytes, Quantity, SessionId};

use crate::events::Filter;

/// The session that a call names.
pub(in crate::grpc) fn session(id: u64) -> Result<SessionId, Refusal> {
    if id == 0 { Err(Refusal::SessionMissing) } else { Ok(SessionId::from_shown(id)) }
}

/// Returns a mutation's `request_id` and a fingerprint of its content; `None` without an id.
pub(in crate::grpc) fn key(request_id: &[u8], request: &impl Message) -> Result<Option<RequestKey>, Refusal> {
    if request_id.is_empty() {
        return Ok(None);
    }
    let id = request_id.try_into().map_err(|_| Refusal::RequestInvalid {
        field: "request_id",
        problem: "is neither empty nor 16 bytes long",
    })?;
    let digest = blake3::hash(&request.encode_to_vec());
    let mut fingerprint = [0; 16];
    fingerprint.copy_from_slice(&digest.as_bytes()[..16]);
    Ok(Some(RequestKey { id, fingerprint }))
}

/// Returns the `request_id` that a message names.
pub(in crate::grpc) fn request_id(id: &[u8]) -> Result<[u8; 16], Refusal> {
    id.try_into()
        .map_err(|_| Refusal::RequestInvalid { field: "request_id", problem: "is not 16 bytes long" })
}

pub(in crate::grpc) fn specs(items: Vec<v1::AllocationSpec>) -> Result<Vec<AllocationSpec>, Refusal> {
    items.into_iter().map(spec).collect()
}

pub(in crate::grpc) fn spec(item: v1::AllocationSpec) -> Result<AllocationSpec, Refusal> {
    Ok(AllocationSpec {
        size: Bytes::new(item.size_bytes),
        device: device(item.device)?,
        kind: kind(item.kind)?,
        lifetime: lifetime(item.lifetime)?,
        name: name(item.name)?,
        readers: item.readers,
        part_size: item.part_size_bytes.map(Bytes::new),
        replace: item.replace,
        uninitialized: item.uninitialized,
        unpinned: item.unheld,
        discardable: item.discardable,
    })
}

/// Returns how long a batch may wait. The wait must end before the daemon ends the call for taking too long.
pub(in crate::grpc) fn wait(wait_ms: u64, call_timeout: Duration) -> Result<Duration, Refusal> {
    let wait = Duration::from_millis(wait_ms);
    if wait < call_timeout {
        Ok(wait)
    } else {
        Err(Refusal::RequestInvalid {
            field: "wait_ms",
            problem: "is not shorter than `limits.request_timeout_ms`",
        })
    }
}

pub(in crate::grpc) fn allocations(ids: &[u64]) -> Vec<AllocationId> {
    ids.iter().copied().map(AllocationId::from_shown).collect()
}

/// Refuses an empty device: one that is not named is absent.
fn device(device: Option<String>) -> Result<Option<String>, Refusal> {
    match device {
        Some(device) if device.is_empty() => Err(Refusal::DeviceUnknown { device }),
        device => Ok(device),
    }
}

/// Refuses an empty name at once. The core checks all other names, of a load once its file is open.
fn name(name: Option<String>) -> Result<Option<String>, Refusal> {
    match name {
        Some(name) if name.is_empty() => Err(Refusal::NameInvalid { field: "name", name }),
        name => Ok(name),
    }
}

/// Checks the tenant of whom alone something is listed; every tenant where none is named.
pub(in crate::grpc) fn tenant(tenant: Option<String>) -> Result<Option<String>, Refusal> {
    match tenant {
        Some(name) if !vramd_types::name::is_valid(&name) => {
            Err(Refusal::NameInvalid { field: "tenant", name })
        }
        tenant => Ok(tenant),
    }
}

/// Converts the filter of a watch.
pub(in crate::grpc) fn filter(request: v1::WatchRequest) -> Result<Filter, Refusal> {
    let tenant = tenant(request.tenant)?;
    let kind = |kind: i32| match v1::EventKind::try_from(kind) {
        Ok(v1::EventKind::Unspecified) | Err(_) => Err(Refusal::RequestInvalid {
            field: "kinds",
            problem: "has a kind of event that this daemon does not know",
        }),
        Ok(kind) => Ok(kind),
    };
    Ok(Filter { tenant, kinds: request.kinds.into_iter().map(kind).collect::<Result<_, _>>()? })
}

/// Converts a oneof of `name` and `allocation_id`.
pub(in crate::grpc) fn target(target: Option<impl Into<AnyTarget>>) -> Result<Target, Refusal> {
    let missing =
        Refusal::RequestInvalid { field: "target", problem: "has neither a name nor an allocation_id" };
    target.map(|target| target.into().0).ok_or(missing)
}

/// A target from any message. Each message has its own type for the same oneof.
pub(in crate::grpc) struct AnyTarget(Target);

macro_rules! targets {
    ($($message:ident),*) => {
        $(impl From<v1::$message::Target> for AnyTarget {
            fn from(target: v1::$message::Target) -> Self {
                Self(match target {
                    v1::$message::Target::Name(name) => Target::Name(name),
                    v1::$message::Target::AllocationId(id) => Target::Id(AllocationId::from_shown(id)),
                })
            }
        })*
    };
}

targets!(
    attach_request,
    describe_allocation_request,
    show_allocation_request,
    free_allocation_request,
    advise_parts_request,
    hold_parts_request,
    move_parts_request,
    revoke_mappings_request,
    write_back_parts_request
);

pub(in crate::grpc) fn advice(message: &v1::AdviseRequest) -> Result<Advice, Refusal> {
    use v1::Advice as A;
    let invalid = |field, problem| Refusal::RequestInvalid { field, problem };
    let advice = A::try_from(message.advice).map_err(|_| unknown_value("advice"))?;
    let values = AdviceValues::of(message)?;
    let parts = message.parts.map(|span| PartSpan::new(span.first_index, span.count));
    values.check_belong_to(advice)?;
    let change = match advice {
        A::Unspecified => return Err(invalid("advice", "is missing")),
        A::SetAccessedBy | A::UnsetAccessedBy if parts.is_some() => {
            return Err(invalid("parts", "are refused: access in place is advised for a whole allocation"));
        }
        A::SetAccessedBy => return Ok(Advice::SetAccessedBy),
        A::UnsetAccessedBy => return Ok(Advice::UnsetAccessedBy),
        A::DoNotNeed => Retention::Needed(false),
        A::Need => Retention::Needed(true),
        A::WillNeed => Retention::NeededWithin(given("needed_within_ms", values.needed_within)?),
        A::SetImportance => Retention::Importance(Some(given("importance_percent", values.importance)?)),
        A::UnsetImportance => Retention::Importance(None),
        A::SetClass => Retention::Class(Some(given("memory_class", values.class)?)),
        A::UnsetClass => Retention::Class(None),
        A::SetLocation => Retention::Location(Some(given("location", values.location)?)),
        A::UnsetLocation => Retention::Location(None),
        A::SetReadMostly => Retention::ReadMostly(true),
        A::UnsetReadMostly => Retention::ReadMostly(false),
        A::SetPattern => Retention::Pattern(Some(given("pattern", values.pattern)?)),
        A::UnsetPattern => Retention::Pattern(None),
        A::Preset => Retention::Preset(given("preset", values.preset)?),
    };
    Ok(Advice::Retain { parts, change })
}

/// Converts the advice of an operator; none means that it is cleared.
pub(in crate::grpc) fn operator_advice(
    message: v1::AdvisePartsRequest,
) -> Result<(Option<PartSpan>, Option<Retention>), Refusal> {
    let invalid = |field, problem| Err(Refusal::RequestInvalid { field, problem });
    let v1::AdvisePartsRequest { parts, importance_percent, memory_class, needed_within_ms, .. } = message;
    let v1::AdvisePartsRequest { location, pattern, preset, advice: kind, clear, .. } = message;
    let as_of_owner = v1::AdviseRequest {
        parts,
        importance_percent,
        memory_class,
        needed_within_ms,
        location,
        pattern,
        preset,
        advice: kind,
        ..Default::default()
    };
    if clear {
        let plain = v1::AdviseRequest { parts, ..Default::default() };
        return match as_of_owner == plain {
            true => Ok((parts.map(|span| PartSpan::new(span.first_index, span.count)), None)),
            false => invalid("clear", "comes with advice"),
        };
    }
    match advice(&as_of_owner)? {
        Advice::Retain { parts, change } => Ok((parts, Some(change))),
        Advice::SetAccessedBy | Advice::UnsetAccessedBy => {
            invalid("advice", "is about access in place, which is for the owner to advise")
        }
    }
}

fn given<T>(field: &'static str, value: Option<T>) -> Result<T, Refusal> {
    value.ok_or(Refusal::RequestInvalid { field, problem: "is missing" })
}

/// The values in a request to advise. Each goes with one kind of advice.
struct AdviceValues {
    importance: Option<u8>,
    class: Option<MemoryClass>,
    needed_within: Option<Duration>,
    location: Option<Tier>,
    pattern: Option<Pattern>,
    preset: Option<Preset>,
}

impl AdviceValues {
    fn of(message: &v1::AdviseRequest) -> Result<Self, Refusal> {
        let percent = |percent: u32| match u8::try_from(percent) {
            Ok(percent) if percent <= 100 => Ok(percent),
            _ => Err(Refusal::RequestInvalid { field: "importance_percent", problem: "is above 100" }),
        };
        Ok(Self {
            importance: message.importance_percent.map(percent).transpose()?,
            class: memory_class(message.memory_class)?,
            needed_within: message.needed_within_ms.map(Duration::from_millis),
            location: match v1::Tier::try_from(message.location) {
                Ok(v1::Tier::Unspecified) => None,
                Ok(v1::Tier::Device) => Some(Tier::Device),
                Ok(v1::Tier::Host) => Some(Tier::Host),
                Ok(v1::Tier::Disk) => Some(Tier::Disk),
                Err(_) => return Err(unknown_value("location")),
            },
            pattern: pattern(message.pattern)?,
            preset: preset(message.preset)?,
        })
    }

    fn check_belong_to(&self, advice: v1::Advice) -> Result<(), Refusal> {
        use v1::Advice as A;
        let rules = [
            (
                "importance_percent",
                self.importance.is_some(),
                A::SetImportance,
                "goes with ADVICE_SET_IMPORTANCE only",
            ),
            ("memory_class", self.class.is_some(), A::SetClass, "goes with ADVICE_SET_CLASS only"),
            (
                "needed_within_ms",
                self.needed_within.is_some(),
                A::WillNeed,
                "goes with ADVICE_WILL_NEED only",
            ),
            ("location", self.location.is_some(), A::SetLocation, "goes with ADVICE_SET_LOCATION only"),
            ("pattern", self.pattern.is_some(), A::SetPattern, "goes with ADVICE_SET_PATTERN only"),
            ("preset", self.preset.is_some(), A::Preset, "goes with ADVICE_PRESET only"),
        ];
        let wrong = rules.into_iter().find(|(_, is_given, of, _)| *is_given && *of != advice);
        wrong.map_or(Ok(()), |(field, .., problem)| Err(Refusal::RequestInvalid { field, problem }))
    }
}

fn pattern(pattern: i32) -> Result<Option<Pattern>, Refusal> {
    use v1::AccessPattern as Wire;
    match Wire::try_from(pattern) {
        Ok(Wire::Unspecified) => Ok(None),
        Ok(Wire::Sequential) => Ok(Some(Pattern::Sequential)),
        Ok(Wire::Strided) => Ok(Some(Pattern::Strided)),
        Ok(Wire::Window) => Ok(Some(Pattern::Window)),
        Ok(Wire::Loop) => Ok(Some(Pattern::Loop)),
        Ok(Wire::Random) => Ok(Some(Pattern::Random)),
        Ok(Wire::Sparse) => Ok(Some(Pattern::Sparse)),
        Err(_) => Err(unknown_value("pattern")),
    }
}

fn preset(preset: i32) -> Result<Option<Preset>, Refusal> {
    use v1::AdvicePreset as Wire;
    match Wire::try_from(preset) {
        Ok(Wire::Unspecified) => Ok(None),
        Ok(Wire::Weights) => Ok(Some(Preset::Weights)),
        Ok(Wire::KvCache) => Ok(Some(Preset::KvCache)),
        Ok(Wire::Activations) => Ok(Some(Preset::Activations)),
        Ok(Wire::Staging) => Ok(Some(Preset::Staging)),
        Err(_) => Err(unknown_value("preset")),
    }
}

fn memory_class(class: i32) -> Result<Option<MemoryClass>, Refusal> {
    match v1::MemoryClass::try_from(class) {
        Ok(v1::MemoryClass::Unspecified) => Ok(None),
        Ok(v1::MemoryClass::Scratch) => Ok(Some(MemoryClass::Scratch)),
        Ok(v1::MemoryClass::Weights) => Ok(Some(MemoryClass::Weights)),
        Ok(v1::MemoryClass::Activations) => Ok(Some(MemoryClass::Activations)),
        Ok(v1::MemoryClass::Cache) => Ok(Some(MemoryClass::Cache)),
        Err(_) => Err(unknown_value("memory_class")),
    }
}

pub(in crate::grpc) fn tier(tier: i32) -> Result<Tier, Refusal> {
    match v1::Tier::try_from(tier) {
        Ok(v1::Tier::Unspecified | v1::Tier::Device) => Ok(Tier::Device),
        Ok(v1::Tier::Host) => Ok(Tier::Host),
        Ok(v1::Tier::Disk) => Ok(Tier::Disk),
        Err(_) => Err(unknown_value("tier")),
    }
}

/// Converts a class of tenants; none means that it stays.
pub(in crate::grpc) fn tenant_class(class: i32) -> Result<Option<TenantClass>, Refusal> {
    match v1::TenantClass::try_from(class) {
        Ok(v1::TenantClass::Unspecified) => Ok(None),
        Ok(v1::TenantClass::Background) => Ok(Some(TenantClass::Background)),
        Ok(v1::TenantClass::Utility) => Ok(Some(TenantClass::Utility)),
        Ok(v1::TenantClass::Initiated) => Ok(Some(TenantClass::Initiated)),
        Ok(v1::TenantClass::Interactive) => Ok(Some(TenantClass::Interactive)),
        Err(_) => Err(unknown_value("class")),
    }
}

/// Converts a permission for advice; none means that it stays.
pub(in crate::grpc) fn advice_permission(advice: i32) -> Result<Option<AdvicePermission>, Refusal> {
    match v1::AdvicePermission::try_from(advice) {
        Ok(v1::AdvicePermission::Unspecified) => Ok(None),
        Ok(v1::AdvicePermission::Allowed) => Ok(Some(AdvicePermission::Allowed)),
        Ok(v1::AdvicePermission::Forbidden) => Ok(Some(AdvicePermission::Forbidden)),
        Err(_) => Err(unknown_value("advice")),
    }
}

fn kind(kind: i32) -> Result<Kind, Refusal> {
    use v1::AllocationKind as Wire;
    match Wire::try_from(kind) {
        Ok(Wire::Unspecified | Wire::Movable) => Ok(Kind::Movable),
        Ok(Wire::Fixed) => Ok(Kind::Fixed),
        Ok(Wire::Managed) => Ok(Kind::Managed),
        Err(_) => Err(unknown_value("kind")),
    }
}

fn lifetime(lifetime: i32) -> Result<Lifetime, Refusal> {
    use v1::Lifetime as Wire;
    match Wire::try_from(lifetime) {
        Ok(Wire::Unspecified | Wire::Session) => Ok(Lifetime::Session),
        Ok(Wire::Persistent) => Ok(Lifetime::Persistent),
        Err(_) => Err(unknown_value("lifetime")),
    }
}

fn unknown_value(field: &'static str) -> Refusal {
    Refusal::RequestInvalid { field, problem: "has a value that this daemon does not know" }
}

/// Converts a device; none means every device.
pub(in crate::grpc) fn selector(text: Option<String>) -> Result<DeviceSelector, Refusal> {
    Ok(match device(text)? {
        Some(device) if device != "*" => DeviceSelector::One(device),
        _ => DeviceSelector::All,
    })
}

/// Parses a quantity; none means that the value stays.
pub(in crate::grpc) fn quantity(
    field: &'static str,
    text: Option<&str>,
) -> Result<Option<Quantity>, Refusal> {
    let Some(text) = text else { return Ok(None) };
    text.parse().map(Some).map_err(|error: vramd_types::QuantityError| Refusal::QuantityInvalid {
        field,
        quantity: text.to_owned(),
        problem: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invalid<T: std::fmt::Debug>(result: Result<T, Refusal>) -> &'static str {
        match result {
            Err(Refusal::RequestInvalid { field, .. } | Refusal::QuantityInvalid { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn unspecified_is_the_default_and_unknown_is_refused() {
        let plain = spec(v1::AllocationSpec { size_bytes: 1, ..Default::default() }).unwrap();
        assert_eq!((plain.kind, plain.lifetime, plain.part_size), (Kind::Movable, Lifetime::Session, None));
        assert_eq!((plain.device, plain.name, plain.unpinned), (None, None, false));
        assert_eq!(tier(0), Ok(Tier::Device));
        assert_eq!(invalid(tier(4)), "tier");
    }

    #[test]
    fn advice_comes_with_what_it_needs_and_nothing_else() {
        use v1::Advice as A;
        let plain = |kind: i32| v1::AdviseRequest { advice: kind, ..Default::default() };
        let of = |kind: A| plain(kind.into());
        assert_eq!(advice(&of(A::SetAccessedBy)), Ok(Advice::SetAccessedBy));
        for nothing in [0, 17, -1] {
            assert_eq!(invalid(advice(&plain(nothing))), "advice");
        }
        let parts = Some(v1::PartSpan { first_index: 2, count: 3 });
        assert_eq!(
            advice(&v1::AdviseRequest { parts, ..of(A::DoNotNeed) }),
            Ok(Advice::Retain { parts: Some(PartSpan::new(2, 3)), change: Retention::Needed(false) })
        );
        assert_eq!(invalid(advice(&v1::AdviseRequest { parts, ..of(A::UnsetAccessedBy) })), "parts");
        let importance =
            |kind, percent| advice(&v1::AdviseRequest { importance_percent: percent, ..of(kind) });
        let change = Retention::Importance(Some(100));
        assert_eq!(importance(A::SetImportance, Some(100)), Ok(Advice::Retain { parts: None, change }));
        for wrong in [(A::SetImportance, Some(101)), (A::SetImportance, None), (A::Need, Some(1))] {
            assert_eq!(invalid(importance(wrong.0, wrong.1)), "importance_percent", "{wrong:?}");
        }
        let refused = [
            ("needed_within_ms", of(A::WillNeed)),
            ("needed_within_ms", v1::AdviseRequest { needed_within_ms: Some(5), ..of(A::DoNotNeed) }),
            ("location", of(A::SetLocation)),
            ("location", v1::AdviseRequest { location: 4, ..of(A::SetLocation) }),
            ("location", v1::AdviseRequest { location: 1, ..of(A::UnsetLocation) }),
            ("pattern", of(A::SetPattern)),
            ("pattern", v1::AdviseRequest { pattern: 7, ..of(A::SetPattern) }),
            ("pattern", v1::AdviseRequest { pattern: 1, ..of(A::SetReadMostly) }),
            ("preset", of(A::Preset)),
            ("preset", v1::AdviseRequest { preset: 5, ..of(A::Preset) }),
            ("preset", v1::AdviseRequest { preset: 1, ..of(A::Need) }),
        ];
        for (field, request) in refused {
            assert_eq!(invalid(advice(&request)), field, "{request:?}");
        }
        let within = Retention::NeededWithin(Duration::from_millis(5));
        let accepted = [
            (within, v1::AdviseRequest { needed_within_ms: Some(5), ..of(A::WillNeed) }),
            (Retention::Location(Some(Tier::Disk)), v1::AdviseRequest { location: 3, ..of(A::SetLocation) }),
            (Retention::Location(None), of(A::UnsetLocation)),
            (Retention::ReadMostly(true), of(A::SetReadMostly)),
            (Retention::ReadMostly(false), of(A::UnsetReadMostly)),
            (Retention::Pattern(Some(Pattern::Loop)), v1::AdviseRequest { pattern: 4, ..of(A::SetPattern) }),
            (Retention::Pattern(None), of(A::UnsetPattern)),
            (Retention::Preset(Preset::KvCache), v1::AdviseRequest { preset: 2, ..of(A::Preset) }),
        ];
        for (change, request) in accepted {
            assert_eq!(advice(&request), Ok(Advice::Retain { parts: None, change }), "{request:?}");
        }
        let class = |kind, class: i32| advice(&v1::AdviseRequest { memory_class: class, ..of(kind) });
        let change = Retention::Class(Some(MemoryClass::Cache));
        assert_eq!(class(A::SetClass, 4), Ok(Advice::Retain { parts: None, change }));
        for wrong in [(A::SetClass, 0), (A::SetClass, 5), (A::UnsetClass, 1)] {
            assert_eq!(invalid(class(wrong.0, wrong.1)), "memory_class", "{wrong:?}");
        }
    }

    #[test]
    fn operators_advise_about_leaving_or_clear() {
        use v1::Advice as A;
        let parts = Some(v1::PartSpan { first_index: 2, count: 3 });
        let span = Some(PartSpan::new(2, 3));
        let of = |kind: A| v1::AdvisePartsRequest { advice: kind.into(), parts, ..Default::default() };
        let importance = v1::AdvisePartsRequest { importance_percent: Some(7), ..of(A::SetImportance) };
        assert_eq!(operator_advice(importance.clone()), Ok((span, Some(Retention::Importance(Some(7))))));
        let preset = v1::AdvisePartsRequest { preset: 1, ..of(A::Preset) };
        assert_eq!(operator_advice(preset), Ok((span, Some(Retention::Preset(Preset::Weights)))));
        let values = v1::AdvisePartsRequest { memory_class: 1, pattern: 1, ..of(A::SetLocation) };
        assert_eq!(invalid(operator_advice(values)), "memory_class");
        let clear = v1::AdvisePartsRequest { clear: true, parts, ..Default::default() };
        assert_eq!(operator_advice(clear.clone()), Ok((span, None)));
        assert_eq!(invalid(operator_advice(v1::AdvisePartsRequest { clear: true, ..importance })), "clear");
        assert_eq!(invalid(operator_advice(v1::AdvisePartsRequest { location: 1, ..clear })), "clear");
        for refused in [A::SetAccessedBy, A::UnsetAccessedBy] {
            let whole = v1::AdvisePartsRequest { parts: None, ..of(refused) };
            assert_eq!(invalid(operator_advice(whole)), "advice");
        }
        assert_eq!(invalid(operator_advice(v1::AdvisePartsRequest::default())), "advice");
        assert_eq!(advice_permission(0), Ok(None));
        assert_eq!(advice_permission(2), Ok(Some(AdvicePermission::Forbidden)));
        assert_eq!(invalid(advice_permission(3)), "advice");
    }

    #[test]
    fn unknown_kinds_and_lifetimes_are_refused() {
        assert_eq!(invalid(spec(v1::AllocationSpec { kind: -1, ..Default::default() })), "kind");
        assert_eq!(
            invalid(specs(vec![v1::AllocationSpec { lifetime: 9, ..Default::default() }])),
            "lifetime"
        );
    }

    #[test]
    fn a_wait_is_shorter_than_a_call() {
        let call = Duration::from_secs(300);
        assert_eq!(wait(0, call), Ok(Duration::ZERO));
        assert_eq!(wait(299_999, call), Ok(Duration::from_millis(299_999)));
        for long in [300_000, u64::MAX] {
            assert_eq!(invalid(wait(long, call)), "wait_ms");
        }
    }

    #[test]
    fn a_request_id_is_sixteen_bytes_or_none() {
        let seal = |allocation_id| v1::SealRequest { session_id: 1, request_id: vec![7; 16], allocation_id };
        assert_eq!(key(&[], &seal(1)), Ok(None));
        for bad in [1, 15, 17] {
            assert_eq!(invalid(key(&vec![7; bad], &seal(1))), "request_id");
        }
        let first = key(&[7; 16], &seal(1)).unwrap().unwrap();
        let again = key(&[7; 16], &seal(1)).unwrap().unwrap();
        let other = key(&[7; 16], &seal(2)).unwrap().unwrap();
        assert_eq!(first, again);
        assert_eq!(first.id, other.id);
        assert_ne!(first.fingerprint, other.fingerprint);
    }

    #[test]
    fn targets_are_names_or_ids() {
        use v1::attach_request::Target as Wire;
        assert!(
            matches!(target(Some(Wire::Name("a/b".to_owned()))), Ok(Target::Name(name)) if name == "a/b")
        );
        assert!(matches!(target(Some(Wire::AllocationId(3))), Ok(Target::Id(id)) if id.shown() == 3));
        assert_eq!(invalid(target(None::<Wire>)), "target");
    }

    #[test]
    fn quantities_are_parsed_as_people_type_them() {
        assert_eq!(quantity("limit", None), Ok(None));
        assert_eq!(quantity("limit", Some("90%")), Ok(Some(Quantity::Percent(90))));
        assert_eq!(quantity("limit", Some("24GiB")), Ok(Some(Quantity::Bytes(Bytes::gib(24)))));
        for bad in ["24 gigs", ""] {
            assert_eq!(invalid(quantity("limit", Some(bad))), "limit");
        }
        assert_eq!(selector(None), Ok(DeviceSelector::All));
        assert_eq!(selector(Some("*".to_owned())), Ok(DeviceSelector::All));
        assert_eq!(selector(Some("0".to_owned())), Ok(DeviceSelector::One("0".to_owned())));
        assert_eq!(selector(Some(String::new())), Err(Refusal::DeviceUnknown { device: String::new() }));
    }

    #[test]
    fn session_zero_is_a_missing_session() {
        assert_eq!(session(0), Err(Refusal::SessionMissing));
        assert_eq!(session(5), Ok(SessionId::from_shown(5)));
    }
}
