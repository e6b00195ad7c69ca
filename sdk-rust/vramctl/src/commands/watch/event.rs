//! Renders one event of a watch: a line for people, an object for programs.

use std::cmp::Ordering;

use serde_json::{Value, json};
use vramd_client::{AllocationId, SessionId};
use vramd_proto::v1::{
    self, allocation_event::Change as AllocationChange, device_event::Change as DeviceChange,
    move_event::Change as MoveChange, node_event::Change as NodeChange, prefetch_event::End as PrefetchEnd,
    quota_event::Change as QuotaChange, revoke_event::Change as RevokeChange,
    session_event::Change as SessionChange, watch_response::Event,
};
use vramd_types::PrefetchNumber;

use super::turns;
use crate::{
    commands::{
        moves::cause_name,
        names::{level_name, tier_name},
        settings,
        tenant::{class_name, permission_name, source_name},
    },
    output::text::{plain, size, text_or_dash},
};

/// One event, rendered.
#[derive(Debug)]
pub(crate) struct EventReport {
    /// Time, tenant, and what happened.
    pub(crate) line: String,
    pub(crate) fields: Value,
}

/// An event: its kind and change, its fields for programs, its text for people.
pub(super) struct Description {
    pub(super) kind: &'static str,
    pub(super) change: &'static str,
    pub(super) fields: Value,
    pub(super) text: String,
}

impl EventReport {
    pub(crate) fn new(event: &v1::WatchResponse) -> Self {
        let Description { kind, change, fields, text } = describe(event.event.as_ref(), event.sequence);
        let at = event.happened_at.as_ref().map(ToString::to_string);
        let line = format!(
            "{}  {}  {kind} {text}",
            at.as_deref().unwrap_or("-"),
            plain(&text_or_dash(&event.tenant))
        );
        let mut all = json!({
            "sequence": event.sequence,
            "happened_at": at,
            "tenant": event.tenant,
            "kind": kind,
            "change": change,
        });
        if let (Value::Object(all), Value::Object(fields)) = (&mut all, fields) {
            all.extend(fields);
        }
        Self { line, fields: all }
    }
}

fn describe(event: Option<&Event>, sequence: u64) -> Description {
    match event {
        Some(Event::Begun(begun)) => Description {
            kind: "watch",
            change: "begun",
            fields: json!({ "boot_epoch": begun.boot_epoch }),
            text: format!("begun after event {sequence}"),
        },
        Some(Event::Missed(missed)) => Description {
            kind: "watch",
            change: "missed",
            fields: json!({ "count": missed.count }),
            text: format!("missed {} events: this reader was too slow", missed.count),
        },
        Some(Event::Session(session)) => describe_session(session),
        Some(Event::Quota(quota)) => describe_quota(quota),
        Some(Event::Refusal(refusal)) => describe_refusal(refusal),
        Some(Event::Revoke(revoke)) => describe_revoke(revoke),
        Some(Event::Allocation(allocation)) => describe_allocation(allocation),
        Some(Event::Device(device)) => describe_device(device),
        Some(Event::Node(node)) => describe_node(node),
        Some(Event::Move(moved)) => describe_move(moved),
        Some(Event::Pressure(pressure)) => describe_pressure(pressure),
        Some(Event::Settings(changed)) => describe_settings(changed),
        Some(Event::Prefetch(ended)) => describe_prefetch(ended),
        Some(Event::Turn(turn)) => turns::describe(turn),
        Some(Event::TenantChange(tenant)) => describe_tenant(tenant),
        None => Description {
            kind: "unknown",
            change: "unknown",
            fields: json!({}),
            text: "event of a newer daemon".to_owned(),
        },
    }
}

fn describe_session(event: &v1::SessionEvent) -> Description {
    let session = SessionId::from_raw(event.session_id);
    let detail = plain(&event.detail);
    let (change, text) = match event.change() {
        SessionChange::Unspecified => ("unknown", format!("{session}")),
        SessionChange::Opened => ("opened", format!("{session} opened by process {}", event.pid)),
        SessionChange::Silent => ("silent", format!("{session} silent: {detail}")),
        SessionChange::Killed => ("killed", format!("{session} killed: {detail}")),
        SessionChange::Answered => ("answered", format!("{session} answered, and is live again")),
        SessionChange::Gone => ("gone", format!("{session} gone")),
        SessionChange::MapFailed => {
            let allocation = AllocationId::from_raw(event.allocation_id);
            let part = event.part_index;
            ("map_failed", format!("{session} could not map part {part} of {allocation}: {detail}"))
        }
    };
    let fields = json!({
        "session_id": session.to_string(),
        "pid": nonzero(event.pid.into()),
        "detail": event.detail,
        "allocation_id": allocation(event.allocation_id),
        "part_index": (event.allocation_id != 0).then_some(event.part_index),
    });
    Description { kind: "session", change, fields, text }
}

