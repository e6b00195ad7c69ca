//! Guarantees and limits: what they admit and keep free, and that they outlive the daemon.

use std::fs;

use serde_json::json;
use vramd_proto::v1::{
    DeleteQuotaRequest, GetOwnQuotaRequest, GetQuotaRequest, ListQuotasRequest, Quota, Tier,
};
use vramd_tests::{
    Config, Daemon, GIB, MIB,
    daemon::quota,
    session::{RawSession, spec},
};
use vramd_types::Reason;

fn get(daemon: &Daemon, tenant: &str, device: &str) -> Quota {
    let device = (!device.is_empty()).then(|| device.to_owned());
    let request = GetQuotaRequest { tenant: tenant.to_owned(), device, ..Default::default() };
    daemon.admin.get_quota(request).ok().quota.unwrap()
}

#[test]
fn a_refusal_has_tenant_limit_charge_and_request() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let tenant = session.tenant().to_owned();
    let set = daemon.grpcurl("admin.sock").call(
        "vramd.v1.AdminService/SetQuota",
        &json!({ "tenant": tenant, "device": "*", "limit": "10MiB" }),
    );
    assert_eq!(set["quota"]["limit"], "10MiB");
    session.allocate(spec(8 * MIB));
    let state = daemon.settled_state();
    let refused = session.refused(spec(4 * MIB));
    refused.is(Reason::QuotaLimit);
    assert_eq!(refused.fact("tenant"), tenant);
    assert_eq!(refused.fact("device"), state.devices[0].device.as_ref().unwrap().uuid);
    assert_eq!(refused.fact("tier"), "device");
    assert_eq!(refused.number("limit"), 10 * MIB);
    assert_eq!(refused.number("held"), 8 * MIB);
    assert_eq!(refused.number("asked"), 4 * MIB);
    assert_eq!(daemon.state(), state);
    session.allocate(spec(2 * MIB));
}

#[test]
fn a_client_sees_the_quota_use_and_free_bytes_of_its_own_tenant() {
    let daemon = Daemon::start(&Config::default().memory("host_size = \"64MiB\""));
    let mut session = daemon.open();
    let tenant = session.tenant().to_owned();
    let capacity = daemon.state().devices[0].capacity_bytes;
    let own = |session: &RawSession| {
        let answer = session.memory.get_own_quota(GetOwnQuotaRequest { session_id: session.id() }).ok();
        assert_eq!(answer.tenant, session.tenant());
        answer.places
    };

    let [device, host] = own(&session).try_into().expect("a row for each tier");
    assert_eq!((device.tier(), host.tier()), (Tier::Device, Tier::Host));
    assert_eq!((device.used_bytes, device.free_bytes, device.default_quota), (0, capacity, true));
    assert_eq!((host.used_bytes, host.free_bytes), (0, 64 * MIB));

    daemon.set_quota(&tenant, "8MiB", "20MiB");
    session.allocate(spec(6 * MIB));
    let device = own(&session).swap_remove(0);
    assert_eq!((device.guarantee_bytes, device.limit_bytes), (8 * MIB, 20 * MIB));
    assert_eq!((device.used_bytes, device.free_bytes), (6 * MIB, 14 * MIB));
    assert!(!device.default_quota);

    // A guarantee of another tenant leaves less than the limit does: 2 MiB of the own guarantee, and 4 MiB of the rest.
    daemon.set_quota("team-b", &format!("{}MiB", capacity / MIB - 12), "");
    let device = own(&session).swap_remove(0);
    assert_eq!((device.used_bytes, device.free_bytes), (6 * MIB, 6 * MIB));
    session.refused(spec(8 * MIB)).is(Reason::DeviceFull);
    session.allocate(spec(6 * MIB));

    session.memory.get_own_quota(GetOwnQuotaRequest { session_id: 0 }).refused().is(Reason::SessionMissing);
}

#[test]
fn charges_are_rounded_up_to_parts() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let allocation = session.allocate(spec(5 * MIB + 1));
    let sizes = (allocation.size_bytes, allocation.charged_bytes, allocation.resident_bytes);
    assert_eq!(sizes, (5 * MIB + 1, 6 * MIB, 6 * MIB));
    assert_eq!(daemon.state().charged_to(session.tenant()), 6 * MIB);
}

#[test]
fn guarantees_cannot_exceed_the_capacity() {
    let daemon = Daemon::new();
    let capacity = daemon.state().devices[0].capacity_bytes;
    daemon.set_quota("team-a", "700MiB", "");
    let state = daemon.state();
    let refused = daemon.admin.set_quota(quota("team-b", "*", "700MiB", "")).refused();
    refused.is(Reason::GuaranteeUnbacked);
    assert_eq!(refused.fact("tenant"), "team-b");
    assert_eq!(refused.number("guarantee"), 700 * MIB);
    assert_eq!(refused.number("capacity"), capacity);
    assert_eq!(refused.number("committed"), 1400 * MIB);
    assert_eq!(daemon.state(), state);
    daemon.set_quota("team-b", "300MiB", "");
}

