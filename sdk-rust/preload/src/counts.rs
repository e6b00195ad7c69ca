//! Counts of the calls that the daemon did not serve, by function and reason. With `VRAMD_PRELOAD_REPORT=1` the process writes
//! it to standard error when it ends.

use std::{
    collections::BTreeMap,
    env,
    io::{self, Write as _},
    process,
    sync::{Mutex, Once, PoisonError},
};

/// By the function's name and the reason.
static PASSED_ON: Mutex<BTreeMap<(&str, &str), u64>> = Mutex::new(BTreeMap::new());

static LAST_REFUSAL: Mutex<Option<String>> = Mutex::new(None);

/// Counts a call that goes to the driver although the daemon should serve it.
pub(crate) fn count(function: &'static str, reason: &'static str) {
    *lock().entry((function, reason)).or_default() += 1;
}

/// Keeps the last refusal for the report.
pub(crate) fn refused(problem: String) {
    *LAST_REFUSAL.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
}

/// Forgets the counts, in a forked child: they are its parent's.
pub(crate) fn forget() {
    // A thread of the parent may have been counting. Then the child reports that.
    if let Ok(mut counts) = PASSED_ON.try_lock() {
        counts.clear();
    }
}

fn lock() -> std::sync::MutexGuard<'static, BTreeMap<(&'static str, &'static str), u64>> {
    PASSED_ON.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the process report when it ends, if its user asked for it.
pub(crate) fn report_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if env::var_os("VRAMD_PRELOAD_REPORT").is_some_and(|wanted| wanted == "1") {
            at_exit(report);
        }
    });
}

#[allow(unsafe_code, reason = "the C library runs functions at the end of a process")]
fn at_exit(call: extern "C" fn()) {
    // SAFETY: needed to run code at the end of the process. The function lives as long as this library, which the loader
    // never unloads.
    unsafe { libc::atexit(call) };
}

/// Writes a line for each, and nothing else: the driver may have shut down.
extern "C" fn report() {
    let mut text = format!("vramd: process {}: calls that the daemon did not serve:", process::id());
    // A thread that still counts does not hold up the end.
    match PASSED_ON.try_lock() {
        Ok(counts) if counts.is_empty() => text.push_str(" none\n"),
        Ok(counts) => {
            text.push('\n');
            for ((function, reason), times) in counts.iter() {
                text.push_str(&format!("vramd:   {times} {function}: {reason}\n"));
            }
        }
        Err(_) => text.push_str(" still being counted\n"),
    }
    if let Ok(Some(problem)) = LAST_REFUSAL.try_lock().as_deref() {
        text.push_str(&format!("vramd:   the last allocation that was refused: {problem}\n"));
    }
    // There is nowhere else to report to.
    let _ = io::stderr().write_all(text.as_bytes());
}
