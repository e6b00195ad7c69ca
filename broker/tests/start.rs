//! Starts, refused starts and stops of the real daemon: exit statuses, and what is left behind.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long a start or stop may take before a test fails.
const TIMEOUT: Duration = Duration::from_secs(20);

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The daemon with sockets and state in this place, and further configuration.
    fn command(&self, more: &str) -> Command {
        let text = format!(
            "[daemon]\nsocket_dir = {:?}\nstate_dir = {:?}\n{more}",
            self.path("run"),
            self.path("state")
        );
        fs::write(self.path("vramd.toml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vramd"));
        command.env_remove("VRAMD_SOCKET_DIR").arg("--config").arg(self.path("vramd.toml"));
        command.stderr(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn refused(&self, more: &str) -> (i32, String) {
        ended(&mut self.command(more))
    }

    fn start(&self) -> Daemon {
        let daemon = Daemon(self.command("").stderr(Stdio::null()).spawn().unwrap());
        eventually(|| UnixStream::connect(self.path("run/vramd.sock")).is_ok());
        daemon
    }

    fn sockets(&self) -> Vec<String> {
        let names = fs::read_dir(self.path("run")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
        names.retain(|name| name.ends_with(".sock"));
        names.sort();
        names
    }
}

fn ended(command: &mut Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8([stdout, stderr].concat()).unwrap();
    (status.code().expect("it ends by itself"), said)
}

fn eventually(mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !happened() {
        assert!(Instant::now() < deadline, "it does not happen");
        thread::sleep(Duration::from_millis(10));
    }
}

struct Daemon(Child);

impl Daemon {
    fn end(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_stop_is_clean() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let mut daemon = place.start();
        assert_eq!(place.sockets(), ["admin.sock", "channel.sock", "vramd.sock"]);
        // A connected client does not delay the stop.
        let _client = UnixStream::connect(place.path("run/vramd.sock")).unwrap();
        assert_eq!(daemon.end(signal), Some(0), "however early it comes");
        assert!(place.sockets().is_empty());
    }
}

#[test]
fn a_live_daemon_is_left_alone_and_a_dead_one_is_replaced() {
    let place = Place::new();
    let mut first = place.start();
    let (status, said) = place.refused("");
    assert_eq!(status, 4, "{said}");
    assert!(said.contains("in use by a live daemon"), "{said}");
    UnixStream::connect(place.path("run/vramd.sock")).unwrap();

    // The same state directory with other sockets.
    let (status, said) = ended(place.command("").env("VRAMD_SOCKET_DIR", place.path("elsewhere")));
    assert_eq!(status, 4, "{said}");

    // The daemon listens a moment before it stores that it started.
    let epoch = || fs::read_to_string(place.path("state/boot_epoch")).unwrap_or_default();
    eventually(|| epoch() == "1\n");
    assert_eq!(first.end(Signal::KILL), None);
    assert_eq!(place.sockets().len(), 3, "a killed daemon leaves its sockets");
    let _second = place.start();
    eventually(|| epoch() == "2\n");
}

#[test]
fn each_refusal_has_its_status() {
    let place = Place::new();
    let file = place.path("vramd.toml");
    for (more, status, says) in [
        ("log_levle = \"info\"\n", 3, format!("{}:4:1: daemon.log_levle: unknown field", file.display())),
        ("[memory]\nmargin = \"1 apple\"\n", 3, format!("{}:5:10: memory.margin: ", file.display())),
        ("admin_group = \"no-such-group\"\n", 3, "no group `no-such-group`".to_owned()),
        ("[memory]\ndevices = [\"7\"]\n", 5, "this node has no device `7`".to_owned()),
        (
            "[driver]\nkind = \"cuda\"\n[driver.cuda]\nlibrary = \"/nowhere/libcuda.so.1\"\n",
            6,
            "no CUDA driver: /nowhere".to_owned(),
        ),
    ] {
        let (ended, said) = place.refused(more);
        assert_eq!(ended, status, "{more}: {said}");
        assert!(said.contains(&says), "{more}: {said}");
        assert!(!place.path("run").exists() || place.sockets().is_empty(), "{more}");
        assert!(!place.path("state/boot_epoch").exists(), "a start that failed is none: {more}");
    }
    let (status, said) =
        ended(Command::new(env!("CARGO_BIN_EXE_vramd")).args(["--config", "/does/not/exist"]));
    assert_eq!(status, 3, "{said}");
    let (status, _) = ended(Command::new(env!("CARGO_BIN_EXE_vramd")).arg("--bogus"));
    assert_eq!(status, 2);
}

/// The same damage to the surroundings, met by a start and by a check.
#[test]
fn a_check_agrees_with_the_start() {
    type Damage = fn(&Place);
    let none: Damage = |_| {};
    let cases: [(&str, Damage); 7] = [
        ("[memory]\nhost_size = \"1024TiB\"\n", none),
        ("[driver]\nkind = \"cuda\"\n[driver.cuda]\nlibrary = \"/nowhere/libcuda.so.1\"\n", none),
        ("[memory]\ndevices = [\"7\"]\n", none),
        ("admin_group = \"no-such-group\"\n", none),
        ("", |place| {
            fs::create_dir(place.path("run")).unwrap();
            fs::write(place.path("run/admin.sock"), "precious").unwrap();
        }),
        ("", |place| {
            fs::create_dir(place.path("state")).unwrap();
            fs::set_permissions(place.path("state"), fs::Permissions::from_mode(0o777)).unwrap();
        }),
        ("", |place| {
            fs::create_dir(place.path("state")).unwrap();
            fs::write(place.path("state/boot_epoch"), "16777215").unwrap();
        }),
    ];
    for (more, damage) in cases {
        let place = Place::new();
        damage(&place);
        let (checked, said_by_check) = ended(place.command(more).arg("--check"));
        let (status, said) = place.refused(more);
        assert_eq!(checked, status, "{more}\n{said_by_check}\n{said}");
        assert_ne!(status, 0, "{more}");
        let problem = said_by_check.trim_start_matches("vramd: ").trim_end();
        assert!(said.replace("\\\"", "\"").contains(problem), "{said_by_check}\n{said}");
    }
    let place = Place::new();
    let _live = place.start();
    let (status, said) = ended(place.command("").arg("--check"));
    assert!(status == 0 && said.contains("a live daemon uses"), "{status} {said}");
}

#[test]
fn auto_refuses_a_gpu_that_it_cannot_use_and_says_what_it_simulates() {
    let place = Place::new();
    let fake = fake_cuda::Fake::new().with("compute_mode = 3");
    let cuda = |library: &std::path::Path| {
        format!(
            "[driver]\nkind = \"auto\"\n[driver.cuda]\nlibrary = {library:?}\nnvml_library = {library:?}\n"
        )
    };
    for refused in
        [place.refused(&cuda(&fake.library())), ended(place.command(&cuda(&fake.library())).arg("--check"))]
    {
        assert_eq!(refused.0, 6, "{}", refused.1);
        assert!(refused.1.contains("has an NVIDIA device"), "{}", refused.1);
    }
    if vramd::platform::gpu::nvidia_device(std::path::Path::new("/")).is_some() {
        return;
    }
    let mut command = place.command(&cuda("/nowhere/libcuda.so.1".as_ref()));
    let log = place.path("log");
    let mut daemon = Daemon(command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap());
    eventually(|| fs::read_to_string(&log).unwrap().contains("devices found"));
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.lines().any(|line| line.contains("WARN") && line.contains("SIMULATED")), "{said}");
    assert_eq!(daemon.end(Signal::TERM), Some(0));
}

#[test]
fn damaged_state_is_not_guessed_at() {
    let place = Place::new();
    fs::create_dir(place.path("state")).unwrap();
    fs::write(place.path("state/quotas.json"), "{").unwrap();
    for refused in [place.refused(""), ended(place.command("").arg("--check"))] {
        assert_eq!(refused.0, 8, "{}", refused.1);
        assert!(refused.1.contains("quotas.json is damaged"), "{}", refused.1);
    }
}

#[test]
fn check_reads_and_does_nothing_else() {
    let place = Place::new();
    let none = "[memory]\nhost_size = \"0\"\n";
    assert_eq!(ended(place.command(none).arg("--check")), (0, "ok\n".to_owned()));
    let (status, said) = ended(place.command("[limits]\nsessions_max = 0\n").arg("--check"));
    assert_eq!(status, 3);
    assert!(said.contains("vramd.toml:5:16: limits.sessions_max"), "{said}");
    assert!(!place.path("run").exists() && !place.path("state").exists());
}

#[test]
fn the_version_is_printed() {
    let said = ended(Command::new(env!("CARGO_BIN_EXE_vramd")).arg("--version"));
    assert_eq!(said, (0, format!("vramd {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn logs_are_json_where_it_is_asked_for() {
    let place = Place::new();
    let (_, said) = place.refused("log_format = \"json\"\n[memory]\ndevices = [\"7\"]\n");
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.last().unwrap()["exit_status"], 5);
}

/// The daemon cannot go on if one of its own CUDA contexts is poisoned. It reports that, and ends with its own status.
#[test]
fn a_lost_driver_ends_the_daemon_with_its_own_status() {
    let place = Place::new();
    let fake = fake_cuda::Fake::new().with("fail.cuStreamQuery = 700@4");
    let library = fake.library();
    let (status, said) = place.refused(&format!(
        "[driver]\nkind = \"cuda\"\n[driver.cuda]\nlibrary = {library:?}\nnvml_library = {library:?}\n\
         [limits]\nsurvey_interval_ms = 50\n"
    ));
    assert_eq!(status, 7, "{said}");
    assert!(said.contains("the driver is lost") && said.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{said}");
    assert_eq!(place.sockets(), [""; 0], "no trace is left");
}