#[test]
fn a_guarantee_counts_charges_of_other_tenants() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    session.allocate(spec(800 * MIB));
    daemon.admin.set_quota(quota("team-a", "*", "300MiB", "")).refused().is(Reason::GuaranteeUnbacked);
    daemon.set_quota("team-a", "200MiB", "");
    // The tenant's guarantee is below its charge, so it commits nothing more.
    daemon.set_quota(session.tenant(), "800MiB", "");
    session.refused(spec(100 * MIB)).is(Reason::DeviceFull);
}

#[test]
fn a_limit_below_the_charge_admits_nothing_more() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let tenant = session.tenant().to_owned();
    let (first, _second) = (session.allocate(spec(8 * MIB)), session.allocate(spec(8 * MIB)));
    daemon.set_quota(&tenant, "", "4MiB");
    let row = get(&daemon, &tenant, "");
    assert_eq!((row.limit_bytes, row.held_bytes), (4 * MIB, 16 * MIB));
    let refused = session.refused(spec(1));
    assert_eq!(refused.is(Reason::QuotaLimit).number("held"), 16 * MIB);
    session.free(first.allocation_id);
    assert_eq!(get(&daemon, &tenant, "").held_bytes, 8 * MIB);
    session.refused(spec(1)).is(Reason::QuotaLimit);
}

#[test]
fn a_tenant_without_a_quota_has_the_default() {
    let daemon = Daemon::start(&Config::default().default_quota("limit = \"16MiB\""));
    let mut session = daemon.open();
    session.allocate(spec(16 * MIB));
    let refused = session.refused(spec(1));
    assert_eq!(refused.is(Reason::QuotaLimit).number("limit"), 16 * MIB);
    let row = get(&daemon, session.tenant(), "");
    assert!(row.default_quota);
    assert_eq!((row.limit_bytes, row.held_bytes), (16 * MIB, 16 * MIB));
    let listed = daemon.admin.list_quotas(ListQuotasRequest::default()).ok().quotas;
    assert!(listed.contains(&row), "a tenant that holds memory is listed: {listed:?}");
}

#[test]
fn a_share_is_of_the_capacity() {
    let daemon = Daemon::start(&Config::devices(&["1GiB", "512MiB"]));
    daemon.set_quota("team-a", "25%", "50%");
    for (index, device) in daemon.state().devices.iter().enumerate() {
        let row = get(&daemon, "team-a", &index.to_string());
        assert_eq!(row.device, device.device.as_ref().unwrap().uuid);
        assert_eq!((row.guarantee.as_str(), row.limit.as_str()), ("25%", "50%"));
        assert_eq!(row.limit_bytes, device.capacity_bytes / 2);
        assert_eq!(row.guarantee_bytes, device.capacity_bytes / 4);
    }
}

#[test]
fn a_devices_quota_precedes_that_of_all_devices() {
    let daemon = Daemon::start(&Config::devices(&["1GiB", "1GiB"]));
    daemon.set_quota("team-a", "", "256MiB");
    let set = daemon.admin.set_quota(quota("team-a", "1", "", "64MiB")).ok().quota.unwrap();
    assert_eq!(
        set.device,
        daemon.state().devices[1].device.as_ref().unwrap().uuid,
        "an index becomes a UUID"
    );
    assert_eq!(get(&daemon, "team-a", "0").limit_bytes, 256 * MIB);
    assert_eq!(get(&daemon, "team-a", "1").limit_bytes, 64 * MIB);
    let delete = DeleteQuotaRequest {
        tenant: "team-a".to_owned(),
        device: Some("1".to_owned()),
        ..Default::default()
    };
    daemon.admin.delete_quota(delete.clone()).ok();
    assert_eq!(get(&daemon, "team-a", "1").limit_bytes, 256 * MIB);
    let refused = daemon.admin.delete_quota(delete).refused();
    assert_eq!(refused.is(Reason::QuotaNotFound).fact("tenant"), "team-a");
}

#[test]
fn an_absent_quota_field_stays_unchanged() {
    let daemon = Daemon::new();
    daemon.set_quota("team-a", "100MiB", "200MiB");
    daemon.set_quota("team-a", "", "300MiB");
    let row = get(&daemon, "team-a", "");
    assert_eq!((row.guarantee_bytes, row.limit_bytes), (100 * MIB, 300 * MIB));
}