fn describe_tenant(event: &v1::TenantEvent) -> Description {
    let (class, source) = (class_name(event.class()), source_name(event.source()));
    let advice = permission_name(event.advice());
    let text = format!("class {class}, weight {}, advice {advice}, set by: {source}", event.weight);
    let fields = json!({ "class": class, "weight": event.weight, "advice": advice, "source": source });
    Description { kind: "tenant", change: "set", fields, text }
}

fn describe_prefetch(event: &v1::PrefetchEvent) -> Description {
    let session = SessionId::from_raw(event.session_id);
    let (number, bytes) = (event.prefetch_id, size(event.bytes));
    let (change, text) = match event.end() {
        PrefetchEnd::Unspecified => ("unknown", "ended"),
        PrefetchEnd::Ready => ("ready", "is ready"),
        PrefetchEnd::Late => ("late", "is ready, after its deadline"),
        PrefetchEnd::Dropped => ("dropped", "left again before any session used it"),
        PrefetchEnd::Cancelled => ("cancelled", "was cancelled"),
        PrefetchEnd::Failed => ("failed", "failed"),
        PrefetchEnd::Wasted => ("wasted", "was not used in the step that it was for"),
    };
    let is_dropped = event.drop_cause() != v1::MoveCause::Unspecified;
    let cause = is_dropped.then(|| cause_name(event.drop_cause()));
    let tenant = (!event.drop_tenant.is_empty()).then_some(&event.drop_tenant);
    let why = match (cause, tenant) {
        (None, _) => String::new(),
        (Some(cause), None) => format!(" (for {cause})"),
        (Some(cause), Some(tenant)) => format!(" (for {cause} of tenant {})", plain(tenant)),
    };
    let shown = PrefetchNumber(number);
    let text = format!("{shown} of {session}, {bytes} on device {}, {text}{why}", event.device);
    let fields = json!({
        "session_id": session.to_string(),
        "prefetch_id": number,
        "device": event.device,
        "bytes": event.bytes,
        "drop_cause": cause,
        "drop_tenant": tenant,
    });
    Description { kind: "prefetch", change, fields, text }
}

fn describe_quota(event: &v1::QuotaEvent) -> Description {
    let place = format!("tier {} of device {}", tier_name(event.tier()), plain(&event.device));
    let (change, text) = match event.change() {
        QuotaChange::Unspecified => ("unknown", place),
        QuotaChange::Set => {
            ("set", format!("set on {place}: guarantee {}, limit {}", event.guarantee, event.limit))
        }
        QuotaChange::Deleted => ("deleted", format!("deleted on {place}: the default applies")),
    };
    let fields = json!({
        "device": event.device,
        "tier": tier_name(event.tier()),
        "guarantee": event.guarantee,
        "limit": event.limit,
    });
    Description { kind: "quota", change, fields, text }
}

fn describe_refusal(event: &v1::RefusalEvent) -> Description {
    let by = match (event.session_id, event.pid, event.operator_uid) {
        (_, _, Some(uid)) => format!("operator {uid}"),
        (0, pid, None) => format!("process {pid}"),
        (id, 0, None) => SessionId::from_raw(id).to_string(),
        (id, pid, None) => format!("process {pid} in the name of {}", SessionId::from_raw(id)),
    };
    let (request, reason) = (plain(&event.request), plain(&event.reason));
    let fields = json!({
        "request": event.request,
        "reason": event.reason,
        "message": event.message,
        "facts": event.metadata,
        "session_id": session(event.session_id),
        "pid": nonzero(event.pid.into()),
        "operator_uid": event.operator_uid,
    });
    let text = format!("of {request} by {by}: {reason}: {}", plain(&event.message));
    Description { kind: "refusal", change: "refused", fields, text }
}

