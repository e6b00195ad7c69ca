//! State on disk that is damaged, missing, or in a full file system.

use std::{fs, path::Path};

use vramd_tests::{Config, Daemon, Home, MIB_2, session::spec};

use super::refused;
use crate::can_mount;

const STATE_DAMAGED: i32 = 8;

#[test]
fn damaged_state_has_its_status_its_remedy_and_a_way_on() {
    let daemon = Daemon::new();
    let first = daemon.open().id();
    daemon.set_quota("team-a", "0", "512MiB");
    daemon.set_quota("team-a", "0", "256MiB");
    let (_, home) = daemon.stop();
    let state = home.path().join("state");
    fs::write(state.join("quotas.json"), "{").unwrap();
    for (status, said) in refused(&home) {
        assert_eq!(status, Some(STATE_DAMAGED), "{said}");
        assert!(said.contains("quotas.json is damaged") && said.contains("--reset-state"), "{said}");
    }
    fs::write(state.join("boot_epoch"), u64::MAX.to_string()).unwrap();
    fs::remove_file(state.join("quotas.json")).unwrap();
    fs::remove_file(state.join("quotas.json.old")).unwrap();
    for (status, said) in refused(&home) {
        assert_eq!(status, Some(STATE_DAMAGED), "{said}");
        assert!(said.contains("boot_epoch is damaged") && said.contains("Do not remove it"), "{said}");
    }
    fs::write(state.join("quotas.json"), "{").unwrap();
    let mut command = home.command();
    let log = fs::File::options().append(true).open(home.path().join("log")).unwrap();
    let child = command.arg("--reset-state").stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    let daemon = Daemon::started(home, child);
    assert!(daemon.open().id() > first, "no id is used twice");
    assert_eq!(daemon.log().matches("state reset").count(), 2, "{}", daemon.log());
    assert_eq!(fs::read_to_string(state.join("quotas.json.damaged")).unwrap(), "{");
}

#[test]
fn a_reset_takes_the_quotas_before_the_last_change() {
    let daemon = Daemon::new();
    daemon.set_quota("team-a", "0", "512MiB");
    daemon.set_quota("team-a", "0", "256MiB");
    let (_, home) = daemon.stop();
    fs::write(home.path().join("state/quotas.json"), "").unwrap();
    let mut command = home.command();
    let child = command.arg("--reset-state").stderr(std::process::Stdio::null()).spawn().unwrap();
    let daemon = Daemon::started(home, child);
    let output = daemon.vramctl().args(["quota", "list"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("team-a") && said.contains("512 MiB"), "{said}");
}

/// Nothing needs the copy while the quotas are whole. An operator should know before they are not.
#[test]
fn a_damaged_copy_of_the_quotas_is_a_warning() {
    let daemon = Daemon::new();
    daemon.set_quota("team-a", "0", "512MiB");
    daemon.set_quota("team-a", "0", "256MiB");
    let (_, home) = daemon.stop();
    fs::write(home.path().join("state/quotas.json.old"), "garbage").unwrap();
    let output = home.command().arg("--check").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let message = "the copy of the quotas before the last change is damaged";
    assert!(output.status.success(), "{said}");
    assert!(said.contains(message) && said.contains("quotas.json.old"), "{said}");
    let daemon = Daemon::start_in(home);
    assert!(daemon.log().lines().any(|line| line.contains("WARN") && line.contains(message)));
}

/// A state directory in a file system of its own, which a file then fills.
#[test]
fn a_full_state_directory_refuses_changes_and_not_the_next_start() {
    let line = "mount -t tmpfs none /mnt";
    if !can_mount("a_full_state_directory_refuses_changes_and_not_the_next_start", line) {
        return;
    }
    let home = Home::new();
    let state = home.path().join("state");
    fs::create_dir(&state).unwrap();
    let own = format!(
        "mount -t tmpfs -o size=64k,mode=700 none '{0}' && echo 7 > '{0}/boot_epoch' && printf '{1}' > '{0}/quotas.json' && \
         {{ head -c 60k /dev/zero > '{0}/full'; true; }} && {{ cat /dev/zero > '{0}/fuller' 2> /dev/null; true; }}",
        state.display(),
        "{\"version\": 1, \"quotas\": [], \"requests\": []}",
    );
    Config::default().write(home.path());
    let daemon = Daemon::start_in(home.with_mounts(own));
    assert_eq!(daemon.state().node.boot_epoch, 8);
    assert!(daemon.log().contains("the state directory is full"), "{}", daemon.log());
    daemon.open().allocate(spec(MIB_2));
    let quota = vramd_tests::daemon::quota("team-a", "*", "0", "512MiB");
    assert!(format!("{:?}", daemon.admin.set_quota(quota).refused()).contains("No space left"));
    let inside = format!("/proc/{}/root{}", daemon.pid(), state.display());
    let names: Vec<_> = fs::read_dir(&inside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().ends_with(".new")), "{names:?}");
    fs::remove_file(Path::new(&inside).join("fuller")).unwrap();
    fs::remove_file(Path::new(&inside).join("full")).unwrap();
    daemon.set_quota("team-a", "0", "512MiB");
}
