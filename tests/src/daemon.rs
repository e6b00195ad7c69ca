//! A real daemon, in a directory of its own, that ends with its test.

use std::{
    env,
    fs::{self, File, Permissions},
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use vramd_proto::v1::{GetNodeRequest, SetQuotaRequest};

use crate::{
    config::{Config, HOLDS_END},
    filter::SyscallFilter,
    http,
    node_state::NodeState,
    probe::Probe,
    proc,
    programs::program,
    rpc::{Admin, Memory, is_serving},
    session::RawSession,
    tools::Grpcurl,
    wait::{PATIENCE, eventually, within},
};

/// A running daemon. When it is dropped, it must not have logged an error or broken an invariant.
#[derive(Debug)]
pub struct Daemon {
    home: Home,
    child: Child,
    pub admin: Admin,
    pub memory: Memory,
    errors_expected: bool,
}

/// The directory of one daemon, or of several in succession: sockets, state and log.
#[derive(Debug)]
pub struct Home {
    dir: TempDir,
    /// Whether a daemon is told to read this directory's configuration.
    configured: bool,
    open_files_max: Option<u64>,
    mounts: Option<String>,
    wrapper: Vec<String>,
    variables: Vec<(&'static str, String)>,
    filter: Option<SyscallFilter>,
}

impl Daemon {
    /// Starts a daemon with one device of 1 GiB and defaults otherwise.
    #[track_caller]
    pub fn new() -> Self {
        Self::start(&Config::default())
    }

    /// Starts a daemon and waits until it serves.
    #[track_caller]
    pub fn start(config: &Config) -> Self {
        let home = Home::new();
        config.write(home.path());
        Self::start_in(home)
    }

    #[track_caller]
    pub fn start_in(home: Home) -> Self {
        let child = home.spawn();
        Self::started(home, child)
    }

    /// A daemon that the caller has started in this directory.
    #[track_caller]
    pub fn started(home: Home, child: Child) -> Self {
        let (admin, memory) = (Admin::new(&home.sockets()), Memory::new(&home.sockets()));
        let mut daemon = Self { home, child, admin, memory, errors_expected: false };
        daemon.wait_until_ready();
        daemon
    }

    fn wait_until_ready(&mut self) {
        eventually("the daemon serves", || {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                panic!("the daemon ended with {status} at its start");
            }
            is_serving(&self.home.sockets().join("admin.sock"), "").then_some(())
        });
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn sockets(&self) -> PathBuf {
        self.home.sockets()
    }

    pub fn home(&self) -> &Home {
        &self.home
    }

    pub fn log(&self) -> String {
        self.home.log()
    }

    /// Lets the driver begin all operations that [`Effect::Hold`](crate::config::Effect::Hold) keeps back, now and later.
    #[track_caller]
    pub fn end_holds(&self) {
        fs::write(self.home.path().join(HOLDS_END), "").expect("the test's directory is writable");
    }

    /// Opens a session of the test's own process.
    #[track_caller]
    pub fn open(&self) -> RawSession {
        RawSession::open(&self.sockets())
    }

    /// Starts a client process.
    #[track_caller]
    pub fn probe(&self) -> Probe {
        Probe::start(&self.sockets(), None)
    }

    /// Starts a client process of another user, which needs root.
    #[track_caller]
    pub fn probe_as(&self, uid: u32) -> Probe {
        Probe::start(&self.sockets(), Some(uid))
    }

    pub fn grpcurl(&self, socket: &str) -> Grpcurl {
        Grpcurl::new(&self.sockets().join(socket))
    }

    pub fn vramctl(&self) -> Command {
        let mut command = Command::new(program("vramctl"));
        command.env("VRAMD_SOCKET_DIR", self.sockets());
        command
    }

    #[track_caller]
    pub fn state(&self) -> NodeState {
        NodeState::read(&self.admin)
    }

    /// The state once the daemon has read every answer on its channels. Answers arrive on another socket than calls, so
    /// a later comparison must not begin with one in flight.
    #[track_caller]
    pub fn settled_state(&self) -> NodeState {
        eventually("nothing is on its way", || {
            let state = self.state();
            (state.node.fds_in_flight == 0).then_some(state)
        })
    }

    /// The daemon's metrics, if the configuration has it serve them.
    #[track_caller]
    pub fn metrics(&self) -> String {
        http::get(self.metrics_address(), "/metrics").body
    }

    /// Where the daemon serves its metrics, by its log.
    #[track_caller]
    pub fn metrics_address(&self) -> SocketAddr {
        eventually("the daemon says where its metrics are", || {
            let log = self.log();
            let line = log.lines().rfind(|line| line.contains("metrics served"))?;
            line.split_once("address=")?.1.split_whitespace().next()?.parse().ok()
        })
    }

    /// Waits until nothing is allocated, charged or in flight.
    #[track_caller]
    pub fn drains(&self) {
        let empty = within(PATIENCE, || self.state().is_empty().then_some(()));
        assert!(empty.is_some(), "waited {PATIENCE:?} in vain for an empty node: {:#?}", self.state());
    }

    /// Sets a quota on every device, in the tier `device`.
    #[track_caller]
    pub fn set_quota(&self, tenant: &str, guarantee: &str, limit: &str) {
        self.admin.set_quota(quota(tenant, "*", guarantee, limit)).ok();
    }

    /// Accepts log lines of level ERROR, for tests that cause them.
    pub fn expect_errors(&mut self) {
        self.errors_expected = true;
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the daemon can be signalled");
    }

    /// Stops it with SIGSTOP, and waits until each of its threads has stopped.
    #[track_caller]
    pub fn freeze(&self) {
        proc::stop(self.pid());
    }

    /// Asks the daemon to stop, and returns its directory to start another one in.
    #[track_caller]
    pub fn stop(mut self) -> (ExitStatus, Home) {
        self.signal(Signal::TERM);
        let status = self.wait();
        self.check_log();
        (status, self.into_home())
    }

    /// Kills the daemon as an out-of-memory killer would.
    #[track_caller]
    pub fn kill(mut self) -> Home {
        self.signal(Signal::KILL);
        self.wait();
        self.into_home()
    }

    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        eventually("the daemon ends", || self.child.try_wait().expect("a child can be asked"))
    }

    fn into_home(mut self) -> Home {
        std::mem::take(&mut self.home)
    }

    fn check_log(&self) {
        let log = self.log();
        // The level, as text and as JSON. Names of the driver's errors may occur in any line.
        let bad = [" ERROR ", "\"ERROR\"", "panicked"];
        let error = log.lines().find(|line| bad.iter().any(|bad| line.contains(bad)));
        assert!(self.errors_expected || error.is_none(), "the daemon logged {error:?}");
    }
}

impl Default for Daemon {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let runs = matches!(self.child.try_wait(), Ok(None));
        let node = (runs && !thread::panicking()).then(|| self.admin.get_node(GetNodeRequest {}).wait());
        if runs {
            // A stopped process dies of SIGKILL alone.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if thread::panicking() {
            eprintln!("--- log of the daemon {}:\n{}---", self.child.id(), self.log());
            return;
        }
        if let Some(Ok(node)) = node {
            assert_eq!(node.invariant_violations, 0, "the daemon broke an invariant:\n{}", self.log());
        }
        self.check_log();
    }
}

