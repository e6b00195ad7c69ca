//! The machine is not as the daemon needs it: namespaces, and limits of the kernel.

use std::{fs, io::Write as _, path::Path};

use vramd_tests::{Config, Daemon, Home, MIB_2, wait::until};

use super::refused;
use crate::has_other_users;

const CONFIGURATION_WRONG: i32 = 3;

/// Writes a configuration with a rule by cgroup for the tenant `jupyter`.
fn write_rule(home: &Home, cgroup: &str) {
    Config::default().write(home.path());
    let mut file = fs::File::options().append(true).open(home.path().join("vramd.toml")).unwrap();
    writeln!(file, "[[tenants]]\ntenant = \"jupyter\"\ncgroup = {cgroup:?}").unwrap();
}

#[test]
fn rules_by_cgroup_are_refused_in_a_cgroup_namespace() {
    if !has_other_users("rules_by_cgroup_are_refused_in_a_cgroup_namespace") {
        return;
    }
    let home = Home::new().with_wrapper(&["unshare", "--cgroup"]);
    write_rule(&home, "/system.slice/jupyter.service");
    for (status, said) in refused(&home) {
        assert_eq!(status, Some(CONFIGURATION_WRONG), "{said}");
        assert!(
            said.contains("cgroup namespace") && said.contains("/system.slice/jupyter.service"),
            "{said}"
        );
    }
    // A rule that fits every client depends on no path.
    write_rule(&home, "**");
    let daemon = Daemon::start_in(home);
    assert_eq!(daemon.open().tenant(), "jupyter");
}

#[test]
fn a_rule_whose_cgroup_does_not_exist_is_a_warning() {
    let home = Home::new();
    write_rule(&home, "/no-such.slice/**");
    let daemon = Daemon::start_in(home);
    until("the daemon warns", || {
        daemon.log().lines().any(|line| {
            line.contains("WARN") && line.contains("no cgroup matches") && line.contains("/no-such.slice/**")
        })
    });
    let said = checked(daemon.home());
    assert!(said.contains("no cgroup matches") && said.contains("/no-such.slice/**"), "{said}");
    assert!(daemon.open().tenant().starts_with("uid-"));
}

