//! Builds and loads the driver of `libcuda.rs`, and talks to it.

#![allow(unsafe_code, reason = "functions of a test's library")]

use std::{
    env,
    ffi::CString,
    fs,
    path::{Path, PathBuf},
    process::{self, Command},
    slice,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use libloading::Library;

use crate::cuda::{Driver, fault::LoadError};

/// A fake driver of one test: a library of its own to the loader, with its own state.
pub(crate) struct FakeDriver {
    pub(crate) driver: Arc<Driver>,
    library: Library,
}

/// A copy of the built library at a path of its own.
pub(super) struct Copy(pub(super) PathBuf);

impl FakeDriver {
    pub(crate) fn load() -> Self {
        Self::load_built(&[])
    }

    /// A driver that is built with these options.
    pub(crate) fn load_built(options: &[&str]) -> Self {
        let copy = Copy::new(options);
        let driver = Arc::new(Driver::load(&copy.0).unwrap());
        // SAFETY: needed to open it. It is the library of this test, opened already.
        let library = unsafe { Library::new(&copy.0) }.unwrap();
        let fake = Self { driver, library };
        assert_eq!(fake.calls(), ["cuInit"]);
        fake
    }

    /// Makes the function return this code from now on.
    pub(crate) fn fail(&self, function: &str, code: u32) {
        fail(&self.library, function, code);
    }

    /// Returns the calls since the last time.
    pub(crate) fn calls(&self) -> Vec<String> {
        // SAFETY: needed to find the function, of the type that `libcuda.rs` gives it.
        let calls =
            unsafe { self.library.get::<extern "C" fn(*mut usize) -> *const u8>("fake_calls") }.unwrap();
        let mut size = 0;
        let text = calls(&raw mut size);
        // SAFETY: needed to read it. It has that size, and is never given back.
        let text = str::from_utf8(unsafe { slice::from_raw_parts(text, size) }).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The number of contexts that this thread has pushed and not popped.
    pub(crate) fn current(&self) -> usize {
        // SAFETY: as above.
        let current = unsafe { self.library.get::<extern "C" fn() -> usize>("fake_current") }.unwrap();
        current()
    }
}

impl FakeDriver {
    /// Sets whether work on a stream is running, and whether the stream is captured.
    pub(crate) fn stream(&self, stream: u64, busy: bool, capturing: bool) {
        // SAFETY: needed to find the function, of the type that `libcuda.rs` gives it.
        let set = unsafe { self.library.get::<extern "C" fn(usize, bool, bool)>("fake_stream") }.unwrap();
        set(usize::try_from(stream).unwrap(), busy, capturing);
    }

    /// The capture mode of this thread; 0, which is global, by default.
    pub(crate) fn capture_mode(&self) -> u32 {
        // SAFETY: as above.
        let mode = unsafe { self.library.get::<extern "C" fn() -> u32>("fake_capture_mode") }.unwrap();
        mode()
    }
}

fn fail(library: &Library, function: &str, code: u32) {
    let function = CString::new(function).unwrap();
    // SAFETY: as above.
    let fail = unsafe { library.get::<unsafe extern "C" fn(*const i8, u32)>("fake_fail") }.unwrap();
    // SAFETY: needed to call it. It reads a string that ends with a zero.
    unsafe { fail(function.as_ptr(), code) };
}

/// Loads a driver, one of whose functions fails from the start.
pub(super) fn load_failing(function: &str, code: u32) -> Result<Driver, LoadError> {
    let copy = Copy::new(&[]);
    // SAFETY: needed to open it. It is the library of this test.
    let library = unsafe { Library::new(&copy.0) }.unwrap();
    fail(&library, function, code);
    Driver::load(&copy.0)
}

impl Copy {
    pub(super) fn new(options: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("vramd-fake-libcuda-{}-{number}.so", process::id()));
        match options {
            [] => fs::write(&path, WHOLE.get_or_init(|| built(&path, &[]))).unwrap(),
            options => drop(built(&path, options)),
        }
        Self(path)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // A loaded library stays loaded.
        let _ = fs::remove_file(&self.0);
    }
}

fn built(to: &Path, options: &[&str]) -> Vec<u8> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda/tests/libcuda.rs");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let command = ["--edition=2024", "--crate-type=cdylib", "-Cpanic=abort", "-o"];
    let status = Command::new(rustc).args(command).arg(to).args(options).arg(source).status().unwrap();
    assert!(status.success());
    fs::read(to).unwrap()
}
