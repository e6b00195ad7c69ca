//! Operators see and change levels of pressure and sizes of tiers while the daemon runs.

use std::{fs, os::unix::fs::symlink};

use serde_json::{Value, json};
use tonic::Code;
use vramd_client::{AllocationRequest, Bytes, Client};
use vramd_proto::v1::{
    ChangeSettingsRequest, EventKind, EvictionSettings, GetSettingsRequest, PressureLevel, PressureSettings,
    Settings, Tier, TierSettings, WatchRequest, watch_response::Event,
};
use vramd_tests::{
    Config, Daemon, Home, MIB, MIB_2, Refused, Watching,
    daemon::quota,
    rpc::Admin,
    wait::{PATIENCE, until},
};
use vramd_types::Reason;

use crate::pressure::{MEASURED, metric};

const REFUSED: i32 = 1;
const USAGE: i32 = 2;

/// A device of 100 parts, with 80 in the host below it and 40 on disk.
fn node() -> Daemon {
    let config = Config::devices(&["200MiB"]).memory("host_size = \"160MiB\"").disk("80MiB");
    Daemon::start(&config.telemetry(MEASURED))
}

#[track_caller]
fn text(daemon: &Daemon, words: &[&str]) -> String {
    let output = daemon.vramctl().arg("settings").args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn said(daemon: &Daemon, words: &[&str]) -> Value {
    serde_json::from_str(&text(daemon, &[words, &["--json"]].concat())).unwrap()
}

/// The JSON that `vramctl` prints on standard error, and its status.
#[track_caller]
fn fails(daemon: &Daemon, words: &[&str]) -> (Value, Option<i32>) {
    let output = daemon.vramctl().args(["settings", "change", "--json"]).args(words).output().unwrap();
    assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{output:?}");
    let error = serde_json::from_slice::<Value>(&output.stderr).unwrap_or_default();
    (error["error"].clone(), output.status.code())
}

fn client(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).request_timeout(PATIENCE).connect().unwrap()
}

fn parts(count: u64) -> AllocationRequest {
    AllocationRequest::new(Bytes::new(count * MIB_2)).part_size(Bytes::mib(2))
}

fn watching(daemon: &Daemon, kinds: &[EventKind]) -> Watching {
    let kinds = kinds.iter().map(|kind| (*kind).into()).collect();
    Watching::start(&daemon.admin, WatchRequest { kinds, ..Default::default() }).unwrap()
}

fn request(change: Settings) -> ChangeSettingsRequest {
    ChangeSettingsRequest { change: Some(change), ..Default::default() }
}

fn levels(pressure: PressureSettings) -> ChangeSettingsRequest {
    request(Settings { pressure: Some(pressure), ..Default::default() })
}

#[test]
fn changed_settings_are_shown_reported_and_end_with_the_daemon() {
    let daemon = node();
    let configured = json!({
        "pressure": {
            "elevated_percent": 80,
            "high_percent": 90,
            "critical_percent": 95,
            "fall_percent": 3,
            "evict_to_percent": 85,
            "cold_after_ms": 30_000,
        },
        "tiers": { "host_bytes": 160 * MIB, "disk_bytes": 80 * MIB },
        "shares": { "demand_percent": 30, "prefetch_percent": 50, "write_back_percent": 20 },
        "eviction": { "policy": "hit-density" },
    });
    let shown = said(&daemon, &["show"]);
    assert_eq!((&shown["settings"], &shown["configured"]), (&configured, &configured));
    assert!(!text(&daemon, &["show"]).contains("until the daemon ends"), "nothing was changed");

    let client = client(&daemon);
    let held = client.allocate(parts(60)).unwrap();
    let mut watch = watching(&daemon, &[EventKind::Settings, EventKind::Pressure]);
    let words = ["change", "--elevated-percent", "60", "--high-percent=75", "--evict-to-percent=65"];
    let shown = text(&daemon, &[&words[..], &["--host-bytes", "64MiB", "--cold-after-ms", "60000"]].concat());
    assert!(shown.contains("until the daemon ends"), "{shown}");
    let row = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace();
    assert_eq!(row("high-percent").collect::<Vec<_>>(), ["high-percent", "75%", "90%"]);
    assert_eq!(row("host-bytes").collect::<Vec<_>>(), ["host-bytes", "64", "MiB", "160", "MiB"]);

    let mut changed = configured.clone();
    let pressure = changed["pressure"].as_object_mut().unwrap();
    for (name, value) in
        [("elevated_percent", 60), ("high_percent", 75), ("evict_to_percent", 65), ("cold_after_ms", 60_000)]
    {
        pressure.insert(name.to_owned(), value.into());
    }
    changed["tiers"]["host_bytes"] = (64 * MIB).into();
    let shown = said(&daemon, &["show"]);
    assert_eq!((&shown["settings"], &shown["configured"]), (&changed, &configured));
    assert_eq!(shown["hold_until"], "the daemon ends");

    let uid = rustix::process::geteuid().as_raw();
    match watch.read().event {
        Some(Event::Settings(told)) => {
            let (before, after) = (told.before.unwrap(), told.after.unwrap());
            let of = |it: &Settings| (it.pressure.unwrap().high_percent, it.tiers.unwrap().host_bytes);
            assert_eq!(told.operator_uid, uid);
            assert_eq!((of(&before), of(&after)), ((Some(90), Some(160 * MIB)), (Some(75), Some(64 * MIB))));
        }
        other => panic!("{other:?}"),
    }
    // Sixty percent of the device are charged, and more bytes than the host tier now has.
    let mut told = [watch.read(), watch.read()].map(|event| match event.event {
        Some(Event::Pressure(it)) => (it.tier(), it.from(), it.to(), it.capacity_bytes / MIB),
        other => panic!("{other:?}"),
    });
    told.sort_by_key(|(tier, ..)| *tier as i32);
    assert_eq!(told[0], (Tier::Device, PressureLevel::Normal, PressureLevel::Elevated, 200));
    assert_eq!((told[1].0, told[1].2, told[1].3), (Tier::Host, PressureLevel::Critical, 64));

    let high = "vramd_pressure_level=\"high\"";
    assert_eq!(metric(&daemon, "vramd_pressure_threshold_ratio", &[high]), Some(0.75));
    let capacity = metric(&daemon, "vramd_memory_capacity_bytes", &["vramd_tier=\"host\""]);
    assert_eq!(capacity, Some((64 * MIB) as f64));
    let line = "an operator changed settings";
    assert!(daemon.log().lines().any(|it| it.contains(line) && it.contains("INFO")), "{}", daemon.log());

    drop(held);
    let (status, home) = daemon.stop();
    assert!(status.success());
    let daemon = Daemon::start_in(home);
    assert_eq!(said(&daemon, &["show"])["settings"], configured);
}

