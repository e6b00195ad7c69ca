//! The containers of deploy/container, run by hand with the mounts and rights of deploy/chart/vramd: a read-only root,
//! the directory of the sockets and that of the state. Each pod has namespaces of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, MutexGuard, PoisonError},
};

use vramd_tests::{
    Daemon, Home, MIB, content, http,
    programs::{program, repository},
    wait::until,
};

use crate::{can_mount, has_other_users};

/// The user of the client image.
const NONROOT: &str = "65532";
/// The rights of root that the chart leaves the daemon, and `sys_chroot` to enter the container.
const DAEMON_RIGHTS: &str = "-all,+chown,+dac_read_search,+ipc_lock,+kill,+sys_ptrace,+sys_chroot";
const ENTER_RIGHTS: &str = "-all,+setgid,+setuid,+sys_chroot";
const FILE_SIZE: u64 = 3 * MIB;

/// Makes the file systems of both containers below the home, as the Dockerfile does.
fn images(home: &Home) {
    let programs = program("vramd").parent().unwrap().to_owned();
    for image in ["daemon", "client"] {
        let made = Command::new(repository().join("deploy/container/rootfs"))
            .arg(image)
            .arg(&programs)
            .arg(home.path().join(image))
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
    }
    for directory in ["run", "state", "etc", "data"] {
        fs::create_dir(home.path().join(directory)).unwrap();
    }
}

/// A line of the shell that mounts these folders into a container, and leaves the rest of it read-only.
fn mount_line(root: &Path, mounts: &[(PathBuf, &str, &str)]) -> String {
    let root = root.display();
    let mut line = format!("mount --bind {root} {root} && mount --rbind /proc {root}/proc");
    for (from, to, options) in mounts {
        let from = from.display();
        line += &format!(" && mount --bind {from} {root}{to} && mount -o remount,bind,{options} {root}{to}");
    }
    line + &format!(" && mount -o remount,bind,ro {root}")
}

/// A directory whose daemon runs in the daemon's container, in the host's namespaces of processes and cgroups.
fn daemon_home(configuration: &str) -> Home {
    let home = Home::new();
    images(&home);
    fs::write(home.path().join("etc/vramd.toml"), configuration).unwrap();
    let at = |name: &str| home.path().join(name);
    let mounts = [
        (at("run"), "/run/vramd", "rw"),
        (at("state"), "/var/lib/vramd", "rw"),
        (at("etc"), "/etc/vramd", "ro"),
    ];
    let root = at("daemon");
    let line = format!(
        "{} && exec setpriv --no-new-privs --bounding-set={DAEMON_RIGHTS} chroot {} /usr/bin/vramd",
        mount_line(&root, &mounts),
        root.display()
    );
    home.with_wrapper(&["unshare", "--mount", "--ipc", "--uts", "sh", "-c", &line])
}

/// A pod of clients: its cgroup, and a container with the sockets mounted read-only.
struct Pod<'a> {
    home: &'a Home,
    cgroup: PathBuf,
}

impl<'a> Pod<'a> {
    /// A pod that the kubelet gave this UID, in the cgroup that it makes with the systemd driver.
    fn new(home: &'a Home, uid: &str) -> Self {
        let pod = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
        let cgroup = cgroup_root()
            .join("kubepods.slice/kubepods-burstable.slice")
            .join(pod)
            .join("cri-containerd-1.scope");
        fs::create_dir_all(&cgroup).unwrap();
        Self { home, cgroup }
    }

    /// Runs `vramctl` in the pod, with no right and in namespaces of its own.
    fn vramctl(&self, arguments: &[&str]) -> Output {
        let root = self.home.path().join("client");
        let mounts =
            [(self.home.sockets(), "/run/vramd", "ro"), (self.home.path().join("data"), "/tmp", "ro")];
        let enter = format!("echo $$ > {}/cgroup.procs", self.cgroup.display());
        let line = format!(
            "{} && exec setpriv --no-new-privs --bounding-set={ENTER_RIGHTS} \
             chroot --userspec={NONROOT}:{NONROOT} --groups={NONROOT} {} /usr/bin/vramctl \"$@\"",
            mount_line(&root, &mounts),
            root.display()
        );
        let namespaces =
            "exec unshare --mount --ipc --uts --net --pid --cgroup --fork --kill-child sh -c \"$0\" pod";
        Command::new("sh")
            .args(["-c", &format!("{enter} && {namespaces} \"$@\""), &line])
            .args(arguments)
            .env_remove("VRAMD_SOCKET_DIR")
            .output()
            .unwrap()
    }

