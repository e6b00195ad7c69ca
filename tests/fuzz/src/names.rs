//! Ids, names and cgroup patterns. Each parser accepts exactly what its rule, written a second time, accepts. A printed
//! value reads the same again. A pattern matches the paths that a matcher by definition matches.
//!
//! The first line of an input is parsed as each of them; the rest is a path to match.

use std::{fmt::Display, str::FromStr};

use vramd::platform::cgroup::Pattern;
use vramd_types::{AllocationId, ExtentId, SessionId, name};

use crate::Verdict;

/// The matcher by definition takes time exponential in the number of stars.
const STARS_MAX: usize = 4;
const TEXT_BYTES_MAX: usize = 48;

pub(crate) fn check(input: &[u8]) -> Verdict {
    let text = String::from_utf8_lossy(input);
    let (text, path) = text.split_once('\n').unwrap_or((&text, ""));
    let id = [
        id::<AllocationId>(text, "a-", AllocationId::get),
        id::<SessionId>(text, "s-", SessionId::get),
        id::<ExtentId>(text, "e-", ExtentId::get),
    ];
    let name = name(text);
    let pattern = pattern(text, path);
    if name || pattern || id.contains(&true) { Verdict::Accepted } else { Verdict::Refused }
}

fn id<I: FromStr + Display + PartialEq>(text: &str, prefix: &str, get: fn(I) -> u64) -> bool {
    let digits = text.strip_prefix(prefix).unwrap_or(text);
    let significant = digits.trim_start_matches('0');
    let fits = significant.len() < 20 || (significant.len() == 20 && significant <= "18446744073709551615");
    let is_id = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) && fits;
    let parsed: Option<I> = text.parse().ok();
    assert_eq!(parsed.is_some(), is_id, "{text:?} as an id like {prefix}1");
    if let Some(id) = parsed {
        let printed = id.to_string();
        assert!(printed.parse().is_ok_and(|again: I| again == id), "{printed}");
        let number = if significant.is_empty() { "0" } else { significant };
        assert_eq!(printed, format!("{prefix}{number}"));
        assert_eq!(get(id).to_string(), number);
    }
    is_id
}

/// Whether a tenant or an allocation may have this name, by the letter of the rule.
pub(crate) fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|first| matches!(first, 'a'..='z' | 'A'..='Z' | '0'..='9'))
        && chars.all(|char| matches!(char, 'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-'))
        && (1..=128).contains(&text.len())
}

fn name(text: &str) -> bool {
    assert_eq!(name::is_valid(text), is_name(text), "{text:?}");
    let halves: Vec<_> = text.split('/').collect();
    let expected = match halves[..] {
        [name] if is_name(name) => Some(("me", name)),
        [tenant, name] if is_name(tenant) && is_name(name) => Some((tenant, name)),
        _ => None,
    };
    assert_eq!(name::resolve(text, "me"), expected, "{text:?}");
    expected.is_some()
}

fn pattern(text: &str, path: &str) -> bool {
    let parsed: Option<Pattern> = text.parse().ok();
    let begins = text.starts_with('/') || text.starts_with("**");
    assert_eq!(parsed.is_some(), begins && !text.contains("***"), "{text:?}");
    let Some(pattern) = parsed else { return false };
    assert_eq!(pattern.to_string(), text);
    let fits = pattern.matches(path);
    let stars = text.matches('*').count();
    if stars <= STARS_MAX && text.len() <= TEXT_BYTES_MAX && path.len() <= TEXT_BYTES_MAX {
        assert_eq!(fits, by_definition(text.as_bytes(), path.as_bytes()), "{text:?} and {path:?}");
    }
    // Without a star a pattern matches only itself.
    assert!(stars > 0 || fits == (text == path), "{text:?} and {path:?}");
    true
}

fn by_definition(pattern: &[u8], path: &[u8]) -> bool {
    let splits = || (0..=path.len()).map(|at| path.split_at(at));
    match pattern {
        [] => path.is_empty(),
        [b'*', b'*', rest @ ..] => splits().any(|(_, after)| by_definition(rest, after)),
        [b'*', rest @ ..] => splits().any(|(run, after)| !run.contains(&b'/') && by_definition(rest, after)),
        [first, rest @ ..] => path.strip_prefix(&[*first]).is_some_and(|after| by_definition(rest, after)),
    }
}
