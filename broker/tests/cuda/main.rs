//! The real daemon on the CUDA driver, over the fake library: failures that a test cannot cause on a real card.

mod disk;
mod fixed;
mod host;
mod links;

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use fake_cuda::Fake;
use tonic::transport::Endpoint;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use vramd_tests::{
    RawSession, content,
    node_state::NodeState,
    rpc::{Admin, is_serving},
    session::persistent,
    spec,
    wait::{eventually, until},
};

/// Two parts.
const SIZE: u64 = 6 << 20;

struct Daemon {
    place: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    /// Starts the daemon and waits until it serves.
    fn start(fake: &Fake) -> Self {
        Self::start_with_host(fake, "0")
    }

    /// With so much host memory beside its device.
    fn start_with_host(fake: &Fake, host_size: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vramd"));
        command.arg("--config").arg(configured(&place, fake, host_size));
        Self::start_by(command, place)
    }

    fn start_by(command: Command, place: tempfile::TempDir) -> Self {
        let daemon = Self::spawn(command, place);
        until("the daemon serves", || is_serving(&daemon.sockets().join("admin.sock"), ""));
        daemon
    }

    fn spawn(mut command: Command, place: tempfile::TempDir) -> Self {
        command.env_remove("VRAMD_SOCKET_DIR");
        command.stdin(Stdio::null()).stdout(fs::File::create(place.path().join("log")).unwrap());
        command.stderr(fs::File::options().append(true).open(place.path().join("log")).unwrap());
        let child = command.spawn().unwrap();
        Self { place, child }
    }

    fn sockets(&self) -> PathBuf {
        self.place.path().join("run")
    }

    fn admin(&self) -> Admin {
        Admin::new(&self.sockets())
    }

