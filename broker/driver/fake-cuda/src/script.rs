//! The script of the library, and the record of calls.
#![allow(unsafe_code, reason = "the library asks the loader for its own path")]

use std::{
    collections::HashMap,
    ffi::{CStr, OsStr, c_void},
    fs::{self, File},
    io::Write as _,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Suffixes of the files beside the library: the script, the trigger, and the record of calls.
pub(crate) const TEXT: &str = ".script";
pub(crate) const TRIGGER: &str = ".triggered";
pub(crate) const CALLS: &str = ".calls";

pub(crate) struct Script {
    values: HashMap<String, String>,
    calls: Mutex<HashMap<&'static str, u64>>,
}

pub(crate) fn script() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| {
        let text = beside(TEXT).and_then(|path| fs::read_to_string(path).ok());
        let text = text.unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let values = lines.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect();
        Script { values, calls: Mutex::default() }
    })
}

impl Script {
    pub(crate) fn text<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.values.get(key).map_or(default, String::as_str)
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, key: &str, default: T) -> T {
        self.values.get(key).and_then(|value| value.parse().ok()).unwrap_or(default)
    }

    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.number(key, 0_u32) != 0
    }

    pub(crate) fn bytes(&self, key: &str, default_mib: usize) -> usize {
        self.number(key, default_mib) << 20
    }

    /// The error that the function must return at this call.
    pub(crate) fn failure(&self, function: &'static str) -> Option<u32> {
        self.note(function);
        let (code, from) = self.values.get(&format!("fail.{function}"))?.split_once('@')?;
        let fails = if from.trim() == "triggered" {
            is_triggered()
        } else {
            self.number_of_call(function) >= from.trim().parse().ok()?
        };
        if fails { code.trim().parse().ok() } else { None }
    }

    /// Whether the function returns late.
    pub(crate) fn delay(&self, function: &'static str) -> Delay {
        Delay(self.is_set(&format!("hang.{function}")) && is_triggered())
    }

    fn number_of_call(&self, function: &'static str) -> u64 {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let number = calls.entry(function).or_default();
        *number += 1;
        *number
    }

    /// Notes the thread that calls a function, and the CPUs it may run on, if the script asks for it. One write
    /// for each line keeps lines of several threads whole.
    pub(crate) fn note(&self, function: &str) {
        if !self.is_set("note") {
            return;
        }
        let thread = fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("?");
        let calls = beside(CALLS).and_then(|path| File::options().append(true).create(true).open(path).ok());
        if let Some(mut calls) = calls {
            // A test that looks for the line will not find it.
            let _ = calls.write_all(format!("{function} {} {}\n", cpus.trim(), thread.trim()).as_bytes());
        }
    }
}

/// Delays the return of a function that has done its work until the trigger is off, or for a long time at most.
pub(crate) struct Delay(bool);

impl Drop for Delay {
    fn drop(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(60);
        let end = Instant::now() + PATIENCE;
        while self.0 && is_triggered() && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

pub(crate) fn is_triggered() -> bool {
    beside(TRIGGER).is_some_and(|told| told.exists())
}

fn beside(end: &str) -> Option<PathBuf> {
    own_path().map(|mut path| {
        path.as_mut_os_string().push(end);
        path
    })
}

fn own_path() -> Option<PathBuf> {
    let here: *const c_void = (own_path as fn() -> Option<PathBuf> as *const ()).cast();
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: A foreign call, which compares an address and writes one structure where it is told to.
    let known = unsafe { libc::dladdr(here, &raw mut found) };
    if known == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: The loader's text, terminated, and there as long as the library is.
    let path = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}
