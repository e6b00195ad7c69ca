//! The CUDA driver keeps the contract over the fake library, whose memory is memfds. The same program runs on a
//! real GPU: `contract-cuda`, without arguments.

use std::{
    process::{Command, Output},
    thread,
};

use fake_cuda::Fake;

fn run(fake: &Fake, only: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_contract-cuda"))
        .arg("--library")
        .arg(fake.library())
        .arg("--nvml")
        .arg(fake.library())
        .arg("--params")
        .arg(fake.params())
        .args(only)
        .output()
        .unwrap()
}

/// Runs the suite, or the cases with these parts in their names, and returns its output.
fn run_suite(fake: &Fake, only: &[&str]) -> String {
    let output = run(fake, only);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Run beside each other: one case waits more than it works.
const TOGETHER: [&[&str]; 3] = [
    &[
        "pinning",
        "memory::",
        "lifetime::",
        "capacity::",
        "host::",
        "digest::",
        "submissions::",
        "other_programs::",
    ],
    &["free_pinned::", "copies::", "directory::", "fixed::", "faults::"],
    &["disk::", "files::"],
];

#[test]
fn the_contract_holds_with_one_device() {
    let text = thread::scope(|scope| {
        let runs = TOGETHER.map(|cases| scope.spawn(|| run_suite(&Fake::new(), cases)));
        runs.map(|run| run.join().unwrap()).join("\n")
    });
    let ended = text.lines().filter(|line| line.contains("::") && line.contains(" ... ")).count();
    assert_eq!(ended, broker_driver::contract::cases().len(), "each case is run, and once:\n{text}");
    assert!(text.contains("scrub certain, context listed by NVML"), "{text}");
    assert!(text.contains("pinned ahead: 1024 MiB in "), "{text}");
    let apart = text.lines().filter(|line| line.contains("not applicable")).count();
    assert_eq!(apart, 17, "exact capacity, several devices and faults are not to be had here:\n{text}");
}

#[test]
fn the_contract_holds_with_two_devices() {
    let text = run_suite(&Fake::new().with("devices = 2"), &["capacity", "another_device"]);
    assert!(text.contains("bytes_arrive_on_another_device ... ok"), "{text}");
    assert!(text.contains("bytes_go_to_disk_from_another_device ... ok"), "{text}");
    assert!(text.contains("devices_are_separate ... ok"), "{text}");
}

#[test]
fn the_contract_holds_with_dirty_memory_and_no_process_list() {
    let text = run_suite(
        &Fake::new().with("dirty = 1").with("lists = 0").with("context_mib = 32"),
        &["memory", "lifetime"],
    );
    assert!(text.contains("not certain, zeroing: released memory was not zero"), "{text}");
    assert!(text.contains("context measured by the device's use"), "{text}");
}

#[test]
fn the_contract_holds_with_registered_host_memory() {
    let text = run_suite(
        &Fake::new().with("attribute.141 = 0"),
        &["host::", "free_pinned::", "disk::", "every_direction", "both_directions", "dropped"],
    );
    assert!(text.contains("host memory: registered memfds"), "{text}");
}

#[test]
fn the_program_says_why_it_cannot_run() {
    let output = run(&Fake::new().with("init = 34"), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the toolkit's stub"), "{output:?}");
}