/// Returns what `--check` says. It must accept the configuration.
fn checked(home: &Home) -> String {
    let output = home.command().arg("--check").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_margin_above_a_device_is_a_warning() {
    let home = Home::new();
    Config::devices(&["32MiB"]).memory("margin = \"64MiB\"").write(home.path());
    let daemon = Daemon::start_in(home);
    let message = "memory.device_share and memory.margin leave nothing of a device";
    until("the daemon warns", || {
        daemon.log().lines().any(|line| line.contains("WARN") && line.contains(message))
    });
    let said = checked(daemon.home());
    assert!(said.contains(message) && said.contains("of 32 MiB"), "{said}");
}

/// A file system may refuse new directories to root too.
#[test]
fn directories_that_cannot_be_made_end_a_check_and_a_start() {
    const RUNTIME: i32 = 1;
    for [state, sockets] in [["/proc/x", "run"], ["state", "/proc/x/y"]] {
        let home = Home::new();
        let text =
            format!("[daemon]\nstate_dir = {state:?}\nsocket_dir = {sockets:?}\n[driver]\nkind = \"sim\"\n");
        fs::write(home.path().join("vramd.toml"), text).unwrap();
        for (status, said) in refused(&home) {
            assert_eq!(status, Some(RUNTIME), "{said}");
            assert!(said.contains("cannot make /proc/x"), "{said}");
        }
    }
}

/// A shell that has the variable for its clients starts another daemon.
#[test]
fn a_refusal_of_the_socket_directory_names_what_chose_it() {
    let daemon = Daemon::start(&Config::default());
    let home = Home::new();
    Config::default().write(home.path());
    let with_variable = |arguments: &[&str]| {
        let mut command = home.command();
        let output = command.env("VRAMD_SOCKET_DIR", daemon.sockets()).args(arguments).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let chooser = "chosen by VRAMD_SOCKET_DIR, which goes before daemon.socket_dir";
    for said in [with_variable(&[]), with_variable(&["--check"])] {
        assert!(said.contains(chooser), "{said}");
    }
    // Without the variable the file chooses.
    let output = daemon.home().command().output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("in use by a live daemon. It was chosen by daemon.socket_dir:"), "{said}");
}

#[test]
fn another_namespaces_proc_ends_the_start() {
    if !has_other_users("another_namespaces_proc_ends_the_start") {
        return;
    }
    let home = Home::new().with_wrapper(&["unshare", "--pid", "--fork"]);
    Config::default().write(home.path());
    for (status, said) in refused(&home) {
        assert_eq!(status, Some(CONFIGURATION_WRONG), "{said}");
        assert!(said.contains("/proc is that of another pid namespace"), "{said}");
    }
}

#[test]
fn clients_outside_the_pid_namespace_are_told() {
    if !has_other_users("clients_outside_the_pid_namespace_are_told") {
        return;
    }
    let home = Home::new().with_wrapper(&["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    Config::default().write(home.path());
    let daemon = Daemon::start_in(home);
    let refused = vramd_tests::RawSession::open_with(&daemon.sockets(), vramd_tests::session::hello());
    let refused = format!("{:?}", refused.unwrap_err());
    assert!(refused.contains("pid namespace") && refused.contains("--pid=host"), "{refused}");
}

/// `vramctl` of another user who is root of a user namespace, as in a rootless container.
fn vramctl_in_a_namespace(daemon: &Daemon) -> std::process::Command {
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", "65532", "--regid", "65532", "--clear-groups"]);
    command.args(["unshare", "--user", "--map-root-user"]).arg(vramd_tests::programs::program("vramctl"));
    command.env("VRAMD_SOCKET_DIR", daemon.sockets());
    command
}

#[test]
fn a_client_in_a_user_namespace_is_its_user_outside() {
    if !has_other_users("a_client_in_a_user_namespace_is_its_user_outside") {
        return;
    }
    let daemon = Daemon::new();
    let said = |argument: &str| {
        let output = vramctl_in_a_namespace(&daemon).arg(argument).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert!(said("mine").starts_with("tenant uid-65532\n"), "{}", said("mine"));
    assert!(said("status").contains("NOT_OPERATOR"), "{}", said("status"));
}

#[test]
fn root_of_a_container_is_no_operator_and_is_a_client() {
    if !has_other_users("root_of_a_container_is_no_operator_and_is_a_client") {
        return;
    }
    let daemon = Daemon::new();
    let said = |command: &mut std::process::Command, argument: &str| {
        command.env("VRAMD_SOCKET_DIR", daemon.sockets()).arg(argument);
        let output = command.output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let contained = || {
        let mut command = std::process::Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).arg(vramd_tests::programs::program("vramctl"));
        command
    };
    let refused = said(&mut contained(), "status");
    assert!(refused.contains("NOT_OPERATOR") && refused.contains("pid namespace"), "{refused}");
    assert!(said(&mut contained(), "mine").starts_with("tenant uid-0\n"));
    let outside = &mut std::process::Command::new(vramd_tests::programs::program("vramctl"));
    assert!(said(outside, "status").contains("in service"));
}

#[test]
fn users_whom_the_daemons_user_namespace_does_not_map_are_refused() {
    if !has_other_users("users_whom_the_daemons_user_namespace_does_not_map_are_refused") {
        return;
    }
    let home = Home::new().with_wrapper(&["unshare", "--user", "--map-root-user"]);
    Config::default().write(home.path());
    let daemon = Daemon::start_in(home);
    let output = vramctl_in_a_namespace(&daemon).arg("mine").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("PEER_UNIDENTIFIED") && said.contains("user namespace does not map"), "{said}");
    assert_eq!(daemon.open().tenant(), "uid-0", "users that it maps are served");
}

/// With 2 the kernel makes no memfd that could be executed. It holds for a pid namespace, so that of the test is safe.
#[test]
fn memory_is_shared_where_the_kernel_forbids_executable_memfds() {
    let test = "memory_is_shared_where_the_kernel_forbids_executable_memfds";
    if !has_other_users(test) || !Path::new("/proc/sys/vm/memfd_noexec").exists() {
        return;
    }
    let line = "echo 2 > /proc/sys/vm/memfd_noexec && exec \"$0\" \"$@\"";
    let home = Home::new().with_wrapper(&[
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        line,
    ]);
    Config::default().write(home.path());
    let daemon = Daemon::start_in(home);
    // A client inside, since the daemon sees no other.
    let vramctl = vramd_tests::programs::program("vramctl");
    let file = daemon.home().path().join("file");
    fs::write(&file, vramd_tests::content(MIB_2, 1)).unwrap();
    let inside = std::process::Command::new("nsenter")
        .args(["--pid", "--mount", "--target", &child_of(daemon.pid()).to_string(), "--"])
        .arg(vramctl)
        .arg("--socket-dir")
        .arg(daemon.sockets())
        .args(["put", file.to_str().unwrap(), "weights"])
        .output()
        .unwrap();
    assert!(inside.status.success(), "{inside:?}\n{}", daemon.log());
    assert!(!daemon.log().contains("no word table"), "{}", daemon.log());
}

/// The only child of a process.
fn child_of(pid: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.trim().parse().unwrap()
}
