//! The core stays pure: this is the list of what it may depend on.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The vocabulary, and one collection: `smallvec` keeps the one item that a list of the core nearly always has inside
/// the list. It has no state, clock, thread or IO, and no dependency of its own.
const ALLOWED: [&str; 2] = ["smallvec", "vramd-types"];
const FORBIDDEN: [&str; 17] = [
    "std::time::Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
    "std::thread",
    "std::env",
    "std::fs",
    "std::net",
    "Mutex",
    "RwLock",
    "RefCell",
    "Atomic",
    "OnceLock",
    "LazyLock",
    "std::io",
    "std::process",
    "rand::",
];

/// All files below a folder of this crate.
pub(crate) fn source_files(folder: &str) -> Vec<PathBuf> {
    let (mut folders, mut files) = (vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a source folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

#[test]
fn dependencies_are_the_vocabulary_and_a_collection() {
    for manifest in ["Cargo.toml", "../../proto/types/Cargo.toml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest);
        let text = fs::read_to_string(&path).expect("the manifest is there");
        assert!(!text.contains("[target") && !text.contains("-dependencies]"), "{manifest}: one table only");
        let dependencies = text.split("[dependencies]").nth(1).expect("a dependency table");
        let table = dependencies.split("\n[").next().unwrap_or_default();
        for line in table.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            assert!(ALLOWED.contains(&name), "{manifest}: the core must not depend on `{name}`");
        }
    }
}

#[test]
fn source_uses_no_clock_randomness_or_io() {
    let files = source_files("src");
    for path in &files {
        let text = fs::read_to_string(path).expect("a source file");
        for word in FORBIDDEN {
            assert!(!text.contains(word), "{} uses {word}", path.display());
        }
    }
    assert!(files.len() > 20, "found {} files only", files.len());
}

/// A file that `all.rs` does not name is never run.
#[test]
fn every_test_file_is_part_of_the_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let program = fs::read_to_string(folder.join("all.rs")).expect("it is there");
    for entry in fs::read_dir(&folder).expect("it can be read") {
        let path = entry.expect("it can be read").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("names are UTF-8");
        assert!(name == "all" || program.contains(&format!("\nmod {name};\n")), "{name} is in no program");
    }
}