#[test]
fn quotas_outlive_the_daemon_even_when_it_is_killed() {
    let daemon = Daemon::new();
    daemon.set_quota("team-a", "100MiB", "200MiB");
    daemon.set_quota("team-b", "", "50%");
    daemon.set_quota("team-c", "", "1MiB");
    let request = DeleteQuotaRequest {
        tenant: "team-c".to_owned(),
        device: Some("*".to_owned()),
        ..Default::default()
    };
    daemon.admin.delete_quota(request).ok();
    let quotas = daemon.state().quotas;
    // An answered change is stored: nothing may depend on a clean stop.
    let daemon = Daemon::start_in(daemon.kill());
    assert_eq!(daemon.state().quotas, quotas);
    let (status, home) = daemon.stop();
    assert!(status.success());
    assert_eq!(Daemon::start_in(home).state().quotas, quotas);
}

#[test]
fn a_quota_that_cannot_be_stored_is_not_set() {
    let daemon = Daemon::new();
    daemon.set_quota("team-a", "", "200MiB");
    let state = daemon.state();
    let directory = daemon.home().path().join("state");
    fs::rename(&directory, directory.with_extension("away")).unwrap();
    daemon.admin.set_quota(quota("team-a", "*", "", "300MiB")).refused().is(Reason::StoreFailed);
    assert_eq!(daemon.state(), state);
    fs::rename(directory.with_extension("away"), &directory).unwrap();
    daemon.set_quota("team-a", "", "300MiB");
    assert_eq!(get(&daemon, "team-a", "").limit_bytes, 300 * MIB);
}

#[test]
fn a_quota_of_an_absent_device_is_stored_and_shown() {
    let two = Config::devices(&["1GiB", "1GiB"]);
    let daemon = Daemon::start(&two);
    daemon.admin.set_quota(quota("team-a", "1", "800MiB", "")).ok();
    let uuid = get(&daemon, "team-a", "1").device;
    let (_, home) = daemon.stop();
    Config::devices(&["1GiB"]).write(home.path());
    let daemon = Daemon::start_in(home);
    let row = daemon.state().quotas.into_iter().find(|row| row.device == uuid).unwrap();
    assert!(row.device_absent);
    // The quota is not enforced: its guarantee takes nothing from the present device.
    daemon.set_quota("team-b", "900MiB", "");
    let (_, home) = daemon.stop();
    two.write(home.path());
    assert_eq!(get(&Daemon::start_in(home), "team-a", "1").guarantee_bytes, 800 * MIB);
}

#[test]
fn a_bad_quota_changes_nothing() {
    let daemon = Daemon::new();
    daemon.set_quota("team-a", "1MiB", "2MiB");
    let state = daemon.state();
    for bad in ["-1GiB", "1gib", "ten", "1e9", "0.3GiB", "101%", "18446744073709551616", "1 GiB 2"] {
        let refused = daemon.admin.set_quota(quota("team-a", "*", "", bad)).refused();
        refused.is(Reason::QuantityInvalid);
        assert_eq!((refused.fact("field"), refused.fact("quantity")), ("limit", bad));
        let refused = daemon.admin.set_quota(quota("team-a", "*", bad, "")).refused();
        assert_eq!(refused.is(Reason::QuantityInvalid).fact("field"), "guarantee");
    }
    daemon.admin.set_quota(quota("team-a", "*", "3MiB", "2MiB")).refused().is(Reason::QuantityInvalid);
    for device in ["7", "GPU-00000000-0000-0000-0000-000000000000", "cuda:0", "-1"] {
        let refused = daemon.admin.set_quota(quota("team-a", device, "", "1MiB")).refused();
        assert_eq!(refused.is(Reason::DeviceUnknown).fact("device"), device);
    }
    for tenant in ["", "a b", "a/b", "*"] {
        daemon.admin.set_quota(quota(tenant, "*", "", "1MiB")).refused().is(Reason::NameInvalid);
    }
    assert_eq!(daemon.state(), state);
}

#[test]
fn a_device_is_filled_to_its_capacity_and_no_further() {
    let daemon = Daemon::start(&Config::devices(&["1GiB", "64MiB"]));
    let mut session = daemon.open();
    let state = daemon.state();
    let capacity = state.devices[0].capacity_bytes;
    assert!(capacity <= GIB);
    let all = session.allocate(spec(capacity)).allocation_id;
    let refused = session.refused(spec(1));
    // The tenant's limit and its charge are the whole device.
    assert!(["QUOTA_LIMIT", "DEVICE_FULL"].contains(&refused.reason.as_str()), "{refused:?}");
    session.free(all);
    daemon.drains();
    session.allocate(spec(capacity));
}
