//! `vramctl run` and its library: a program that knows nothing of vramd, the real daemon, and a driver library without a
//! GPU.

#![allow(unsafe_code, reason = "the library is asked for its table as the loader's callers ask")]

mod managed;
mod turns;

use std::{
    collections::BTreeMap,
    ffi::{CStr, c_char},
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use fake_cuda::Fake;
use rustix::process::Signal;
use vramd_tests::{Config, Daemon, programs::program};

const LIMIT: &str = "200MiB";

/// A daemon on a driver library, and the programs that find both.
struct Node {
    fake: Fake,
    daemon: Daemon,
}

impl Node {
    fn new(fake: Fake) -> Self {
        Self::configured(fake, |config| config)
    }

    fn configured(fake: Fake, configure: impl FnOnce(Config) -> Config) -> Self {
        symlink(fake.library(), fake.library().with_file_name("libnvidia-ml.so.1")).unwrap();
        let config =
            Config::cuda_library(&fake.library()).memory("margin = \"0\"").memory("sessions_reserved = 0");
        Self { daemon: Daemon::start(&configure(config)), fake }
    }

    /// Has a command find the driver and the daemon.
    fn place(&self, command: &mut Command) {
        self.place_at(command, &self.daemon.sockets());
    }

    fn place_at(&self, command: &mut Command, sockets: &Path) {
        let folder = self.fake.library().parent().unwrap().to_owned();
        command.env("LD_LIBRARY_PATH", folder).env("VRAMD_LIBCUDA", self.fake.library());
        command.env("VRAMD_SOCKET_DIR", sockets);
    }

    /// `vramctl run` with these arguments.
    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("vramctl"));
        self.place(&mut command);
        command.arg("run").args(arguments);
        command
    }

    /// The output of the program under `vramctl run --limit`.
    fn bare(&self, arguments: &[&str]) -> Output {
        let bare = program("bare");
        let mut command = self.run(&["--limit", LIMIT, "--report", "--"]);
        command.arg(bare).args(arguments).output().unwrap()
    }

    #[track_caller]
    fn plays(&self, scene: &[&str]) {
        let output = self.bare(&[&["scene"], scene].concat());
        assert_eq!(text(&output.stdout), "done\n", "{}", text(&output.stderr));
        assert!(output.status.success());
        self.daemon.drains();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The library's own table: names, and what becomes of the calls.
fn table() -> BTreeMap<String, String> {
    type Table = unsafe extern "C" fn() -> *const c_char;
    // SAFETY: needed to load the library. It does nothing by itself.
    let library = unsafe { libloading::Library::new(program("libvramd_preload.so")) }.unwrap();
    // SAFETY: needed to call it. The library exports it with this type.
    let table = unsafe { library.get::<Table>(b"vramd_preload_table") }.unwrap();
    // SAFETY: as above; the text is terminated, and lives as long as the library.
    let text = unsafe { CStr::from_ptr(table()) }.to_str().unwrap().to_owned();
    // Threads may still be in it.
    std::mem::forget(library);
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| (name.into(), kind.into()))
        .collect()
}

/// Each function of the table has its check, by whichever door a program finds it.
#[track_caller]
fn every_function_works_by(door: &str) {
    let node = Node::new(Fake::new().with("note = 1"));
    let output = node.bare(&["checks", door]);
    let said = text(&output.stdout);
    let outcomes: BTreeMap<&str, &str> = said.lines().filter_map(|line| line.split_once(' ')).collect();
    let stderr = text(&output.stderr);
    let served = table().into_iter().filter(|(_, kind)| kind != "Gated").collect::<BTreeMap<_, _>>();
    for name in served.keys() {
        assert_eq!(outcomes.get(name.as_str()), Some(&"ok"), "{name} by {door}\n{said}\n{stderr}");
    }
    assert_eq!(outcomes.len(), served.len(), "a check of what is not in the table:\n{said}");
    assert!(output.status.success(), "{stderr}");
    for passed_on in [
        "8 cuArrayCreate_v2: arrays are not served",
        "8 cuGraphAddMemAllocNode: memory of graphs is not served",
        "8 cuGraphAddNode: memory of graphs is not served",
        "8 cuGraphAddNode_v2: memory of graphs is not served",
        "2 cuMemPoolTrimTo_v2: a later version, which this library does not know",
        "3 cuMemAllocFromPoolAsync: the pool is shared with other processes",
        "1 cuMemAllocFromPoolAsync: other devices access the pool",
        "8 cuGreenCtxStreamCreate: no free waits for a stream of a green context",
        "8 cuCtxFromGreenCtx: no free waits for the work of a green context",
        "2 cuIpcGetMemHandle: served memory has no legacy handle",
    ] {
        assert!(stderr.contains(passed_on), "{passed_on}: {stderr}");
    }
    node.daemon.drains();
    turns::every_gated_function_works_by(door);
}

