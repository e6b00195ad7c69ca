//! What the library was told to be.
#![allow(unsafe_code, reason = "the library asks the loader for its own path")]

use std::{
    collections::HashMap,
    ffi::{CStr, OsStr, c_void},
    fs,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError},
};

pub(crate) struct Script {
    values: HashMap<String, String>,
    calls: Mutex<HashMap<&'static str, u64>>,
}

pub(crate) fn script() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| {
        let text = own_path().and_then(|mut path| {
            path.as_mut_os_string().push(".script");
            fs::read_to_string(path).ok()
        });
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

    pub(crate) fn says(&self, key: &str) -> bool {
        self.number(key, 0_u32) != 0
    }

    pub(crate) fn bytes(&self, key: &str, default_mib: usize) -> usize {
        self.number(key, default_mib) << 20
    }

    /// Counts a call of the function; the code that it must fail with.
    pub(crate) fn failure(&self, function: &'static str) -> Option<u32> {
        let (code, from) = self.values.get(&format!("fail.{function}"))?.split_once('@')?;
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let number = calls.entry(function).or_default();
        *number += 1;
        if *number >= from.trim().parse().ok()? { code.trim().parse().ok() } else { None }
    }
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