#[test]
fn an_invalid_setting_is_refused_with_the_allowed_values() {
    let daemon = node();
    let before = daemon.admin.get_settings(GetSettingsRequest {}).ok();
    let facts = |field: &str, given: &str, allowed: &str| json!({ "field": field, "given": given, "allowed": allowed });
    for (words, reason, expected) in [
        (&["--high-percent", "101"][..], "SETTING_INVALID", facts("high_percent", "101", "89 to 91")),
        (&["--high-percent", "95"], "SETTING_INVALID", facts("high_percent", "95", "89 to 91")),
        (&["--elevated-percent", "0"], "SETTING_INVALID", facts("elevated_percent", "0", "4 to 86")),
        (
            &["--critical-percent", "99", "--cold-after-ms", "5", "--fall-percent", "40"],
            "SETTING_INVALID",
            facts("fall_percent", "40", "0 to 4"),
        ),
        (
            &["--high-percent", "91", "--host-bytes", "162MiB"],
            "SETTING_INVALID",
            facts("host_bytes", "169869312", "0 to 167772160, multiples of 2097152"),
        ),
        (
            &["--disk-bytes", "1"],
            "SETTING_INVALID",
            facts("disk_bytes", "1", "0 to 83886080, multiples of 2097152"),
        ),
    ] {
        let (error, status) = fails(&daemon, words);
        assert_eq!((&error["reason"], status), (&json!(reason), Some(REFUSED)), "{words:?}: {error}");
        assert_eq!(error["facts"], expected, "{words:?}: {error}");
        assert_eq!(daemon.admin.get_settings(GetSettingsRequest {}).ok(), before, "{words:?}");
    }
    for words in [
        &[][..],
        &["--eviction-policy", "LRU"],
        &["--high-percent", "-1"],
        &["--host-bytes", "50%"],
        &["--high-percent", "5000000000"],
    ] {
        assert_eq!(fails(&daemon, words).1, Some(USAGE), "{words:?}");
    }
    // A request that none of our programs sends.
    let nothing = [
        ChangeSettingsRequest::default(),
        request(Settings::default()),
        levels(PressureSettings::default()),
        request(Settings { tiers: Some(TierSettings::default()), ..Default::default() }),
    ];
    for request in nothing {
        let refused = daemon.admin.change_settings(request).refused();
        assert_eq!(refused.is(Reason::RequestInvalid).fact("field"), "change");
    }
    // A policy of a newer protocol.
    for given in [0, 7, -1] {
        let eviction = Some(EvictionSettings { policy: Some(given) });
        let refused =
            daemon.admin.change_settings(request(Settings { eviction, ..Default::default() })).refused();
        let refused = refused.is(Reason::SettingInvalid);
        assert_eq!(refused.fact("field"), "eviction_policy");
        assert_eq!(refused.fact("allowed"), "lru, weighted-lru, gdsf, s3-fifo, sieve, hit-density");
    }
    for given in [0, 101, u32::MAX] {
        let most = PressureSettings { evict_to_percent: Some(given), ..Default::default() };
        let refused = daemon.admin.change_settings(levels(most)).refused();
        assert_eq!(refused.is(Reason::SettingInvalid).fact("given"), given.to_string());
    }
    let (pressure, tiers) =
        (PressureSettings { high_percent: Some(91), ..Default::default() }, TierSettings::default());
    let bytes = TierSettings { disk_bytes: Some(u64::MAX), ..tiers };
    let both = request(Settings { pressure: Some(pressure), tiers: Some(bytes), ..Default::default() });
    daemon.admin.change_settings(both).refused().is(Reason::SettingInvalid);
    let short = ChangeSettingsRequest { request_id: vec![1; 3], ..levels(pressure) };
    assert_eq!(
        daemon.admin.change_settings(short).refused().is(Reason::RequestInvalid).fact("field"),
        "request_id"
    );
    assert_eq!(daemon.admin.get_settings(GetSettingsRequest {}).ok(), before);
}

