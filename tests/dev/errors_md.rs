//! Writes `docs/ERRORS.md` from the registry of reasons, so that the page cannot say anything else than the code.
//!
//! `cargo run -p vramd-tests --bin errors-md` writes it; with `--check` it only compares and exits 1 on a difference.

use std::{env, fmt::Write as _, fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, bail};
use vramd_types::{Reason, StatusCode};

const HEAD: &str = "\
# Errors

<!-- Generated from proto/types/src/reason.rs by `make errors-md`. Do not edit. -->

Every refusal is a gRPC status. Its `google.rpc.ErrorInfo` has the domain `vramd`, one of these reasons, and the facts
as metadata; numbers are bytes unless the fact's name says otherwise. Reasons are API: a name keeps its meaning for
ever, and new ones may come. Where clients who know nothing of vramd understand a standard detail (`BadRequest`,
`ResourceInfo`, `QuotaFailure`, `PreconditionFailure`, `RetryInfo`), that travels too. On the channel, and for single
items of a batch, the same code, reason, message and facts come in `Refused` and `ItemError`.

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
            eprintln!("docs/ERRORS.md is not what the registry says: run `make errors-md`");
            Ok(ExitCode::FAILURE)
        }
        Some(other) => bail!("unknown argument {other:?}; usage: errors-md [--check]"),
    }
}

fn page_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/ERRORS.md")
}

fn is_current() -> anyhow::Result<bool> {
    let path = page_path();
    let written = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(written == page())
}

/// The whole page: a table for each status code, by its number, with its reasons in the order of the registry.
fn page() -> String {
    let mut codes: Vec<StatusCode> = Reason::ALL.iter().map(|reason| reason.code()).collect();
    codes.sort();
    codes.dedup();
    let mut page = String::from(HEAD);
    for (position, code) in codes.into_iter().enumerate() {
        let gap = if position == 0 { "" } else { "\n" };
        table(&mut page, gap, code).expect("a String takes whatever is written");
    }
    page
}

fn table(page: &mut String, gap: &str, code: StatusCode) -> std::fmt::Result {
    writeln!(page, "{gap}## {} ({})\n", code.name(), code as i32)?;
    writeln!(page, "| Reason | Facts | Meaning |\n|---|---|---|")?;
    for reason in Reason::ALL.iter().filter(|reason| reason.code() == code) {
        let facts: Vec<String> = reason.facts().iter().map(|fact| format!("`{fact}`")).collect();
        writeln!(page, "| `{reason}` | {} | {} |", facts.join(", "), reason.meaning())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_is_current() {
        assert!(is_current().expect("docs/ERRORS.md can be read"), "run `make errors-md`");
    }

    #[test]
    fn every_reason_stands_on_the_page_once() {
        let page = page();
        for reason in Reason::ALL {
            assert_eq!(page.matches(&format!("| `{reason}` |")).count(), 1, "{reason}");
        }
    }
}
