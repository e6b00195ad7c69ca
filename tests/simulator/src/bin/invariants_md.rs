//! Writes `docs/INVARIANTS.md` from the registry of invariants, so that the page cannot say anything else than the code.
//!
//! `cargo run -p simulator --bin invariants-md` writes it; with `--check` it only compares and exits 1 on a difference.

use std::{env, fmt::Write as _, fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, bail};
use broker_core::invariants::{Checked, Invariant, REGISTRY};

const HEAD: &str = "\
# Invariants

<!-- Generated from broker/core/src/invariants/registry.rs by `make invariants-md`. Do not edit. -->

What must always be so. An id keeps its meaning for ever: it stands in code, logs, refusals (`INTERNAL`) and stories of
the simulator. One invariant, one file.

- *recomputed*: `Broker::check` works it out anew from the tables. Tests do so after every event; the simulator checks
  what the event touched, and everything once in 256 events and in the end.
- *met by handlers*: the code that changes state counts, logs and survives a violation, in production too.
- *observed*: the simulator's oracle works it out from events and commands alone and shares no code with the core.

| Invariant | What must be so | Checked |
|---|---|---|
";

fn main() -> anyhow::Result<ExitCode> {
    let path = page_path();
    match env::args().nth(1).as_deref() {
        None => {
            fs::write(&path, page()).with_context(|| format!("write {}", path.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Some("--check") if is_current()? => Ok(ExitCode::SUCCESS),
        Some("--check") => {
            eprintln!("docs/INVARIANTS.md is not what the registry says: run `make invariants-md`");
            Ok(ExitCode::FAILURE)
        }
        Some(other) => bail!("unknown argument {other:?}; usage: invariants-md [--check]"),
    }
}

fn page_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/INVARIANTS.md")
}

fn is_current() -> anyhow::Result<bool> {
    let path = page_path();
    let written = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(written == page())
}

fn page() -> String {
    let mut page = String::from(HEAD);
    for Invariant { id, says, checked } in REGISTRY {
        let (how, folder, files) = match checked {
            Checked::Recomputed { file } => ("recomputed", "broker/core/src/invariants", file),
            Checked::Handler { file } => ("met by handlers", "broker/core/src/handler", file),
            Checked::Oracle { file } => ("observed", "tests/simulator/src/oracle", file),
        };
        let links: Vec<String> =
            files.split(", ").map(|file| format!("[`{file}`](../{folder}/{file})")).collect();
        writeln!(page, "| `{id}` | {says} | {how}: {} |", links.join(", "))
            .expect("a String takes whatever is written");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_is_current() {
        assert!(is_current().expect("docs/INVARIANTS.md can be read"), "run `make invariants-md`");
    }

    #[test]
    fn every_invariant_stands_on_the_page_once() {
        let page = page();
        for row in REGISTRY {
            assert_eq!(page.matches(&format!("| `{}` |", row.id)).count(), 1, "{}", row.id);
        }
    }
}
