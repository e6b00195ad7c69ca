//! The configuration file, of any bytes.
//!
//! An accepted file lies within its documented bounds and can be used, and the same tables, printed by
//! another library, are accepted as the same. A refusal names a location in the text and its field, which move
//! with the text.

mod bounds;
mod fields;

use vramd::config::{self, ErrorLocation};

use crate::{Verdict, memory};

/// The parser keeps a tree of the text beside its tokens.
const MEMORY_PER_BYTE: u64 = 2048;
/// Moves the text two lines down.
const PREFIX: &str = "# one\n\n";

pub(crate) fn check(input: &[u8]) -> Verdict {
    let parsed = memory::bounded(input, MEMORY_PER_BYTE, || config::parse_bytes(input));
    match (&parsed, std::str::from_utf8(input)) {
        (Ok(config), Ok(text)) => {
            bounds::check(config);
            if let Some(tables) = tables(text) {
                let printed = toml::to_string(&tables).expect("an accepted file can be printed");
                assert_eq!(config::parse(&printed).as_ref(), Ok(config), "printed as\n{printed}");
            }
            moves(input, |again| assert_eq!(again.as_ref(), Ok(config)));
        }
        (Err(location), Ok(text)) => {
            lies_in(location, text);
            if let Some(tables) = tables(text) {
                fields::check(location, &tables, text);
            }
            moves(input, |again| assert_eq!(again.as_ref(), Err(&moved(location))));
        }
        (Err(location), Err(error)) => {
            assert_eq!(location.field, "");
            lies_in(location, &String::from_utf8_lossy(&input[..error.valid_up_to()]));
            moves(input, |again| assert_eq!(again.as_ref(), Err(&moved(location))));
        }
        (Ok(config), Err(error)) => panic!("{error}, and yet {config:?}"),
    }
    Verdict::of(&parsed)
}

/// `None` if the text is not TOML. Also for some that is: a table holds no integer of 2^63 or more, and a
/// size may be one.
fn tables(text: &str) -> Option<toml::Table> {
    text.parse().ok()
}

fn lies_in(location: &ErrorLocation, text: &str) {
    let line = text.split('\n').nth(location.line - 1);
    let line = line.unwrap_or_else(|| panic!("{location}: the text has no such line"));
    assert!(
        (1..=line.chars().count() + 1).contains(&location.column),
        "{location}: {line:?} has no such column"
    );
    assert!(!location.problem.is_empty() && !location.problem.contains('\n'), "{location}");
}

/// Reads the text again, two lines further down. A byte order mark must stay where it is.
fn moves(input: &[u8], judge: impl FnOnce(Result<config::Config, ErrorLocation>)) {
    if !input.starts_with("\u{feff}".as_bytes()) {
        judge(config::parse_bytes(&[PREFIX.as_bytes(), input].concat()));
    }
}

fn moved(location: &ErrorLocation) -> ErrorLocation {
    ErrorLocation { line: location.line + 2, ..location.clone() }
}
