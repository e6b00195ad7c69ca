//! Writes `docs/reference/invariants.md` from the registry of invariants, so that the page always agrees with the code.
//!
//! `cargo run -p simulator --bin invariants-md` writes it; with `--check` it only compares and exits 1 on a difference.

use std::{fmt::Write as _, process::ExitCode};

use broker_core::invariants::{CheckedBy, Invariant, REGISTRY};
use dev_kit::Page;

const HEAD: &str = "\
# Invariants

<!-- Generated from broker/core/src/invariants/registry.rs by `make invariants-md`. Do not edit. -->

An invariant must hold after every event. Its id keeps its meaning for ever: it stands in code, logs, refusals
(`INTERNAL`) and traces of the simulator. One invariant is one file.

How each is checked:

- *recomputed*: `Broker::check` works it out anew from the tables. Tests do so after every event. The simulator checks
  what the event touched, and checks everything once in 256 events and at the end.
- *met by handlers*: the code that changes state counts, logs and survives a violation, in production too.
- *observed*: the simulator's oracle works it out from events and commands alone and shares no code with the core.

| Invariant | What must hold | Checked |
|---|---|---|
";

fn main() -> anyhow::Result<ExitCode> {
    page().write_or_check()
}

fn page() -> Page {
    Page { name: "reference/invariants.md", tool: "invariants-md", text: text() }
}

fn text() -> String {
    let mut page = String::from(HEAD);
    for Invariant { id, statement, checked_by } in REGISTRY {
        let (how, folder, files) = match checked_by {
            CheckedBy::Recomputed { file } => ("recomputed", "broker/core/src/invariants", file),
            CheckedBy::Handler { file } => ("met by handlers", "broker/core/src/handler", file),
            CheckedBy::Oracle { file } => ("observed", "tests/simulator/src/oracle", file),
        };
        let links: Vec<String> =
            files.split(", ").map(|file| format!("[`{file}`](../../{folder}/{file})")).collect();
        writeln!(page, "| `{id}` | {statement} | {how}: {} |", links.join(", "))
            .expect("a String takes whatever is written");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_is_current() {
        page().assert_current();
    }

    #[test]
    fn every_invariant_stands_on_the_page_once() {
        let page = text();
        for row in REGISTRY {
            assert_eq!(page.matches(&format!("| `{}` |", row.id)).count(), 1, "{}", row.id);
        }
    }
}