#[test]
fn shares_of_links_change_while_the_daemon_runs() {
    let daemon = node();
    let mut watch = watching(&daemon, &[EventKind::Settings]);
    let in_force = || metric(&daemon, "vramd_link_share_ratio", &["vramd_copy_class=\"write_back\""]);
    assert_eq!(in_force(), Some(0.2));
    let now = said(&daemon, &["change", "--demand-percent", "10", "--write-back-percent", "40"]);
    assert_eq!(in_force(), Some(0.4));
    let shares = json!({ "demand_percent": 10, "prefetch_percent": 50, "write_back_percent": 40 });
    assert_eq!(now["settings"]["shares"], shares);
    assert_eq!(now["configured"]["shares"]["write_back_percent"], 20);
    let told = watch.read();
    let Some(Event::Settings(event)) = told.event else { panic!("{told:?}") };
    let write_back = |settings: Option<Settings>| settings?.shares?.write_back_percent;
    assert_eq!((write_back(event.before), write_back(event.after)), (Some(20), Some(40)));
    let (error, status) = fails(&daemon, &["--prefetch-percent", "51"]);
    assert_eq!((&error["reason"], status), (&"SETTING_INVALID".into(), Some(REFUSED)));
    assert_eq!(error["facts"]["allowed"], "0 to 50", "{error}");
    assert_eq!(said(&daemon, &["show"])["settings"]["shares"], shares);
}

#[test]
fn shares_that_sum_above_the_link_end_the_start() {
    let home = Home::new();
    let config =
        "[daemon]\nsocket_dir = \"run\"\nstate_dir = \"state\"\n[driver]\nkind = \"sim\"\n[shares]\n";
    fs::write(home.path().join("vramd.toml"), format!("{config}demand_percent = 31\n")).unwrap();
    for arguments in [&["--check"][..], &[]] {
        let output = home.command().args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        for part in ["vramd.toml:7:18: ", "shares.demand_percent", "101 percent of a link"] {
            assert!(said.contains(part), "{said}");
        }
    }
}

#[test]
fn a_request_id_stands_for_one_change() {
    let daemon = node();
    let high = |percent| PressureSettings { high_percent: Some(percent), ..Default::default() };
    let named = |percent| ChangeSettingsRequest { request_id: vec![7; 16], ..levels(high(percent)) };
    let mut watch = watching(&daemon, &[EventKind::Settings]);
    daemon.admin.change_settings(named(91)).ok();
    daemon.admin.change_settings(levels(high(89))).ok();
    let now = daemon.admin.change_settings(named(91)).ok().settings.unwrap();
    assert_eq!(now.pressure.unwrap().high_percent, Some(89), "the log has the settings in force");
    daemon.admin.change_settings(named(90)).refused().is(Reason::RequestIdReused);
    daemon.admin.change_settings(levels(high(90))).ok();
    let told = [watch.read(), watch.read(), watch.read()].map(|event| match event.event {
        Some(Event::Settings(told)) => told.after.unwrap().pressure.unwrap().high_percent.unwrap(),
        other => panic!("{other:?}"),
    });
    assert_eq!(told, [91, 89, 90]);
}