    /// Waits until the daemon has read every answer on its channels.
    #[track_caller]
    fn settled_state(&self) -> NodeState {
        eventually("nothing is on its way", || {
            let state = NodeState::read(&self.admin());
            (state.node.fds_in_flight == 0).then_some(state)
        })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.path().join("log")).unwrap()
    }

    fn wait_for_end(&mut self) -> ExitStatus {
        let mut status = None;
        until("the daemon ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

fn configured(place: &tempfile::TempDir, fake: &Fake, host_size: &str) -> PathBuf {
    let (file, library) = (place.path().join("vramd.toml"), fake.library());
    let text = format!(
        "[daemon]\nsocket_dir = {:?}\nstate_dir = {:?}\n[memory]\npart_size = \"4MiB\"\nmargin = \"0\"\n\
         host_size = {host_size:?}\nsessions_reserved = 0\n[driver]\nkind = \"cuda\"\n[driver.cuda]\n\
         library = {library:?}\nnvml_library = {library:?}\n[limits]\nsurvey_interval_ms = 50\n",
        place.path().join("run"),
        place.path().join("state"),
    );
    fs::write(&file, text).unwrap();
    file
}

/// Starts a daemon that sees such a cgroup. The test sets how much is used.
struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    fn new(place: &tempfile::TempDir, max: u64, current: u64) -> Self {
        assert!(rustix::process::geteuid().is_root(), "only root can mount something: run this test as root");
        let cgroup = Self { folder: place.path().join("cgroups") };
        fs::create_dir(&cgroup.folder).unwrap();
        fs::write(cgroup.folder.join("memory.max"), format!("{max}\n")).unwrap();
        cgroup.set_usage(current);
        cgroup
    }

    fn set_usage(&self, current: u64) {
        fs::write(self.folder.join("memory.current"), format!("{current}\n")).unwrap();
    }

    fn command(&self, config: &Path) -> Command {
        command_seeing(&self.folder, "/sys/fs/cgroup", config)
    }
}

/// Starts a daemon that sees a node of 64 GiB without swap. The test sets how much of it other programs take.
struct NodeMemory {
    meminfo: PathBuf,
}

impl NodeMemory {
    fn new(place: &tempfile::TempDir, percent_used: u64) -> Self {
        assert!(rustix::process::geteuid().is_root(), "only root can mount something: run this test as root");
        let node = Self { meminfo: place.path().join("meminfo") };
        node.set_usage(percent_used);
        node
    }

    /// Overwrites the file as a whole, since the daemon reads it at any time.
    fn set_usage(&self, percent: u64) {
        const KIB: u64 = 64 << 20;
        let available = KIB / 100 * (100 - percent);
        let text =
            format!("MemTotal: {KIB:>14} kB\nMemAvailable: {available:>10} kB\nSwapTotal: {:>13} kB\n", 0);
        let file = fs::File::options().create(true).truncate(false).write(true).open(&self.meminfo).unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
    }

    fn command(&self, config: &Path) -> Command {
        command_seeing(&self.meminfo, "/proc/meminfo", config)
    }
}

/// A command that starts a daemon which sees this file or folder there.
fn command_seeing(folder: &Path, there: &str, config: &Path) -> Command {
    let mut command = Command::new("unshare");
    let line = format!("mount --bind '{}' {there} && exec \"$0\" \"$@\"", folder.display());
    command.args(["--mount", "sh", "-c", &line, env!("CARGO_BIN_EXE_vramd"), "--config"]).arg(config);
    command
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All health reports until the daemon hangs up. `begun` is called after the first.
async fn health(socket: &Path, begun: impl FnOnce()) -> Vec<ServingStatus> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    let watch = client.watch(HealthCheckRequest { service: String::new() }).await;
    let mut watch = watch.unwrap().into_inner();
    let mut said = vec![watch.message().await.unwrap().unwrap().status()];
    begun();
    // An error is the end of the connection.
    while let Ok(Some(word)) = watch.message().await {
        said.push(word.status());
    }
    said
}

/// Health reports it, the daemon exits with its own status and by itself, and a client keeps its mappings.
fn check_lost_context(code: u32) {
    let fake = Fake::new().with(&format!("fail.cuStreamQuery = {code}@triggered"));
    let mut daemon = Daemon::start(&fake);
    let mut session = RawSession::open(&daemon.sockets());
    let allocation = session.allocate(spec(SIZE)).allocation_id;
    let bytes = content(SIZE, 1);
    session.write(allocation, &bytes);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let said = runtime.block_on(health(&daemon.sockets().join("admin.sock"), || fake.trigger(true)));
    assert_eq!(said, [ServingStatus::Serving, ServingStatus::NotServing]);
    assert_eq!(daemon.wait_for_end().code(), Some(7), "{}", daemon.log());
    assert!(daemon.log().contains(&format!("({code})")), "{}", daemon.log());

    assert_eq!(session.digest(allocation, SIZE), vramd_tests::digest(&bytes), "it is all there");
    let more = content(SIZE, 2);
    session.write(allocation, &more);
    assert_eq!(session.digest(allocation, SIZE), vramd_tests::digest(&more), "and can be used");
}

#[test]
fn an_illegal_address_ends_the_daemon() {
    check_lost_context(700);
}

#[test]
fn a_failed_launch_ends_the_daemon() {
    check_lost_context(719);
}

/// Each part of an allocation is exported when it is created, and then sent to every mapper.
#[test]
fn a_part_is_exported_once_and_sent_to_many() {
    let fake = Fake::new().with("note = 1");
    let daemon = Daemon::start(&fake);
    let exports = || fake.threads_calling("cuMemExportToShareableHandle").len();
    let before = exports();
    let mut owner = RawSession::open(&daemon.sockets());
    let allocation = owner.allocate(persistent("shared", SIZE)).allocation_id;
    assert_eq!(exports(), before + 2, "two parts");
    let bytes = content(SIZE, 3);
    owner.write(allocation, &bytes);
    owner.seal(allocation);
    for _ in 0..3 {
        let mut reader = RawSession::open(&daemon.sockets());
        let attached = reader.attach("shared").allocation_id;
        assert_eq!(reader.digest(attached, SIZE), vramd_tests::digest(&bytes));
    }
    assert_eq!(exports(), before + 2, "they were sent, to its owner again and to three readers");
}
