//! Tenants files: applied whole or refused whole, at the start, on SIGHUP and by `vramctl apply`.

use std::{
    fs,
    path::Path,
    process::Output,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::process::{Signal, geteuid};
use serde_json::Value;
use vramd_proto::v1::{ApplyTenantsRequest, GetQuotaRequest, TenantClass};
use vramd_tests::{Config, Daemon, Home, MIB, session::spec, wait::until};
use vramd_types::Reason;

const REFUSED: i32 = 1;
const CONFIGURATION_WRONG: i32 = 3;
const DIFFERS: i32 = 4;

/// Two teams with guarantees on a device of 1 GiB.
const TEAMS: &str = r#"
[[tenants]]
tenant = "team-a"
class = "interactive"
weight = 200
[[tenants.quotas]]
guarantee = "256MiB"
limit = "75%"

[[tenants]]
tenant = "team-b"
[[tenants.quotas]]
device = "0"
guarantee = "128MiB"
"#;

fn apply(daemon: &Daemon, text: &str, more: &[&str]) -> Output {
    let file = daemon.home().path().join("applied.toml");
    fs::write(&file, text).unwrap();
    daemon.vramctl().args(["apply", "-f"]).arg(&file).args(more).output().unwrap()
}

#[track_caller]
fn applied(daemon: &Daemon, text: &str) -> String {
    let output = apply(daemon, text, &[]);
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

#[track_caller]
fn fails(daemon: &Daemon, text: &str, status: i32) -> String {
    let output = apply(daemon, text, &[]);
    assert_eq!(output.status.code(), Some(status), "{}", said(&output));
    said(&output)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The guarantee and the limit of a tenant in bytes, as they are in force.
#[track_caller]
fn quota(daemon: &Daemon, tenant: &str) -> (u64, u64) {
    let request = GetQuotaRequest { tenant: tenant.to_owned(), ..Default::default() };
    let quota = daemon.admin.get_quota(request).ok().quota.unwrap();
    (quota.guarantee_bytes, quota.limit_bytes)
}

#[track_caller]
fn class(daemon: &Daemon, tenant: &str) -> TenantClass {
    let tenants = daemon.admin.list_tenants(Default::default()).ok().tenants;
    tenants.iter().find(|row| row.name == tenant).map_or(TenantClass::Unspecified, |row| row.class())
}

/// A daemon whose configuration names a tenants file with this content.
fn with_file(config: Config, text: &str) -> Home {
    let home = Home::new();
    let file = home.path().join("tenants.toml");
    fs::write(&file, text).unwrap();
    config.daemon(&format!("tenants_file = \"{}\"", file.display())).write(home.path());
    home
}

/// Replaces a file so that no reader sees a part of it.
fn replace(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, file).unwrap();
}

fn log_count(daemon: &Daemon, line: &str) -> usize {
    daemon.log().matches(line).count()
}

#[test]
fn apply_makes_what_a_dry_run_shows_and_it_outlives_the_daemon() {
    let daemon = Daemon::new();
    let default = quota(&daemon, "team-a");
    daemon.set_quota("team-a", "0", "10%");
    daemon.set_quota("team-c", "0", "20%");

    let dry = apply(&daemon, TEAMS, &["--dry-run"]);
    assert_eq!(dry.status.code(), Some(DIFFERS));
    let shown = said(&dry);
    assert!(shown.contains("limit      10%      75%") && shown.contains("values would change"), "{shown}");
    let json = apply(&daemon, TEAMS, &["--dry-run", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let changes = json["changes"].as_array().unwrap();
    assert!(
        changes
            .iter()
            .any(|it| it["field"] == "class" && it["before"].is_null() && it["after"] == "interactive")
    );
    assert_eq!(quota(&daemon, "team-a"), (0, default.1 / 10), "a dry run changes nothing");

    let changed = applied(&daemon, TEAMS);
    assert!(changed.contains(&format!("{} values changed", changes.len())), "{changed}");
    let in_force = |daemon: &Daemon| {
        let three_quarters = u64::try_from(u128::from(default.1) * 3 / 4).unwrap();
        assert_eq!(quota(daemon, "team-a"), (256 * MIB, three_quarters));
        assert_eq!(quota(daemon, "team-b"), (128 * MIB, default.1));
        assert_eq!(class(daemon, "team-a"), TenantClass::Interactive);
        assert_eq!(quota(daemon, "team-c").1, default.1 / 5, "a tenant that no file names is left alone");
        assert!(applied(daemon, TEAMS).contains("nothing differs"));
        assert_eq!(apply(daemon, TEAMS, &["--dry-run"]).status.code(), Some(0));
    };
    in_force(&daemon);
    let daemon = Daemon::start_in(daemon.kill());
    in_force(&daemon);

    // Tenants and values that the next file leaves out return to the default.
    applied(&daemon, "[[tenants]]\ntenant = \"team-b\"\nclass = \"background\"\n");
    assert_eq!((quota(&daemon, "team-a"), quota(&daemon, "team-b")), (default, default));
    assert_eq!(class(&daemon, "team-b"), TenantClass::Background);
    let watched = daemon.log();
    assert!(watched.contains("tenants file applied") && watched.contains("a tenants file changes a value"));
}

#[test]
fn a_wrong_file_is_refused_whole_with_line_and_reason() {
    let daemon = Daemon::new();
    applied(&daemon, TEAMS);
    let state = daemon.state();
    let a = "[[tenants]]\ntenant = \"team-a\"\n[[tenants.quotas]]\nlimit = \"10%\"\n";
    let b = "[[tenants]]\ntenant = \"team-b\"\n";
    for (more, line, reason) in [
        (format!("{b}wieght = 9\n"), 7, "unknown field `wieght`"),
        (format!("{b}[[tenants.quotas]]\nlimit = \"1gib\"\n"), 8, "unknown unit"),
        (format!("{b}[[tenants.quotas]]\ndevice = \"7\"\nlimit = 1\n"), 8, "UUID or index `7`"),
        (format!("{b}[[tenants.quotas]]\ntier = \"host\"\nlimit = 1\n"), 8, "no tier host"),
        (format!("{b}[[tenants.quotas]]\nguarantee = \"60%\"\nlimit = \"50%\"\n"), 8, "above the limit"),
        (a.to_owned(), 6, "tenant `team-a` already"),
        (format!("{b}[[tenants.quotas]]\nguarantee = \"2GiB\"\nlimit = \"3GiB\"\n"), 8, "would come to"),
        ("[[tenants\n".to_owned(), 5, ""),
    ] {
        let said = fails(&daemon, &format!("{a}{more}"), REFUSED);
        assert!(said.contains(&format!("applied.toml:{line}:")) && said.contains(reason), "{said}");
        assert!(said.contains("TENANTS_FILE_INVALID"), "{said}");
        assert_eq!(daemon.state(), state);
    }
    let request = |content: &[u8]| ApplyTenantsRequest { content: content.to_vec(), ..Default::default() };
    let refused = daemon.admin.apply_tenants(request(b"# fine\n\xff")).refused();
    assert_eq!(refused.is(Reason::TenantsFileInvalid).fact("line"), "2");
    let large = vec![b' '; (1 << 20) + 1];
    daemon.admin.apply_tenants(request(&large)).refused().is(Reason::TenantsFileInvalid);
    assert_eq!(daemon.vramctl().args(["apply", "-f", "/no/such"]).output().unwrap().status.code(), Some(2));
    assert_eq!(daemon.state(), state);
}

/// The sum of guarantees fits, but not beside memory that a tenant without a guarantee has.
#[test]
fn a_change_that_the_core_refuses_takes_all_others_back() {
    let daemon = Daemon::new();
    applied(&daemon, TEAMS);
    let mut session = daemon.open();
    session.allocate(spec(500 * MIB));
    let state = daemon.settled_state();
    let text =
        TEAMS.replace("interactive", "background").replace("256MiB", "16MiB").replace("\"128MiB", "\"700MiB");
    let said = fails(&daemon, &text, REFUSED);
    assert!(said.contains("GUARANTEE_UNBACKED"), "{said}");
    assert_eq!(daemon.state(), state);
    assert!(applied(&daemon, TEAMS).contains("nothing differs"));
    let daemon = Daemon::start_in(daemon.kill());
    assert_eq!((quota(&daemon, "team-a").0, quota(&daemon, "team-b").0), (256 * MIB, 128 * MIB));
}

#[test]
fn a_failed_write_takes_all_changes_back() {
    let daemon = Daemon::new();
    applied(&daemon, TEAMS);
    let state = daemon.state();
    // The daemon cannot write its temporary file.
    let obstacle = daemon.home().path().join("state/quotas.json.new");
    fs::create_dir(&obstacle).unwrap();
    let text = TEAMS.replace("256MiB", "64MiB").replace("weight = 200", "weight = 100");
    let said = fails(&daemon, &text, REFUSED);
    assert!(said.contains("STORE_FAILED"), "{said}");
    assert_eq!(daemon.state(), state);
    fs::remove_dir(&obstacle).unwrap();
    applied(&daemon, &text);
    assert_eq!(quota(&daemon, "team-a").0, 64 * MIB);
}

#[test]
fn start_applies_the_file_or_fails_with_its_line() {
    let daemon = Daemon::start_in(with_file(Config::default(), TEAMS));
    assert_eq!((quota(&daemon, "team-a").0, quota(&daemon, "team-b").0), (256 * MIB, 128 * MIB));
    daemon.set_quota("team-a", "0", "");
    let (_, home) = daemon.stop();
    for (text, expected) in [
        (
            "[[tenants]]\ntenant = \"team-a\"\nlimit = \"75%\"\n",
            "tenants.toml:3:1: tenants[0].limit: unknown field",
        ),
        (
            "[[tenants]]\ntenant = \"team-a\"\n[[tenants.quotas]]\nguarantee = \"9GiB\"\nlimit = \"9GiB\"\n",
            "tenants.toml:4:13",
        ),
    ] {
        fs::write(home.path().join("tenants.toml"), text).unwrap();
        for check in [true, false] {
            let mut command = home.command();
            let output = if check { command.arg("--check").output() } else { command.output() }.unwrap();
            assert_eq!(output.status.code(), Some(CONFIGURATION_WRONG), "{}", said(&output));
            assert!(said(&output).contains(expected), "{}", said(&output));
        }
    }
    fs::write(home.path().join("tenants.toml"), TEAMS).unwrap();
    let daemon = Daemon::start_in(home);
    assert_eq!(quota(&daemon, "team-a").0, 256 * MIB, "a start restores what the file says");
    let (_, home) = daemon.stop();
    fs::remove_file(home.path().join("tenants.toml")).unwrap();
    let output = home.command().output().unwrap();
    assert_eq!(output.status.code(), Some(CONFIGURATION_WRONG), "{}", said(&output));
    assert!(said(&output).contains("cannot read"), "{}", said(&output));
}

#[test]
fn drift_is_shown_until_the_file_is_applied_again() {
    let daemon = Daemon::start_in(with_file(Config::default(), TEAMS));
    let show = |words: &[&str]| said(&daemon.vramctl().args(words).output().unwrap());
    assert!(show(&["node", "show"]).contains("tenants.toml, applied 2"), "{}", show(&["node", "show"]));
    assert!(!show(&["status"]).contains("tenants file"), "{}", show(&["status"]));

    daemon.set_quota("team-a", "", "50%");
    daemon.set_quota("team-c", "", "50%");
    for words in [&["node", "show"][..], &["status"]] {
        assert!(show(words).contains("1 value was set otherwise since"), "{}", show(words));
    }
    let node: Value = serde_json::from_str(&show(&["node", "show", "--json"])).unwrap();
    assert_eq!(node["node"]["applied_tenants"]["difference_count"], 1);
    let dry = apply(&daemon, TEAMS, &["--dry-run"]);
    assert!(dry.status.code() == Some(DIFFERS) && said(&dry).contains("50%"), "{}", said(&dry));
    daemon.signal(Signal::HUP);
    until("the file is in force again", || {
        daemon.state().node.applied_tenants.unwrap().difference_count == 0
    });
    assert_eq!(apply(&daemon, TEAMS, &["--dry-run"]).status.code(), Some(0));
}

#[test]
fn sighup_applies_a_good_file_and_keeps_the_old_one_of_a_bad_one() {
    let daemon = Daemon::start_in(with_file(Config::default(), TEAMS));
    let file = daemon.home().path().join("tenants.toml");
    replace(&file, &TEAMS.replace("256MiB", "64MiB"));
    daemon.signal(Signal::HUP);
    until("the new file is in force", || quota(&daemon, "team-a").0 == 64 * MIB);

    replace(&file, &TEAMS.replace("256MiB", "32MiB").replace("limit", "limitt"));
    daemon.signal(Signal::HUP);
    until("the bad file is refused", || log_count(&daemon, "tenants file refused") == 1);
    let line = daemon.log().lines().rfind(|line| line.contains("tenants file refused")).unwrap().to_owned();
    assert!(
        line.contains("WARN") && line.contains("tenants.toml:8:1: tenants[0].quotas[0].limitt"),
        "{line}"
    );
    assert_eq!(quota(&daemon, "team-a").0, 64 * MIB);
    let shown = said(&daemon.vramctl().arg("status").output().unwrap());
    assert!(shown.contains("read again and refused") && shown.contains("tenants.toml:8:1"), "{shown}");

    replace(&file, TEAMS);
    daemon.signal(Signal::HUP);
    until("the good file is in force", || quota(&daemon, "team-a").0 == 256 * MIB);
    until("the refusal is forgotten", || daemon.state().node.applied_tenants.unwrap().refused.is_empty());
}

#[test]
fn a_storm_of_sighups_disturbs_no_allocation_and_loses_no_value() {
    let home = with_file(Config::default().log_level("info"), TEAMS);
    let daemon = Daemon::start_in(home);
    let file = daemon.home().path().join("tenants.toml");
    let versions = [TEAMS.to_owned(), TEAMS.replace("256MiB", "64MiB"), TEAMS.replace("limit", "limitt")];
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let allocates = || {
            let (mut session, mut count) = (daemon.open(), 0);
            while !ends.load(Ordering::Relaxed) {
                let allocation = session.allocate(spec(4 * MIB));
                session.free(allocation.allocation_id);
                count += 1;
            }
            count
        };
        let workers = [scope.spawn(allocates), scope.spawn(allocates)];
        let sets = scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                daemon.set_quota("team-c", "", "50%");
            }
        });
        for number in 0..300 {
            replace(&file, &versions[number % versions.len()]);
            daemon.signal(Signal::HUP);
            daemon.admin.get_node(Default::default()).ok();
        }
        ends.store(true, Ordering::Relaxed);
        sets.join().unwrap();
        for worker in workers {
            assert!(worker.join().unwrap() > 10, "sessions allocate meanwhile");
        }
    });
    replace(&file, &TEAMS.replace("256MiB", "32MiB"));
    daemon.signal(Signal::HUP);
    until("the last file is in force", || quota(&daemon, "team-a").0 == 32 * MIB);
    let capacity = daemon.state().devices[0].capacity_bytes;
    assert_eq!((quota(&daemon, "team-b").0, quota(&daemon, "team-c").1), (128 * MIB, capacity / 2));
    daemon.drains();
    let daemon = Daemon::start_in(daemon.kill());
    assert_eq!((quota(&daemon, "team-a").0, quota(&daemon, "team-b").0), (32 * MIB, 128 * MIB));
}

#[test]
fn replaced_rules_name_the_tenants_of_new_sessions_alone() {
    let own = geteuid().as_raw();
    let rule = |tenant: &str| format!("[[tenants]]\ntenant = \"{tenant}\"\n[[tenants.rules]]\nuid = {own}\n");
    let daemon = Daemon::start(&Config::default().tenant(own, "configured"));
    let mut first = daemon.open();
    assert_eq!(first.tenant(), "configured");
    let shown = applied(&daemon, &rule("team-a"));
    assert!(shown.contains(&format!("uid={own}")), "{shown}");
    let second = daemon.open();
    assert_eq!(second.tenant(), "team-a", "rules of a tenants file come first");
    first.allocate(spec(4 * MIB));
    assert_eq!(daemon.state().charged_to("configured"), 4 * MIB, "a live session keeps its tenant");
    drop((first, second));
    let daemon = Daemon::start_in(daemon.kill());
    assert_eq!(daemon.open().tenant(), "team-a", "applied rules outlive the daemon");
    applied(&daemon, "");
    assert_eq!(daemon.open().tenant(), "configured");
}
