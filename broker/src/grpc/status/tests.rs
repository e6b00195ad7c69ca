use broker_core::{FullBecause, Tier};
use vramd_types::{AllocationId, Bytes, SessionId, WaitId};

use super::*;

/// One refusal of each kind, in which each text that a client may choose is `text`.
fn every_refusal(text: &str) -> Vec<Refusal> {
    use Refusal as R;
    let text = || text.to_owned();
    let allocation = AllocationId::from_shown(u64::MAX);
    let session = SessionId::from_shown(u64::MAX);
    let (tier, bytes, field) = (Tier::Device, Bytes::MAX, "items[4095].readers");
    vec![
        R::SizeInvalid { field, size: bytes },
        R::PartSizeInvalid { size: bytes },
        R::NameInvalid { field, name: text() },
        R::NameMissing,
        R::TenantMissing { name: text(), full: None },
        R::NameElsewhere { name: text(), full: text() },
        R::QuantityInvalid { field, quantity: text(), problem: text() },
        R::SettingInvalid { field, given: text(), allowed: text(), problem: text() },
        R::DeviceUnknown { device: text() },
        R::RequestInvalid { field, problem: "is missing" },
        R::RequestIdReused { request_id: [0xff; 16] },
        R::BatchTooLarge { items_max: usize::MAX, items: usize::MAX },
        R::AllocationNotFound { allocation: text() },
        R::SessionNotFound { session },
        R::QuotaNotFound { tenant: text(), device: text() },
        R::NotOwner { allocation },
        R::SessionForeign { session, pid: u32::MAX },
        R::QuotaLimit {
            tenant: text(),
            device: text(),
            tier,
            limit: bytes,
            charged: bytes,
            requested: bytes,
            is_whole_tier: true,
        },
        R::DeviceFull {
            device: text(),
            tier,
            free: bytes,
            requested: bytes,
            why: FullBecause::InUse { capacity: bytes, is_guaranteed: true, has_below: false },
        },
        R::NoRoom { waited: Duration::MAX, what: text(), why: Box::new(R::SessionMissing) },
        R::TierExhausted { device: text(), tier, requested: bytes, problem: text() },
        R::SetTooLarge { device: text(), tier, requested: bytes },
        R::SessionsTooMany { tenant: text(), limit: usize::MAX },
        R::AllocationsTooMany { tenant: text(), limit: usize::MAX },
        R::QueueFull { limit: usize::MAX },
        R::SlotsExhausted { session, limit: u32::MAX },
        R::NotSealed { allocation },
        R::AlreadySealed { allocation },
        R::StillMapped { allocation },
        R::DeviceNotVisible { device: text() },
        R::SessionLost { session },
        R::SessionMissing,
        R::ProtocolBroken { problem: text() },
        R::GuaranteeUnbacked {
            tenant: text(),
            device: text(),
            tier,
            guarantee: bytes,
            capacity: bytes,
            committed: bytes,
        },
        R::TierGuaranteed { device: text(), tier, guaranteed: bytes, requested: bytes },
        R::FileInvalid { problem: text() },
        R::FileMutable { path: text(), why: text() },
        R::ContentLost { allocation, part: vramd_types::PartIndex(3), problem: text() },
        R::Raced { allocation },
        R::PinStalled { session },
        R::MapFailed { allocation, problem: text() },
        R::WaitOver { within: std::time::Duration::from_millis(250), waited: text() },
        R::WaitCancelled { wait: WaitId::from_shown(u64::MAX) },
        R::WaitNotFound { wait: WaitId::from_shown(u64::MAX) },
        R::PrefetchNotFound { session: SessionId::from_shown(u64::MAX), number: u64::MAX },
        R::TurnHeld { session: SessionId::from_shown(u64::MAX), set: text() },
        R::TurnWaitOver { within: Duration::MAX, waited: text() },
        R::TurnNotFound { session: SessionId::from_shown(u64::MAX), set: text() },
        R::BatchNotWaiting { request_id: [7; 16] },
        R::NameTaken { name: text() },
        R::Draining,
        R::DriverFailed { device: text(), problem: text() },
        R::StoreFailed { problem: text() },
        R::AdviceForbidden { tenant: text() },
        R::AdviceContradicts { allocation, problem: "one of them" },
        R::KindUnsupported { kind: "managed" },
        R::TierUnsupported { tier },
        R::InvariantBroken { invariant: "INV-LEDGER-1" },
    ]
}

/// Reasons that only the shell or the client reports.
const NOT_FROM_THE_BROKER: [Reason; 16] = [
    Reason::NotOperator,
    Reason::PeerUnidentified,
    Reason::ProtocolVersion,
    Reason::BrokerGone,
    Reason::DigestMismatch,
    Reason::WatchesTooMany,
    Reason::TenantsFileInvalid,
    Reason::TraceRunning,
    Reason::TraceNotFound,
    Reason::UserLimit,
    Reason::OpenFilesLimit,
    Reason::PoolFull,
    Reason::PinsTooMany,
    Reason::Pinned,
    Reason::StreamCapturing,
    Reason::StreamsUnsupported,
];

