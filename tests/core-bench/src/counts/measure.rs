//! Runs the workloads under Valgrind.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
};

use anyhow::{Context as _, Result, ensure};
use dev_kit::repository;

use super::{callgrind, comparison::Counts, workload::Workload};
use crate::counted::PATTERN;

/// The C library has several versions of its copying functions, and chooses by the processor. With these turned
/// off it chooses the same ones on every machine.
const TUNABLES: &str =
    "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM,-RTM,-SSSE3";

/// Counts workloads, as many at a time as there are processors.
pub fn counts(workloads: &[Workload]) -> Result<Counts> {
    let valgrind = valgrind()?;
    let waiting = Mutex::new(workloads.to_vec());
    let next =
        || waiting.lock().ok().and_then(|mut waiting| (!waiting.is_empty()).then(|| waiting.remove(0)));
    let count_rest = || {
        let mut counts = Counts::new();
        while let Some(workload) = next() {
            counts.extend(count(&valgrind, workload).with_context(|| workload.name())?);
        }
        Ok(counts)
    };
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get).min(workloads.len());
    let counted: Result<Vec<Counts>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(count_rest)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread that counts")).collect()
    });
    Ok(counted?.into_iter().flatten().collect())
}

/// Counts one workload.
fn count(valgrind: &Path, workload: Workload) -> Result<Counts> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("out");
    let output = Command::new(valgrind)
        .args(["--quiet", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no", "--dump-line=no"])
        .arg(format!("--toggle-collect={PATTERN}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(env::current_exe()?)
        .args(["run", workload.name()])
        // Nothing else of the surroundings reaches the process.
        .env_clear()
        .env("GLIBC_TUNABLES", TUNABLES)
        .output()
        .context("valgrind cannot be started")?;
    let told = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{}: {}{told}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&out).context("callgrind has written its counts")?;
    let regions = regions(&text);
    ensure!(
        Some(regions.values().sum()) == callgrind::total(&text),
        "something is counted outside of the regions"
    );
    let mut counts = Counts::new();
    for line in told.lines() {
        let mut fields = line.split('\t');
        let mut field = || fields.next().context("a line of three fields");
        let (name, region, times) = (field()?, field()?, field()?.parse::<u64>()?);
        let of_region = *regions.get(region).with_context(|| format!("nothing was counted in {region}"))?;
        counts.insert(name.to_owned(), each(of_region, times));
    }
    ensure!(!counts.is_empty(), "the workload has done nothing");
    Ok(counts)
}

/// The instructions of each region, by the name of its function. All that was collected lies in a region.
fn regions(text: &str) -> BTreeMap<&str, u64> {
    let prefix = PATTERN.trim_end_matches('*');
    let mut regions = BTreeMap::new();
    for (function, count) in callgrind::inclusive(text) {
        // The name may be followed by the types of a generic function.
        if let Some((_, name)) = function.split_once(prefix) {
            let end =
                name.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(name.len());
            *regions.entry(name.split_at(end).0).or_default() += count;
        }
    }
    regions
}

/// Instructions of each, to a tenth.
#[allow(clippy::cast_precision_loss, reason = "counts of instructions are far below 2^53")]
fn each(instructions: u64, times: u64) -> f64 {
    (instructions as f64 * 10.0 / times as f64).round() / 10.0
}

/// The program: that of `tests/dev/install-tools`, or the machine's.
fn valgrind() -> Result<PathBuf> {
    let installed = repository().join(".tools/bin/valgrind");
    let program = if installed.exists() { installed } else { PathBuf::from("valgrind") };
    let found = Command::new(&program).arg("--version").output().is_ok_and(|output| output.status.success());
    ensure!(found, "there is no valgrind; tests/dev/install-tools installs it");
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_have_the_names_of_their_functions() {
        let text = "\
fn=core_bench::counted::regions::hello
0 3
fn=core_bench::counted::regions::hello::<(), core_bench::meter::{closure#0}>
0 4
fn=core_bench::meter::hello
0 100
";
        assert_eq!(regions(text), BTreeMap::from([("hello", 7)]));
    }
}
