//! Writes `docs/reference/errors.md` from the registry of reasons, so that the page always agrees with the code.
//!
//! `cargo run -p vramd-tests --bin errors-md` writes it; with `--check` it only compares and exits 1 on a difference.

use std::{fmt::Write as _, process::ExitCode};

use dev_kit::Page;
use vramd_types::{Reason, StatusCode};

const HEAD: &str = "\
# Errors

<!-- Generated from proto/types/src/reason.rs by `make errors-md`. Do not edit. -->

Every refusal is a gRPC status. Its `google.rpc.ErrorInfo` has the domain `vramd`, one of these reasons, and the facts
as metadata; numbers are bytes unless the fact's name says otherwise. Reasons are API: a name keeps its meaning for
ever, and new reasons may be added. Where a standard detail fits, for clients that know nothing of vramd (`BadRequest`,
`ResourceInfo`, `QuotaFailure`, `PreconditionFailure`, `RetryInfo`), the status has it too. On the channel, and for single
items of a batch, the same code, reason, message and facts come in `Refused` and `ItemError`.

";

fn main() -> anyhow::Result<ExitCode> {
    page().write_or_check()
}

fn page() -> Page {
    Page { name: "reference/errors.md", tool: "errors-md", text: text() }
}

/// The whole page: a table for each status code, by its number, with its reasons in the order of the registry.
fn text() -> String {
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
        page().assert_current();
    }

    #[test]
    fn every_reason_stands_on_the_page_once() {
        let page = text();
        for reason in Reason::ALL {
            assert_eq!(page.matches(&format!("| `{reason}` |")).count(), 1, "{reason}");
        }
    }
}