fn describe_revoke(event: &v1::RevokeEvent) -> Description {
    let session = SessionId::from_raw(event.session_id);
    let of = AllocationId::from_raw(event.allocation_id);
    let parts = event.part_count;
    let reason = match event.reason() {
        v1::RevokeReason::Unspecified => None,
        reason => Some(reason.as_str_name().trim_start_matches("REVOKE_REASON_").to_lowercase()),
    };
    let (change, text) = match event.change() {
        RevokeChange::Unspecified => ("unknown", format!("{session}")),
        RevokeChange::Sent => {
            let why = reason.as_deref().unwrap_or("unknown");
            ("sent", format!("sent to {session}: {parts} parts of {of} ({why})"))
        }
        RevokeChange::Answered => ("answered", format!("answered by {session}: {parts} parts of {of}")),
        RevokeChange::Overdue => ("overdue", format!("overdue from {session}: {parts} parts")),
    };
    let fields = json!({
        "session_id": session.to_string(),
        "allocation_id": allocation(event.allocation_id),
        "part_count": parts,
        "reason": reason,
    });
    Description { kind: "revoke", change, fields, text }
}

fn describe_allocation(event: &v1::AllocationEvent) -> Description {
    let id = AllocationId::from_raw(event.allocation_id);
    let (change, text) = match event.change() {
        AllocationChange::Unspecified => ("unknown", format!("{id}")),
        AllocationChange::Made => {
            let by = session(event.session_id).unwrap_or_else(|| "no session".to_owned());
            ("made", format!("{id} made for {by}: {} charged", size(event.charged_bytes)))
        }
        AllocationChange::Sealed => ("sealed", format!("{id} sealed")),
        AllocationChange::Held => ("held", format!("{id}: an operator holds {} parts", event.part_count)),
        AllocationChange::LetGo => {
            ("let_go", format!("{id}: an operator lets {} parts go", event.part_count))
        }
        AllocationChange::Advised => advised(&id, event.advice()),
        AllocationChange::OperatorAdvised => {
            let what = advised(&id, event.advice()).0;
            ("operator_advised", format!("{id}: an operator advises {} parts: {what}", event.part_count))
        }
        AllocationChange::OperatorAdviceCleared => (
            "operator_advice_cleared",
            format!("{id}: the owner's advice counts again for {} parts", event.part_count),
        ),
        AllocationChange::Freed => ("freed", format!("{id} freed")),
        AllocationChange::Gone => ("gone", format!("{id} gone: none of its bytes is charged any longer")),
    };
    let fields = json!({
        "allocation_id": id.to_string(),
        "session_id": session(event.session_id),
        "charged_bytes": nonzero(event.charged_bytes),
        "part_count": nonzero(event.part_count.into()),
    });
    Description { kind: "allocation", change, fields, text }
}

fn advised(id: &AllocationId, advice: v1::Advice) -> (&'static str, String) {
    match advice {
        v1::Advice::SetAccessedBy => {
            ("accessed_in_place", format!("{id} is accessed in place by its device"))
        }
        v1::Advice::UnsetAccessedBy | v1::Advice::Unspecified => {
            ("not_accessed_in_place", format!("{id} is no longer accessed in place"))
        }
        v1::Advice::DoNotNeed => ("not_needed", format!("{id}: parts are not needed on their device")),
        v1::Advice::Need => ("needed", format!("{id}: parts are needed again")),
        v1::Advice::SetImportance => ("importance_set", format!("{id}: parts have an importance")),
        v1::Advice::UnsetImportance => {
            ("importance_unset", format!("{id}: parts have no importance any more"))
        }
        v1::Advice::SetClass => ("class_set", format!("{id}: parts have a memory class")),
        v1::Advice::WillNeed => ("needed_soon", format!("{id}: parts are needed soon")),
        v1::Advice::SetLocation => ("location_set", format!("{id}: parts have a preferred tier")),
        v1::Advice::UnsetLocation => {
            ("location_unset", format!("{id}: parts have no preferred tier any more"))
        }
        v1::Advice::SetReadMostly => ("read_mostly_set", format!("{id}: parts are mostly read")),
        v1::Advice::UnsetReadMostly => {
            ("read_mostly_unset", format!("{id}: parts are not mostly read any more"))
        }
        v1::Advice::SetPattern => ("pattern_set", format!("{id}: parts have a pattern of use")),
        v1::Advice::UnsetPattern => ("pattern_unset", format!("{id}: parts have no pattern of use any more")),
        v1::Advice::Preset => ("preset", format!("{id}: parts have the advice of a preset")),
        v1::Advice::UnsetClass => ("class_unset", format!("{id}: parts have no memory class any more")),
    }
}

