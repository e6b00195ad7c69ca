//! Runs the Rust of the guides, as programs that have each of its blocks.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

use vramd_tests::{
    Config, Daemon,
    programs::{program, repository},
};

/// The lines without their indentation, and without empty ones.
fn lines(text: &str) -> String {
    text.lines().map(|line| line.trim().to_owned() + "\n").filter(|line| line != "\n").collect()
}

/// Checks that the program has every block of Rust in the guide, and the guide at least `blocks_min` of them.
fn assert_has_blocks(program: &str, guide: &str, blocks_min: usize) {
    let text = fs::read_to_string(repository().join(guide)).unwrap();
    let code = lines(program);
    let blocks: Vec<_> =
        text.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= blocks_min, "{} blocks", blocks.len());
    for block in blocks {
        assert!(code.contains(&lines(block)), "the program of {guide} does not have:\n{block}");
    }
}

#[test]
fn guide_blocks_are_in_their_programs() {
    assert_has_blocks(include_str!("../../guides/rust.rs"), "docs/guides/rust.md", 7);
    assert_has_blocks(include_str!("../../guides/moving.rs"), "docs/guides/moving.md", 7);
}

/// The write without a pin to write is lost, and kept if the daemon checks clean parts.
#[test]
fn moving_guide_program_runs() {
    for (checked, found) in [(false, "1\n"), (true, "2\n")] {
        let config = Config::devices(&["16MiB"]).memory("host_size = \"64MiB\"").limit("pin_stall_ms = 1500");
        let daemon = Daemon::start(&config.memory(&format!("check_shadows = {checked}")));
        let guide =
            Command::new(program("guide-moving")).env("VRAMD_SOCKET_DIR", daemon.sockets()).output().unwrap();
        assert!(guide.status.success(), "{}", String::from_utf8_lossy(&guide.stderr));
        assert_eq!(String::from_utf8_lossy(&guide.stdout), found, "with check_shadows = {checked}");
        assert_eq!(daemon.log().contains("written without a pin for writing"), checked);
        daemon.drains();
    }
}

#[test]
fn rust_guide_program_runs() {
    let daemon = Daemon::new();
    let mut guide = Command::new(program("guide-rust"))
        .env("VRAMD_SOCKET_DIR", daemon.sockets())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(guide.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "restart\n");
    let daemon = Daemon::start_in(daemon.kill());
    writeln!(guide.stdin.take().unwrap(), "done").unwrap();
    assert!(guide.wait().unwrap().success());
    daemon.drains();
}