impl Home {
    /// Creates a directory whose sockets other users can reach. It is below `VRAMD_TESTS_HOME`, so that a caller can
    /// delete it even if the test is killed.
    pub fn new() -> Self {
        let parent = env::var_os("VRAMD_TESTS_HOME").unwrap_or_else(|| "/tmp".into());
        let home = tempfile::Builder::new().prefix("vramd-e2e-").tempdir_in(parent);
        let home = home.expect("the directory is writable");
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).expect("the directory is ours");
        Self {
            dir: home,
            configured: true,
            open_files_max: None,
            mounts: None,
            wrapper: Vec::new(),
            variables: Vec::new(),
            filter: None,
        }
    }

    /// Starts a daemon without a configuration, whose default directories the caller leads here by a mount.
    #[must_use]
    pub fn without_configuration(self) -> Self {
        Self { configured: false, ..self }
    }

    /// Gives a daemon in this directory a hard limit of open files.
    #[must_use]
    pub fn with_open_files(mut self, most: u64) -> Self {
        self.open_files_max = Some(most);
        self
    }

    /// Mounts by this line of the shell for a daemon in this directory alone. Needs root.
    #[must_use]
    pub fn with_mounts(mut self, line: String) -> Self {
        self.mounts = Some(line);
        self
    }

    /// Starts a daemon in this directory through another program with these arguments, like `unshare --cgroup`.
    #[must_use]
    pub fn with_wrapper(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Sets a variable of a daemon's environment.
    #[must_use]
    pub fn with_variable(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Filters a system call of a daemon in this directory.
    #[must_use]
    pub fn with_filter(mut self, filter: SyscallFilter) -> Self {
        self.filter = Some(filter);
        self
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn sockets(&self) -> PathBuf {
        self.path().join("run")
    }

    /// The log of all daemons in this directory.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }

    /// Starts a daemon, and waits for nothing.
    pub fn spawn(&self) -> Child {
        let log =
            File::options().create(true).append(true).open(self.path().join("log")).expect("the log opens");
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        command.spawn().expect("the daemon starts")
    }

    /// `vramd` with this directory's configuration, if it is to have one.
    pub fn command(&self) -> Command {
        let mut command = match (self.open_files_max, &self.mounts) {
            (None, None) if !self.wrapper.is_empty() => {
                let mut command = Command::new(&self.wrapper[0]);
                command.args(&self.wrapper[1..]).arg(program("vramd"));
                command
            }
            (None, None) => Command::new(program("vramd")),
            (Some(most), _) => {
                // Both limits: the daemon raises the soft one to the hard one.
                let mut command = Command::new("sh");
                command
                    .args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &most.to_string()])
                    .arg(program("vramd"));
                command
            }
            (None, Some(line)) => {
                let mut command = Command::new("unshare");
                let line = format!("{line} && exec \"$0\" \"$@\"");
                command.args(["--mount", "sh", "-c", &line]).arg(program("vramd"));
                command
            }
        };
        if let Some(filter) = self.filter {
            filter.apply(&mut command);
        }
        command.current_dir(self.path()).env_remove("VRAMD_SOCKET_DIR");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if self.configured {
            command.arg("--config").arg(self.path().join("vramd.toml"));
        }
        command
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

/// A request to set a quota. An empty text leaves the value unchanged.
pub fn quota(tenant: &str, device: &str, guarantee: &str, limit: &str) -> SetQuotaRequest {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    SetQuotaRequest {
        tenant: tenant.to_owned(),
        device: Some(device.to_owned()),
        guarantee: given(guarantee),
        limit: given(limit),
        ..Default::default()
    }
}