#[test]
fn the_whole_registry_is_mapped() {
    let mut reasons: Vec<_> = every_refusal("x").iter().map(Refusal::reason).collect();
    reasons.extend(NOT_FROM_THE_BROKER);
    reasons.sort_unstable();
    // Several refusals may have one reason.
    reasons.dedup();
    let mut registry = Reason::ALL.to_vec();
    registry.sort_unstable();
    assert_eq!(reasons, registry);
}

#[test]
fn each_status_has_the_code_and_facts_of_its_reason() {
    for refusal in every_refusal("llama") {
        let reason = refusal.reason();
        let status = refused(&refusal);
        let details = status.get_error_details();
        assert_eq!(i32::from(status.code()), reason.code() as i32, "{reason}");
        assert_eq!(status.message(), refusal.to_string(), "{reason}");

        let info = details.error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), (reason.name(), "vramd"));
        let mut keys: Vec<_> = info.metadata.keys().map(String::as_str).collect();
        let mut promised = reason.facts().to_vec();
        keys.sort_unstable();
        promised.sort_unstable();
        assert_eq!(keys, promised, "{reason}");

        let item = item_refused(&refusal);
        assert_eq!(
            (item.code, item.reason, item.metadata),
            (status.code().into(), info.reason.clone(), info.metadata.clone())
        );
    }
}

#[test]
fn each_family_has_its_standard_detail() {
    for refusal in every_refusal("llama") {
        let reason = refusal.reason();
        let details = refused(&refusal).get_error_details();
        let field = details.bad_request().map(|bad| bad.field_violations[0].field.clone());
        let fact = details.error_info().and_then(|info| info.metadata.get("field").cloned());
        assert_eq!(field.is_some(), reason.code() == StatusCode::InvalidArgument, "{reason}");
        assert!(fact.is_none() || fact == field, "{reason}: {fact:?} {field:?}");

        let resource = matches!(reason.code(), StatusCode::NotFound | StatusCode::AlreadyExists);
        assert_eq!(details.resource_info().is_some(), resource, "{reason}");
        let unmet = reason.code() == StatusCode::FailedPrecondition;
        assert_eq!(details.precondition_failure().is_some(), unmet, "{reason}");
        let exhausted = reason.code() == StatusCode::ResourceExhausted;
        let either = details.quota_failure().is_some() ^ details.retry_info().is_some();
        assert_eq!(either, exhausted || reason.code() == StatusCode::Unavailable, "{reason}");
    }
    let all = every_refusal("team-a");
    let limit = all.iter().find(|refusal| refusal.reason() == Reason::QuotaLimit).unwrap();
    let limit = refused(limit).get_error_details();
    assert_eq!(limit.quota_failure().unwrap().violations[0].subject, "tenant:team-a");
}

#[test]
fn no_text_of_a_client_makes_a_status_large() {
    for text in ["ä".repeat(1 << 20), "\u{1}".repeat(1 << 20)] {
        for refusal in every_refusal(&text) {
            let status = refused(&refusal);
            let headers = status.clone().into_http::<()>().headers().clone();
            let bytes: usize = headers.iter().map(|(key, value)| key.as_str().len() + value.len()).sum();
            assert!(bytes < 7 << 10, "{}: {bytes}", refusal.reason());
        }
    }
}

#[test]
fn refusals_of_the_shell_match_the_registry() {
    let statuses = [
        (Reason::NotOperator, not_operator(1000)),
        (Reason::PeerUnidentified, unidentified()),
        (Reason::Deadline, deadline("Seal", Duration::from_secs(1), Some("it waits"))),
        (Reason::BrokerGone, stopping()),
    ];
    for (reason, status) in statuses {
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((status.code() as i32, info.reason.as_str()), (reason.code() as i32, reason.name()));
        assert!(reason.facts().iter().all(|fact| info.metadata.contains_key(*fact)), "{reason}");
    }
}

#[test]
fn cutting_keeps_whole_characters() {
    assert_eq!(cut("short", 5), "short");
    assert_eq!(cut("longer", 5), "lo…");
    assert_eq!(cut("ääää", 6), "ä…");
}

#[test]
fn a_wrong_tenants_file_is_a_bad_request_with_its_place() {
    let not_utf8 = crate::config::TenantsFile::parse_bytes(b"# fine\n\xff").unwrap_err();
    let unknown = crate::config::TenantsFile::parse("[[tenants]]\ntenantt = 1\n").unwrap_err();
    for (location, field) in [(not_utf8, "content"), (unknown, "tenants[0].tenantt")] {
        let status = tenants_file_wrong("f:2:1", &location);
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.metadata["line"].as_str()), ("TENANTS_FILE_INVALID", "2"));
        assert_eq!(info.metadata["field"], field);
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, field);
        assert_eq!(info.metadata.len(), Reason::TenantsFileInvalid.facts().len());
    }
}
