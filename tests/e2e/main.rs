//! The end-to-end suite: one module for each subject, all in one binary so that it is linked once.
//!
//! Tests that need a second user need root. Without it they say so, and check what one user can show.

mod daemon;
mod gpu_suite;
mod guides;
mod hostile;
mod moves;
mod operators;
mod packages;
mod pressure;
mod protocol;
mod sdk;
mod telemetry;

/// Returns whether this process can mount file systems that no other process sees, by trying this line of the shell.
/// The test's output says if it cannot. With `VRAMD_EXPECT_MOUNT=1` it must.
fn can_mount(test: &str, line: &str) -> bool {
    let tried = std::process::Command::new("unshare").args(["--mount", "sh", "-c", line]).output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        let must = std::env::var_os("VRAMD_EXPECT_MOUNT").is_some_and(|must| must == "1");
        assert!(!must, "{test}: `{line}` must work");
        eprintln!("{test}: needs to mount file systems, which `{line}` cannot; not checked in this run");
    }
    can
}

/// Returns whether the test has root, which it needs for other users. The test's output says if it has not.
fn has_other_users(test: &str) -> bool {
    let root = vramd_tests::is_root();
    if !root {
        eprintln!("{test}: needs root to become other users; not checked in this run");
    }
    root
}
