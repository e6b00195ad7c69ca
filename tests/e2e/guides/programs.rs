//! The guides for users: their code is run.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

use vramd_tests::{
    Config, Daemon,
    programs::{program, repository},
};

/// Lines without what they are indented by.
fn lines(text: &str) -> String {
    text.lines().map(|line| line.trim().to_owned() + "\n").filter(|line| line != "\n").collect()
}

/// The blocks of Rust that a guide has, at least so many, are in its program.
fn blocks_are_in(guide: &str, program: &str, least: usize) {
    let text = fs::read_to_string(repository().join(guide)).unwrap();
    let code = lines(program);
    let blocks: Vec<_> =
        text.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= least, "{} blocks", blocks.len());
    for block in blocks {
        assert!(code.contains(&lines(block)), "the program of {guide} does not have:\n{block}");
    }
}

#[test]
fn every_block_of_the_guides_is_in_their_programs() {
    blocks_are_in("docs/guides/rust.md", include_str!("../../guides/rust.rs"), 7);
    blocks_are_in("docs/guides/moving.md", include_str!("../../guides/moving.rs"), 7);
}

/// What it writes behind its pins is lost, and kept where shadows are checked.
#[test]
fn the_guide_for_memory_that_moves_runs() {
    for (checked, found) in [(false, "1\n"), (true, "2\n")] {
        let config = Config::devices(&["16MiB"]).memory("host_size = \"64MiB\"").limit("pin_stall_ms = 1500");
        let daemon = Daemon::start(&config.memory(&format!("check_shadows = {checked}")));
        let guide =
            Command::new(program("guide-moving")).env("VRAMD_SOCKET_DIR", daemon.sockets()).output().unwrap();
        assert!(guide.status.success(), "{}", String::from_utf8_lossy(&guide.stderr));
        assert_eq!(String::from_utf8_lossy(&guide.stdout), found, "with check_shadows = {checked}");
        assert_eq!(daemon.log().contains("written behind its pins"), checked);
        daemon.drains();
    }
}

#[test]
fn the_guide_for_rust_runs() {
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
