//! For tests: a copy of the library that follows the test's script.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use tempfile::TempDir;

use crate::script::{CALLS, TEXT, TRIGGER};

/// A driver library of one test. As a separate file it is loaded apart from all others.
#[derive(Debug)]
pub struct Fake {
    dir: TempDir,
    script: String,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// # Panics
    /// If the library was not built, or there is no temporary directory.
    pub fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let fake = Self { dir, script: String::new() };
        fs::copy(built(), fake.library()).expect("the library can be copied");
        fs::write(fake.params(), "RegistryDwords: \"\"\n").expect("a file can be written");
        fake.with(&format!("node = {}-{}", process::id(), LAST.fetch_add(1, Ordering::Relaxed)))
    }

    /// Adds a line to the script, before the library is loaded.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn with(mut self, line: &str) -> Self {
        self.script.push_str(line);
        self.script.push('\n');
        fs::write(self.beside(TEXT), &self.script).expect("a file can be written");
        self
    }

    /// Removes a function: changes its name in the library's file, so that it is not found.
    ///
    /// # Panics
    /// If there is no such function.
    #[must_use]
    pub fn without(self, function: &str) -> Self {
        let mut bytes = fs::read(self.library()).expect("the library can be read");
        let name: Vec<u8> = [b"\0", function.as_bytes(), b"\0"].concat();
        let places: Vec<usize> =
            bytes.windows(name.len()).enumerate().filter(|(_, at)| *at == name).map(|(at, _)| at).collect();
        assert!(!places.is_empty(), "the fake driver has no {function}");
        for at in places {
            bytes[at + 1] = b'X';
        }
        fs::write(self.library(), bytes).expect("the library can be written");
        self
    }

    /// Turns the failures, hangs and held copies of the script on or off.
    ///
    /// # Panics
    /// If the trigger file cannot be written or removed.
    pub fn trigger(&self, now: bool) {
        if now {
            fs::write(self.beside(TRIGGER), "").expect("a file can be written");
        } else {
            fs::remove_file(self.beside(TRIGGER)).expect("it was told before");
        }
    }

    /// The names of the threads that have called the function, one for each call. The script must contain `note
    /// = 1`.
    pub fn threads_calling(&self, function: &str) -> Vec<String> {
        self.calls(function).into_iter().map(|(thread, _)| thread).collect()
    }

    /// The same with the CPUs that each thread may run on, as the kernel lists them.
    pub fn calls(&self, function: &str) -> Vec<(String, String)> {
        let calls = fs::read_to_string(self.beside(CALLS)).unwrap_or_default();
        let calls = calls.lines().filter_map(|line| {
            let (cpus, thread) = line.strip_prefix(function)?.strip_prefix(' ')?.split_once(' ')?;
            Some((thread.to_owned(), cpus.to_owned()))
        });
        calls.collect()
    }

    /// Opens the memory behind a legacy handle, like a process that imports it.
    ///
    /// # Panics
    /// If the handle is not from this library, or the process that made it is gone.
    pub fn open_export(handle: &[u8]) -> File {
        let number = |at: usize| u32::from_ne_bytes(handle[at..at + 4].try_into().expect("four bytes"));
        let path = format!("/proc/{}/fd/{}", number(0), number(4));
        File::options().read(true).write(true).open(path).expect("its maker has it open")
    }

    fn beside(&self, end: &str) -> PathBuf {
        self.dir.path().join(format!("libcuda.so.1{end}"))
    }

    /// Replaces `libcuda.so.1` and `libnvidia-ml.so.1`.
    pub fn library(&self) -> PathBuf {
        self.dir.path().join("libcuda.so.1")
    }

    /// Replaces `/proc/driver/nvidia/params`.
    pub fn params(&self) -> PathBuf {
        self.dir.path().join("params")
    }
}

/// Cargo puts the library beside the test, or beside the package of the test.
fn built() -> PathBuf {
    let test = env::current_exe().expect("a process has a program");
    let folders: Vec<&Path> = test.ancestors().skip(1).take(2).collect();
    folders
        .iter()
        .flat_map(|folder| [folder.join("libfake_cuda.so"), folder.join("deps/libfake_cuda.so")])
        .find(|library| library.exists())
        .expect("libfake_cuda.so is built with what depends on it")
}
