//! The configuration file, of any bytes.
//!
//! An accepted file lies within its documented bounds and can be used, and the same tables, printed by
//! another library, are accepted as the same. A refusal names a place in the text and its field, which move
//! with the text.

mod bounds;
mod fields;

use vramd::config::{self, Place};

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
        (Err(place), Ok(text)) => {
            lies_in(place, text);
            if let Some(tables) = tables(text) {
                fields::check(place, &tables, text);
            }
            moves(input, |again| assert_eq!(again.as_ref(), Err(&moved(place))));
        }
        (Err(place), Err(error)) => {
            assert_eq!(place.field, "");
            lies_in(place, &String::from_utf8_lossy(&input[..error.valid_up_to()]));
            moves(input, |again| assert_eq!(again.as_ref(), Err(&moved(place))));
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

fn lies_in(place: &Place, text: &str) {
    let line = text.split('\n').nth(place.line - 1);
    let line = line.unwrap_or_else(|| panic!("{place}: the text has no such line"));
    assert!((1..=line.chars().count() + 1).contains(&place.column), "{place}: {line:?} has no such column");
    assert!(!place.problem.is_empty() && !place.problem.contains('\n'), "{place}");
}

/// Reads the text again, two lines further down. A byte order mark must stay where it is.
fn moves(input: &[u8], judge: impl FnOnce(Result<config::Config, Place>)) {
    if !input.starts_with("\u{feff}".as_bytes()) {
        judge(config::parse_bytes(&[PREFIX.as_bytes(), input].concat()));
    }
}

fn moved(place: &Place) -> Place {
    Place { line: place.line + 2, ..place.clone() }
}