    #[track_caller]
    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.vramctl(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn fails(&self, arguments: &[&str]) -> String {
        let output = self.vramctl(arguments);
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        // The cgroup of another pod may lie beside it.
        for cgroup in self.cgroup.ancestors().take(4) {
            if fs::remove_dir(cgroup).is_err() {
                break;
            }
        }
    }
}

/// The hierarchy whose paths the daemon reads: version 2, alone or beside version 1.
fn cgroup_root() -> &'static Path {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .map(Path::new)
        .into_iter()
        .find(|root| root.join("cgroup.procs").exists())
        .expect("cgroups of version 2 are mounted")
}

/// The rule of the chart for one pod: at these depths only the kubelet names cgroups.
fn rule(tenant: &str, uid: &str) -> String {
    let uid = uid.replace('-', "_");
    let cgroup = format!("/kubepods.slice/kubepods-*.slice/kubepods-*-pod{uid}.slice/**");
    format!("[[tenants]]\ntenant = \"{tenant}\"\ncgroup = \"{cgroup}\"\n")
}

const POD_A: &str = "6f7c9a52-0d0e-4c63-9a58-1b0f5f3b7a11";
const POD_B: &str = "0c1d7f3e-55b2-4f0c-8a6d-2f9e4f1f9b22";
const STRANGER: &str = "b7a1d2c4-90ab-4a53-8c35-3a7d0f6c1c33";

fn configuration() -> String {
    let head = "[driver]\nkind = \"sim\"\n[[driver.sim.devices]]\nmemory = \"256MiB\"\n\
                [telemetry]\nprometheus_listen = \"127.0.0.1:0\"\n";
    head.to_owned() + &rule("team-a", POD_A) + &rule("team-b", POD_B)
}

/// Returns whether the test can run, and keeps others from the cgroups of its pods meanwhile.
fn can_run(test: &str) -> Option<MutexGuard<'static, ()>> {
    static CGROUPS: Mutex<()> = Mutex::new(());
    let can = has_other_users(test) && can_mount(test, "mount -t tmpfs none /mnt");
    can.then(|| CGROUPS.lock().unwrap_or_else(PoisonError::into_inner))
}

#[test]
fn pods_share_memory_through_one_mounted_directory() {
    let Some(_cgroups) = can_run("pods_share_memory_through_one_mounted_directory") else {
        return;
    };
    let daemon = Daemon::start_in(daemon_home(&configuration()));
    let home = daemon.home();
    fs::write(home.path().join("data/model"), content(FILE_SIZE, 7)).unwrap();
    let (a, b, stranger) = (Pod::new(home, POD_A), Pod::new(home, POD_B), Pod::new(home, STRANGER));

    // The same user in all pods: the cgroup tells the tenants apart.
    assert!(a.succeeds(&["mine"]).starts_with("tenant team-a\n"));
    assert!(b.succeeds(&["mine"]).starts_with("tenant team-b\n"));
    assert!(stranger.succeeds(&["mine"]).starts_with("tenant uid-65532\n"));

    a.succeeds(&["put", "/tmp/model", "llama", "--reader", "team-b"]);
    let said = b.succeeds(&["verify", "team-a/llama", "/tmp/model"]);
    assert!(said.contains("the same as /tmp/model"), "{said}");
    let said = stranger.fails(&["verify", "team-a/llama", "/tmp/model"]);
    assert!(said.contains("ALLOCATION_NOT_FOUND"), "{said}");
    let said = a.fails(&["status"]);
    assert!(said.contains("NOT_OPERATOR"), "{said}");
}

#[test]
fn the_daemon_runs_on_a_read_only_root() {
    let Some(_cgroups) = can_run("the_daemon_runs_on_a_read_only_root") else {
        return;
    };
    let daemon = Daemon::start_in(daemon_home(&configuration()));
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", daemon.pid())).unwrap();
    let root = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/")).unwrap();
    assert!(root.split(' ').nth(5).unwrap().starts_with("ro"), "{root}");
    daemon.set_quota("team-a", "", "1MiB");
    assert_eq!(http::get(crate::telemetry::address(&daemon), "/readyz").status, 200);

    // The mounted directory itself stays, as a mount does.
    for entry in fs::read_dir(daemon.sockets()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    until("the sockets are back", || daemon.sockets().join("channel.sock").exists());
    let pod = Pod::new(daemon.home(), POD_A);
    assert!(pod.succeeds(&["mine"]).starts_with("tenant team-a\n"));
    drop(pod);

    let (status, home) = daemon.stop();
    assert!(status.success());
    let again = Daemon::start_in(home);
    let quotas = again.vramctl().args(["quota", "list", "--json"]).output().unwrap();
    assert!(String::from_utf8(quotas.stdout).unwrap().contains("team-a"), "quotas outlive the container");
}
