//! Replays every committed input: those that once found a bug, and those by which the fuzzer reaches every
//! branch.

use std::{
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use vramd_fuzz::{TARGETS, Target, Verdict};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The verdicts of all files. A property that does not hold fails the test, with the file's name.
fn replay(target: &Target) -> BTreeSet<Verdict> {
    let verdict = |file: PathBuf| {
        let input = fs::read(&file).unwrap();
        catch_unwind(AssertUnwindSafe(|| (target.check)(&input)))
            .unwrap_or_else(|_| panic!("{} of {} breaks a property", file.display(), target.name))
    };
    files(&corpus().join(target.name)).into_iter().map(verdict).collect()
}

#[test]
fn every_property_holds_of_every_input() {
    for target in TARGETS {
        let verdicts = replay(&target);
        let both = BTreeSet::from([Verdict::Accepted, Verdict::Refused]);
        assert_eq!(verdicts, both, "the corpus of {} must have accepted and refused inputs", target.name);
    }
}

#[test]
fn every_corpus_has_its_target() {
    let folders: BTreeSet<_> =
        files(&corpus()).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(folders, TARGETS.iter().map(|target| target.name.to_owned()).collect());
}
