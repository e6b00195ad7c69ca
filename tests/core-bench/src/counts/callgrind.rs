//! Reads what callgrind wrote.

use std::collections::BTreeMap;

/// Instructions of each function, with all that it calls, from a file without compressed names and positions.
///
/// A function is a line `fn=NAME` and lines of costs, `POSITION INSTRUCTIONS`. The line after `calls=` has the
/// instructions of a called function, with all that it calls.
pub(super) fn inclusive(text: &str) -> BTreeMap<&str, u64> {
    let (mut counts, mut function) = (BTreeMap::<&str, u64>::new(), None);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = Some(name);
        } else if line.starts_with(|first: char| first.is_ascii_digit())
            && let (Some(function), Some(count)) = (function, instructions(line))
        {
            *counts.entry(function).or_default() += count;
        }
    }
    counts
}

/// All instructions that were collected.
pub(super) fn total(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}

fn instructions(line: &str) -> Option<u64> {
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
events: Ir

fn=main
0 10
cfn=one
calls=2 0
0 300

fn=one
0 100
cfn=two
calls=4 0
0 200
0 5

fn=two
0 200

totals: 515
";

    #[test]
    fn a_function_has_the_instructions_of_what_it_calls() {
        let counts = inclusive(TEXT);
        assert_eq!(counts, BTreeMap::from([("main", 310), ("one", 305), ("two", 200)]));
        assert_eq!(total(TEXT), Some(515));
    }
}