fn describe_device(event: &v1::DeviceEvent) -> Description {
    let device = event.device.map_or_else(|| "-".to_owned(), |index| index.to_string());
    let bytes = size(event.bytes);
    let (change, text) = match event.change() {
        DeviceChange::Unspecified => ("unknown", device),
        DeviceChange::Unbrokered => ("unbrokered", format!("{device}: {bytes} are unbrokered")),
        DeviceChange::Shortfall => {
            ("shortfall", format!("{device}: committed bytes exceed the capacity by {bytes}"))
        }
        DeviceChange::Unreturned => (
            "unreturned",
            format!("memory unreturned: {bytes} are released, and some process still has them open"),
        ),
        DeviceChange::Returned => ("returned", format!("memory returned: {bytes}")),
        DeviceChange::CreateFailed => {
            ("create_failed", format!("the driver could not create memory: {}", plain(&event.detail)))
        }
    };
    let fields = json!({ "device": event.device, "bytes": event.bytes, "detail": event.detail });
    Description { kind: "device", change, fields, text }
}

fn describe_move(event: &v1::MoveEvent) -> Description {
    let (id, part) = (AllocationId::from_raw(event.allocation_id), event.part_index);
    let what = format!("of part {part} of {id} ({})", size(event.bytes));
    let to = format!("to tier {} of device {}", tier_name(event.tier()), event.device);
    let (change, text) = match event.change() {
        MoveChange::Unspecified => ("unknown", what),
        MoveChange::Moved => ("moved", format!("{what} {to}")),
        MoveChange::Failed => ("failed", format!("{what} {to} failed: {}", plain(&event.detail))),
        MoveChange::WrittenBack => (
            "written_back",
            format!("{what} written back {to}, and stays on its device: {}", use_of_copy(&event.detail)),
        ),
        MoveChange::Dropped => ("dropped", format!("{what} dropped without a copy: the part is discardable")),
        MoveChange::ShadowDiffers => (
            "shadow_differs",
            format!("{what} {to}: its clean backing differed, so the client wrote without a pin; copied"),
        ),
        MoveChange::Stopped => ("stopped", format!("{what} {to} stopped: the part is in use, or was freed")),
    };
    let fields = json!({
        "allocation_id": id.to_string(),
        "part_index": part,
        "device": event.device,
        "tier": tier_name(event.tier()),
        "bytes": event.bytes,
        "detail": event.detail,
    });
    Description { kind: "move", change, fields, text }
}

fn use_of_copy(detail: &str) -> String {
    match detail {
        "" => "it can leave without a copy".to_owned(),
        why => format!("of no use: {}", plain(why)),
    }
}

fn describe_pressure(event: &v1::PressureEvent) -> Description {
    let change = match event.to().cmp(&event.from()) {
        Ordering::Less => "fell",
        Ordering::Equal => "unknown",
        Ordering::Greater => "rose",
    };
    let (from, to) = (level_name(event.from()), level_name(event.to()));
    let text = format!(
        "{change} in tier {} of device {}: {}, was {}: {} of {} charged",
        tier_name(event.tier()),
        plain(&event.device),
        to.as_deref().unwrap_or("unknown"),
        from.as_deref().unwrap_or("unknown"),
        size(event.held_bytes),
        size(event.capacity_bytes),
    );
    let fields = json!({
        "device": event.device,
        "tier": tier_name(event.tier()),
        "from": from,
        "to": to,
        "held_bytes": event.held_bytes,
        "capacity_bytes": event.capacity_bytes,
    });
    Description { kind: "pressure", change, fields, text }
}

fn describe_settings(event: &v1::SettingsEvent) -> Description {
    let [before, after] = [&event.before, &event.after].map(|it| it.unwrap_or_default());
    let both = settings::setting_texts(&before).into_iter().zip(settings::setting_texts(&after));
    let changed = both.filter(|((_, before), (_, after))| before != after);
    let changed: Vec<_> =
        changed.map(|((name, before), (_, after))| format!("{name} {after}, was {before}")).collect();
    let fields = json!({
        "operator_uid": event.operator_uid,
        "before": settings::to_json(&before),
        "after": settings::to_json(&after),
    });
    let text = format!("changed by operator {}: {}", event.operator_uid, changed.join("; "));
    Description { kind: "settings", change: "changed", fields, text }
}

fn describe_node(event: &v1::NodeEvent) -> Description {
    let detail = plain(&event.detail);
    let (change, text) = match event.change() {
        NodeChange::Unspecified => ("unknown", detail),
        NodeChange::Draining => ("draining", "draining: nothing new is admitted".to_owned()),
        NodeChange::InService => ("in_service", "in service".to_owned()),
        NodeChange::Ending => ("ending", format!("ending: {detail}")),
        NodeChange::InvariantBroken => {
            ("invariant_broken", format!("has a bug, an invariant is broken: {detail}"))
        }
    };
    Description { kind: "node", change, fields: json!({ "detail": event.detail }), text }
}

