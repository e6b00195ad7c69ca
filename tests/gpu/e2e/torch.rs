//! PyTorch in a client: it and the SDK share the device's primary context.

use std::{
    env,
    io::{BufRead as _, BufReader, Lines, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, MIB};

use super::World;

const SIZE: u64 = 64 * MIB;
/// Less than a context, more than what a library of PyTorch's takes when it is first used.
const SLACK: u64 = 256 * MIB;

/// The program of `torch_share.py`, stage by stage.
struct Program {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(daemon: &Daemon, gpu: &str) -> Self {
        let mut command = Command::new("python3");
        command.arg(beside("torch_share.py")).arg(beside("libtorch_share.so")).arg(gpu).arg(SIZE.to_string());
        command.env("VRAMD_SOCKET_DIR", daemon.sockets()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 starts");
        let input = child.stdin.take().expect("its input is a pipe");
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        Self { child, input, output }
    }

    /// What it says of its next stage; it stays there until it is let on.
    #[track_caller]
    fn stage(&mut self) -> Value {
        let line = self.output.next().expect("it says what it has seen, or why it ends, on standard error");
        serde_json::from_str(&line.expect("its output can be read")).expect("it speaks JSON")
    }

    #[track_caller]
    fn go_on(&mut self) {
        self.input.write_all(b"\n").expect("it waits for that");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where `make gpu-bundle` puts it.
fn beside(name: &str) -> PathBuf {
    let own = env::current_exe().expect("a process knows its program");
    let bundle = own.parent().and_then(|bin| bin.parent()).expect("a program lies in a folder of the bundle");
    let path = bundle.join("torch").join(name);
    assert!(path.is_file(), "{} is missing: this runs in a bundle", path.display());
    path
}

pub(super) fn shares_the_context(world: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let mut program = Program::start(&daemon, world.gpu());
    let pid = program.child.id();
    let look = || (world.used(), world.witness.of_process(world.gpu(), pid).expect("NVML answers"));
    let torch = program.stage();
    if let Some(why) = torch.get("absent") {
        return json!({ "absent": why });
    }
    let (used, of_process) = look();
    program.go_on();
    let mapped = program.stage();
    let (used_mapped, of_process_mapped) = look();
    assert!(used_mapped < used + SIZE + SLACK, "a second context: {used}, then {used_mapped} bytes in use");
    if let (Some(before), Some(after)) = (of_process, of_process_mapped) {
        assert!(after < before + SLACK, "a second context: NVML charges {before}, then {after}");
    }
    assert_eq!(daemon.books().held(), SIZE);
    program.go_on();
    let freed = program.stage();
    assert_eq!(freed["stage"], "freed");
    program.go_on();
    let status = program.child.wait().expect("a child can be waited for");
    assert!(status.success(), "{status}");
    daemon.drains();
    assert!(daemon.stop().0.success(), "the daemon ends well");
    json!({
        "torch": torch, "mapped": mapped,
        "nvml_used_bytes": [used, used_mapped], "nvml_of_process_bytes": [of_process, of_process_mapped],
    })
}