#[test]
fn every_function_works_by_name() {
    every_function_works_by("dlsym");
}

#[test]
fn every_function_works_by_name_and_version() {
    every_function_works_by("dlvsym");
    let output = Node::new(Fake::new()).bare(&["versions"]);
    assert_eq!(text(&output.stdout), "count: true\n", "{}", text(&output.stderr));
}

#[test]
fn every_function_works_by_proc_address_of_cuda_11() {
    every_function_works_by("proc-address");
}

#[test]
fn every_function_works_by_proc_address_of_cuda_12() {
    every_function_works_by("proc-address-v2");
}

#[test]
fn a_peer_gets_access_to_earlier_and_later_memory() {
    let node = Node::new(Fake::new().with("note = 1").with("devices = 2"));
    node.plays(&["peers"]);
    // The daemon's threads map memory to zero it.
    let is_programs = |thread: &&String| !thread.starts_with("cuda-");
    let by_device = |device: u32| {
        let threads = node.fake.threads_calling(&format!("cuMemSetAccess({device})"));
        threads.iter().filter(is_programs).count()
    };
    // The second device's own block, and both of the first one.
    assert_eq!((by_device(0), by_device(1)), (2, 3));
}

#[test]
fn a_free_waits_for_no_other_device() {
    let node = Node::new(Fake::new().with("note = 1").with("devices = 2"));
    node.plays(&["other-device"]);
    let by_device = |device: u32| {
        let calls = node.fake.threads_calling(&format!("cuEventRecord({device})"));
        calls.iter().filter(|thread| *thread == "bare").count()
    };
    assert_eq!((by_device(0), by_device(1)), (1, 0));
}

#[test]
fn a_free_waits_for_each_stream_that_the_default_one_does_not_cover() {
    let node = Node::new(Fake::new().with("note = 1"));
    node.plays(&["streams"]);
    let records = node.fake.threads_calling("cuEventRecord(0)");
    // At the end of the one stream; then on the default one, and on the other that it does not wait for.
    assert_eq!(records.iter().filter(|thread| *thread == "bare").count(), 3);
}

#[test]
fn memory_freed_during_a_capture_stays_until_the_next_free() {
    Node::new(Fake::new()).plays(&["implicit-capture"]);
}

#[test]
fn memory_that_a_program_keeps_is_given_back() {
    let node = Node::new(Fake::new());
    node.plays(&["kept"]);
    node.plays(&["kept-and-charged"]);
}

#[test]
fn a_full_device_costs_no_wait_that_the_program_can_spare_itself() {
    let node = Node::new(Fake::new().with("memory_mib = 160"));
    // Another tenant's guarantee leaves room for what the program asks for, but not beside what it keeps.
    node.daemon.set_quota("team-b", "60MiB", "100MiB");
    let mut command = node.run(&["--"]);
    let output = command.arg(program("bare")).args(["scene", "kept-and-full"]).output().unwrap();
    assert_eq!(text(&output.stdout), "done\n", "{}", text(&output.stderr));
}

#[test]
fn nvml_alone_says_the_limit_too() {
    let node = Node::new(Fake::new());
    node.plays(&["nvml"]);
    // Also if the daemon has gone meanwhile.
    let mut command = Command::new(program("bare"));
    node.place_at(&mut command, Path::new("/nowhere"));
    command.env("LD_PRELOAD", program("libvramd_preload.so")).env("VRAMD_LIMIT", (200 << 20).to_string());
    assert_eq!(text(&command.args(["scene", "nvml"]).output().unwrap().stdout), "done\n");
}

