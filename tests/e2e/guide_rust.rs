//! The guides for users: their code is run.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

use vramd_tests::{
    Daemon,
    programs::{program, repository},
};

/// Lines without what they are indented by.
fn lines(text: &str) -> String {
    text.lines().map(|line| line.trim().to_owned() + "\n").filter(|line| line != "\n").collect()
}

#[test]
fn every_block_of_the_guide_for_rust_is_in_its_program() {
    let guide = fs::read_to_string(repository().join("docs/guides/rust.md")).unwrap();
    let code = lines(include_str!("../guides/rust.rs"));
    let blocks: Vec<_> =
        guide.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 7, "{} blocks", blocks.len());
    for block in blocks {
        assert!(code.contains(&lines(block)), "tests/guides/rust.rs does not have:\n{block}");
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