/// `None` for 0, which stands for an absent number.
fn nonzero(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}

fn session(id: u64) -> Option<String> {
    nonzero(id).map(|id| SessionId::from_raw(id).to_string())
}

fn allocation(id: u64) -> Option<String> {
    nonzero(id).map(|id| AllocationId::from_raw(id).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(event: Event) -> EventReport {
        EventReport::new(&v1::WatchResponse {
            sequence: 9,
            happened_at: Some(prost_types::Timestamp { seconds: 0, nanos: 0 }),
            tenant: "team-a".to_owned(),
            event: Some(event),
        })
    }

    #[test]
    fn a_revoke_has_a_line_and_fields() {
        let report = report(Event::Revoke(v1::RevokeEvent {
            change: RevokeChange::Sent.into(),
            session_id: 4,
            allocation_id: 7,
            part_count: 3,
            reason: v1::RevokeReason::SessionEnded.into(),
        }));
        assert_eq!(
            report.line,
            "1970-01-01T00:00:00Z  team-a  revoke sent to s-4: 3 parts of a-7 (session_ended)"
        );
        assert_eq!(report.fields["kind"], "revoke");
        assert_eq!(report.fields["allocation_id"], "a-7");
        assert_eq!(report.fields["reason"], "session_ended");
    }

    #[test]
    fn a_failed_move_names_its_part_tier_and_problem() {
        let report = report(Event::Move(v1::MoveEvent {
            change: MoveChange::Failed.into(),
            allocation_id: 7,
            part_index: 2,
            tier: v1::Tier::Host.into(),
            bytes: 2 << 20,
            detail: "a cable was pulled".to_owned(),
            ..Default::default()
        }));
        let expected = "move of part 2 of a-7 (2 MiB) to tier host of device 0 failed: a cable was pulled";
        assert!(report.line.ends_with(expected), "{report:?}");
        assert_eq!((&report.fields["change"], &report.fields["tier"]), (&"failed".into(), &"host".into()));
    }

    #[test]
    fn pressure_has_both_levels_and_the_fill() {
        let event = v1::PressureEvent {
            device: "GPU-a".to_owned(),
            tier: v1::Tier::Host.into(),
            from: v1::PressureLevel::Elevated.into(),
            to: v1::PressureLevel::High.into(),
            held_bytes: 92 << 20,
            capacity_bytes: 100 << 20,
        };
        let back = v1::PressureEvent { from: event.to, to: event.from, ..event.clone() };
        let risen = report(Event::Pressure(event));
        let expected =
            "pressure rose in tier host of device GPU-a: high, was elevated: 92 MiB of 100 MiB charged";
        assert!(risen.line.ends_with(expected), "{risen:?}");
        assert_eq!((&risen.fields["change"], &risen.fields["to"]), (&"rose".into(), &"high".into()));
        assert_eq!(report(Event::Pressure(back)).fields["change"], "fell");
    }

    #[test]
    fn changed_settings_name_the_operator_and_both_values() {
        let settings = |high_percent| v1::Settings {
            pressure: Some(v1::PressureSettings { high_percent: Some(high_percent), ..Default::default() }),
            tiers: Some(v1::TierSettings {
                host_bytes: Some(u64::from(high_percent) << 20),
                ..Default::default()
            }),
            ..Default::default()
        };
        let (before, after) = (Some(settings(90)), Some(settings(80)));
        let report = report(Event::Settings(v1::SettingsEvent { operator_uid: 1000, before, after }));
        let expected =
            "settings changed by operator 1000: high-percent 80%, was 90%; host-bytes 80 MiB, was 90 MiB";
        assert!(report.line.ends_with(expected), "{report:?}");
        assert_eq!(report.fields["before"]["pressure"]["high_percent"], 90);
        assert_eq!(report.fields["after"]["tiers"]["host_bytes"], 80 << 20);
    }

    #[test]
    fn a_refusal_stays_on_its_line() {
        let report = report(Event::Refusal(v1::RefusalEvent {
            request: "AllocateBatch".to_owned(),
            reason: "NAME_INVALID".to_owned(),
            message: "bad\u{1b}[2J\nname".to_owned(),
            session_id: 4,
            ..Default::default()
        }));
        assert_eq!(report.line.lines().count(), 1);
        assert!(!report.line.contains('\u{1b}'), "{report:?}");
        assert_eq!(
            (&report.fields["session_id"], &report.fields["operator_uid"]),
            (&"s-4".into(), &Value::Null)
        );
    }
}
