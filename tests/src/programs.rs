//! The programs under test: a test binary builds them once. Other programs use those that lie beside them, so that a
//! bundle runs where nothing can be built.

use std::{
    env, io,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The top folder of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in a folder of the repository")
}

/// A program of the workspace: `vramd`, `vramctl`, or one of the tests.
pub fn program(name: &str) -> PathBuf {
    let folder = folder();
    let path = folder.join(name);
    assert!(path.is_file(), "{} is missing", path.display());
    path
}

/// The folder of the programs, which are up to date if they can be built. A failed build is not repeated.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = FOLDER.get_or_init(|| {
        let own = env::current_exe().expect("a process knows its program");
        // A test binary lies in `deps/`, and the programs lie beside that folder.
        match own.ancestors().find(|path| path.ends_with("deps")).and_then(Path::parent) {
            Some(folder) => build(folder).map(|()| folder.to_owned()),
            None => Ok(own.parent().expect("a program lies in a folder").to_owned()),
        }
    });
    match built {
        Ok(folder) => folder,
        Err(said) => panic!("the programs under test do not build:\n{said}"),
    }
}

fn build(folder: &Path) -> Result<(), String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(repository()).args([
        "build",
        "--quiet",
        "-p",
        "vramd",
        "-p",
        "vramctl",
        "-p",
        "vramd-preload",
        "--lib",
    ]);
    command.args([
        "-p",
        "vramd-tests",
        "--bin",
        "vramd",
        "--bin",
        "vramctl",
        "--bin",
        "probe",
        "--bin",
        "bare",
        "--bin",
        "victim",
        "--bin",
        "dashboards",
        "--bin",
        "guide-rust",
        "--bin",
        "guide-moving",
        "-p",
        "vramd-client",
        "--example",
        "load",
    ]);
    command.arg("--target-dir").arg(folder.parent().expect("a profile's folder lies in the target folder"));
    if folder.ends_with("release") {
        command.arg("--release");
    }
    let output = command.output().expect("cargo starts");
    output.status.success().then_some(()).ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A program's copy in a folder where other users can run it: they may have no access to the target folder.
///
/// Another process copies. Were the copy written here, a child that another thread forks meanwhile would have it open
/// for writing until it executes another program, and until then the kernel would call the copy busy.
///
/// # Errors
/// If it cannot be copied.
pub fn copied(name: &str, folder: &Path) -> io::Result<PathBuf> {
    let copy = folder.join(name);
    if !copy.exists() {
        let status = Command::new("cp").arg(program(name)).arg(&copy).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("cp {name}: {status}")));
        }
    }
    Ok(copy)
}