#[test]
fn a_tier_of_zero_bytes_takes_nothing_and_guarantees_are_kept() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]).memory("host_size = \"64MiB\""));
    let (error, _) = fails(&daemon, &["--disk-bytes", "0"]);
    assert_eq!((&error["reason"], &error["facts"]), (&json!("TIER_UNSUPPORTED"), &json!({ "tier": "disk" })));
    let mut guaranteed = quota("team-a", "*", "32MiB", "");
    guaranteed.tier = Tier::Host.into();
    daemon.admin.set_quota(guaranteed.clone()).ok();
    let (error, _) = fails(&daemon, &["--host-bytes", "30MiB"]);
    assert_eq!(error["reason"], "TIER_GUARANTEED", "{error}");
    assert_eq!(error["facts"]["guaranteed"], 32 * MIB);
    assert_eq!(error["facts"]["asked"], 30 * MIB);
    said(&daemon, &["change", "--host-bytes", "32MiB"]);
    let more = vramd_proto::v1::SetQuotaRequest { guarantee: Some("34MiB".to_owned()), ..guaranteed };
    daemon.admin.set_quota(more).refused().is(Reason::GuaranteeUnbacked);
}

#[test]
fn a_smaller_tier_takes_nothing_more_and_keeps_its_parts() {
    let daemon = node();
    let client = client(&daemon);
    let mut kept = client.allocate(parts(20)).unwrap();
    let bytes: Vec<u8> = (0..20 * MIB_2).map(|at| u8::try_from(at / MIB_2).unwrap()).collect();
    kept.copy_from_host(0, &bytes).unwrap();
    kept.unpin().unwrap();
    let held = |tier: &str| {
        let device = daemon.state().devices[0].clone();
        match tier {
            "host" => device.host_held_bytes / MIB,
            _ => device.disk_held_bytes / MIB,
        }
    };
    assert_eq!((held("host"), held("disk")), (40, 0));
    said(&daemon, &["change", "--host-bytes", "0"]);
    let other = client.allocate(parts(5)).unwrap();
    assert_eq!((held("host"), held("disk")), (40, 10), "new parts have their backing on disk");
    drop(other);
    // A part with backing in the host moves there, and comes back.
    let id = format!("a-{}", kept.id().get());
    for words in [["alloc", "evict"], ["alloc", "bring-in"]] {
        let output = daemon.vramctl().args(words).arg(&id).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut read = vec![0; bytes.len()];
    kept.copy_to_host(0, &mut read).unwrap();
    assert!(read == bytes);
    said(&daemon, &["change", "--host-bytes", "160MiB"]);
    let other = client.allocate(parts(5)).unwrap();
    until("it has grown again", || (held("host"), held("disk")) == (50, 0));
    drop(other);
}

#[test]
fn only_operators_change_settings_and_only_on_their_socket() {
    let daemon = Daemon::start(&Config::default().daemon("operators = [4242]"));
    let high = PressureSettings { high_percent: Some(91), ..Default::default() };
    daemon.admin.change_settings(levels(high)).refused().is(Reason::NotOperator);
    daemon.admin.get_settings(GetSettingsRequest {}).refused().is(Reason::NotOperator);

    // The tenants' socket, under the name of the admin socket.
    let daemon = node();
    let elsewhere = daemon.home().path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(daemon.sockets().join("vramd.sock"), elsewhere.join("admin.sock")).unwrap();
    let admin = Admin::new(&elsewhere);
    let status = admin.change_settings(levels(high)).wait().unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{:?}", Refused::from_status(&status));
    assert_eq!(admin.get_settings(GetSettingsRequest {}).wait().unwrap_err().code(), Code::Unimplemented);
    assert_eq!(said(&daemon, &["show"])["settings"]["pressure"]["high_percent"], 90);
}

fn unpinned(client: &Client) -> vramd_client::Allocation {
    let mut one = client.allocate(parts(1)).unwrap();
    one.unpin().unwrap();
    one
}

/// A device of 100 parts, all of which one client has and pins no more.
fn full_device(config: &Config) -> (Daemon, Client, Vec<vramd_client::Allocation>) {
    let daemon = Daemon::start(config);
    let client = client(&daemon);
    let held = (0..100).map(|_| unpinned(&client)).collect();
    (daemon, client, held)
}

#[test]
fn every_eviction_policy_makes_room_and_can_be_changed_under_load() {
    let config = Config::devices(&["200MiB"]).memory("host_size = \"400MiB\"\neviction_policy = \"gdsf\"");
    let (daemon, client, mut held) = full_device(&config);
    assert_eq!(said(&daemon, &["show"])["settings"]["eviction"]["policy"], "gdsf");
    let mut watch = watching(&daemon, &[EventKind::Settings]);
    for policy in ["lru", "weighted-lru", "s3-fifo", "sieve", "hit-density", "gdsf"] {
        let shown = said(&daemon, &["change", "--eviction-policy", policy]);
        let of = |which: &str| shown[which]["eviction"]["policy"].clone();
        assert_eq!((of("settings"), of("configured")), (json!(policy), json!("gdsf")));
        assert!(matches!(watch.read().event, Some(Event::Settings(_))), "{policy}");
        for _ in 0..10 {
            held.push(unpinned(&client));
        }
    }
    assert!(daemon.log().contains("eviction policy hit-density"), "{}", daemon.log());
}