/// The loader binds its calls: no door but the names leads to this library.
#[test]
fn a_program_that_is_linked_to_the_driver_is_served() {
    let node = Node::new(Fake::new());
    let mut command = node.run(&["--limit", LIMIT, "--"]);
    command.arg(linked(&node.fake)).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = format!("{} bytes in all, 0 blocks of the driver\nready\ndone\n", 200 << 20);
    assert_eq!(text(&output.stdout), said, "{}", text(&output.stderr));
    node.daemon.drains();
}

/// A program for CUDA that is linked to a driver library.
fn linked(fake: &Fake) -> PathBuf {
    let folder = fake.library().parent().unwrap().to_owned();
    let program = folder.join("linked");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("preload/linked.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source).arg("-L").arg(folder);
    // Its functions are the loader's to find: the program need not name the libraries of that one.
    compiler.args(["-l:libcuda.so.1", "-Wl,--allow-shlib-undefined"]);
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    program
}

#[test]
fn a_driver_that_is_found_stays_loaded() {
    let node = Node::new(Fake::new());
    assert_eq!(text(&node.bare(&["look"]).stdout), "stays: true\n");
}

#[test]
fn a_driver_without_a_function_that_is_needed_ends_the_program() {
    let node = Node::new(Fake::new().without("cuDeviceGetMemPool"));
    let mut command = node.run(&["--"]);
    refused(command.arg(program("bare")).args(["scene", "allocate"]), 1, "has no cuDeviceGetMemPool");
}

#[test]
fn a_freed_block_waits_for_streams_by_events_and_never_for_the_context() {
    let node = Node::new(Fake::new().with("note = 1"));
    node.plays(&["allocate"]);
    let calls =
        |function: &str| node.fake.threads_calling(function).iter().filter(|it| *it == "bare").count();
    assert_eq!(calls("cuEventRecord"), 1, "one event, on the default stream");
    assert!(calls("cuEventQuery") >= 2, "the fake driver's events pass at the second look");
    assert_eq!(calls("cuCtxSynchronize"), 0);
}

#[test]
fn programs_fork_execute_capture_and_have_threads() {
    let node = Node::new(Fake::new());
    for scene in ["allocate", "execute", "fork-before", "fork-after", "capture", "threads"] {
        node.plays(&[scene]);
    }
}

#[test]
fn the_limit_is_the_size_of_the_device_to_the_byte() {
    let node = Node::new(Fake::new());
    node.plays(&["largest", &(200 << 20).to_string()]);
    // The tenant's own limit counts as well.
    let own = format!("uid-{}", rustix::process::geteuid().as_raw());
    node.daemon.set_quota(&own, "0", "100MiB");
    node.plays(&["largest", &(100 << 20).to_string()]);
}

#[test]
fn a_thread_that_waits_for_the_daemon_holds_up_no_other() {
    let node = Node::new(Fake::new());
    let mut talk = Talk::start(&node, "stopped-daemon");
    talk.expect("ready");
    node.daemon.freeze();
    talk.answer();
    talk.expect("freed");
    node.daemon.signal(Signal::CONT);
    talk.answer();
    talk.expect("done");
}

#[test]
fn a_restarted_daemon_serves_the_next_allocation() {
    let mut node = Node::new(Fake::new());
    let mut talk = Talk::start(&node, "restarted-daemon");
    talk.expect("ready");
    let (_, home) = node.daemon.stop();
    talk.answer();
    talk.expect("refused");
    node.daemon = Daemon::start_in(home);
    talk.answer();
    talk.expect("done");
}

/// A program that waits for the test between its steps.
struct Talk {
    child: std::process::Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Talk {
    fn start(node: &Node, scene: &str) -> Self {
        Self::started(node.run(&["--"]), scene)
    }

    fn started(mut command: Command, scene: &str) -> Self {
        command.arg(program("bare")).args(["scene", scene]);
        Self::spawned(command)
    }

    fn spawned(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    #[track_caller]
    fn expect(&mut self, said: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), said);
    }

    /// Waits until it has written a line with these words to standard error.
    #[track_caller]
    fn expect_error(&mut self, words: &str) {
        let error = self.child.stderr.as_mut().unwrap();
        let mut line = Vec::new();
        // By bytes: what comes after the line is read later.
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            error.read_exact(&mut byte).unwrap();
            line.extend(byte);
        }
        assert!(text(&line).contains(words), "{}", text(&line));
    }

    /// The rest of what it writes to standard error, once it has ended.
    fn stderr(&mut self) -> String {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }

    fn answer(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn exit_status_arguments_and_signals_are_the_programs_own() {
    let node = Node::new(Fake::new());
    let output = node.run(&["sh", "-c", "echo $0 $1; exit 7", "--", "--limit"]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(7), "-- --limit\n".to_owned()));
    use std::os::unix::process::ExitStatusExt as _;
    let output = node.run(&["sh", "-c", "kill -TERM $$"]).output().unwrap();
    assert_eq!(output.status.signal(), Some(15));
}

#[track_caller]
fn refused(command: &mut Command, status: i32, part: &str) {
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(said.contains(part), "{said}");
}

#[test]
fn a_program_that_cannot_be_served_does_not_start() {
    let node = Node::new(Fake::new());
    refused(&mut node.run(&["--tenant", "team-z", "true"]), 1, "not `team-z`");
    refused(&mut node.run(&["no-such-program-of-vramd"]), 127, "no program");
    let mut command = node.run(&["true"]);
    refused(command.env("VRAMD_PRELOAD", "/nowhere.so"), 2, "is no file");
    let dir = tempfile::tempdir().unwrap();
    let mut command = node.run(&["true"]);
    refused(command.env("VRAMD_SOCKET_DIR", dir.path()), 3, "daemon");
    // The loader would split this path, and go on without the library.
    let spaced = dir.path().join("a library.so");
    fs::copy(program("libvramd_preload.so"), &spaced).unwrap();
    let mut command = node.run(&["true"]);
    refused(command.env("VRAMD_PRELOAD", &spaced), 2, "blanks or colons");
    // A static program, made here: a header without an interpreter.
    let fixed = dir.path().join("fixed");
    let mut head = fs::read(program("vramctl")).unwrap()[..64].to_vec();
    head[56..58].fill(0);
    File::create(&fixed).unwrap().write_all(&head).unwrap();
    fs::set_permissions(&fixed, fs::Permissions::from_mode(0o755)).unwrap();
    refused(node.run(&["--"]).arg(&fixed), 126, "statically");
    let own = rustix::process::geteuid().as_raw();
    if own == 0 {
        let other = dir.path().join("other");
        fs::copy("/bin/true", &other).unwrap();
        rustix::fs::chown(&other, Some(rustix::process::Uid::from_raw(1234)), None).unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o4755)).unwrap();
        refused(node.run(&["--"]).arg(&other), 126, "setuid");
    }
}

/// The library itself ends a program, should the daemon refuse it after `vramctl run` has looked.
#[test]
fn the_library_ends_a_program_that_the_daemon_does_not_serve() {
    let node = Node::new(Fake::new());
    let preloaded = |sockets: &Path| {
        let mut command = Command::new(program("bare"));
        command.args(["scene", "allocate"]).env("LD_PRELOAD", program("libvramd_preload.so"));
        node.place_at(&mut command, sockets);
        command
    };
    refused(&mut preloaded(Path::new("/nowhere")), 3, "cannot be served");
    let mut command = preloaded(&node.daemon.sockets());
    refused(command.env("VRAMD_TENANT", "team-z"), 1, "not `team-z`");
    let mut command = preloaded(&node.daemon.sockets());
    refused(command.env("VRAMD_LIMIT", "much"), 1, "no number of bytes");
    // The reason need have no reader.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = preloaded(Path::new("/nowhere")).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(3));
    // A program that does not use CUDA is left alone.
    let mut command = Command::new("true");
    command.env("LD_PRELOAD", program("libvramd_preload.so")).env("VRAMD_SOCKET_DIR", "/nowhere");
    assert!(command.status().unwrap().success());
}
