//! Digests of traces: one line per seed, to show that a change of the core changed no decision.
//!
//! A trace is the debug form of every event and command, so a renamed field changes it. Each seed therefore has two digests: `exact`, of
//! the trace as it is, and `shape`, of the trace with every word replaced by one letter. Numbers, punctuation and order stay in the
//! shape, and so do quoted identifiers; quoted sentences are left out, since they are written for people. A change that only renames
//! keeps all shapes; a change that only moves code keeps all exact digests too.

use std::{fmt, hash::Hasher as _};

use twox_hash::XxHash3_64;

/// Digests of one trace, fed line by line.
#[derive(Clone)]
pub struct TraceDigest {
    exact: XxHash3_64,
    shape: XxHash3_64,
    line: String,
}

impl fmt::Debug for TraceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceDigest({self})")
    }
}

impl Default for TraceDigest {
    fn default() -> Self {
        Self { exact: XxHash3_64::with_seed(0), shape: XxHash3_64::with_seed(0), line: String::new() }
    }
}

impl TraceDigest {
    /// Adds one line of the trace.
    pub fn add(&mut self, line: &str) {
        self.exact.write(line.as_bytes());
        self.exact.write_u8(b'\n');
        self.line.clear();
        write_shape(line, &mut self.line);
        self.shape.write(self.line.as_bytes());
        self.shape.write_u8(b'\n');
    }
}

/// Both digests in hexadecimal, `exact` first.
impl fmt::Display for TraceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} {:016x}", self.exact.finish(), self.shape.finish())
    }
}

/// Appends the shape of `line` to `out`.
fn write_shape(line: &str, out: &mut String) {
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let taken = if first == '"' {
            let end = quoted_end(rest);
            let quoted = &rest[..end];
            out.push_str(if quoted.contains(' ') { "\"\"" } else { quoted });
            end
        } else if first.is_alphabetic() || first == '_' {
            out.push('w');
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else {
            out.push(first);
            first.len_utf8()
        };
        rest = &rest[taken..];
    }
}

/// The length of the quoted string at the start of `text`, both quotes included.
fn quoted_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(line: &str) -> String {
        let mut out = String::new();
        write_shape(line, &mut out);
        out
    }

    fn digests(lines: &[&str]) -> (String, String) {
        let mut digest = TraceDigest::default();
        lines.iter().for_each(|line| digest.add(line));
        let text = digest.to_string();
        let (exact, shape) = text.split_once(' ').expect("two digests");
        (exact.to_owned(), shape.to_owned())
    }

    #[test]
    fn shape_keeps_numbers_and_quoted_identifiers() {
        let line = r#"#3 ► Hello { channel: ChannelId(7), tenant: "team-a" }"#;
        assert_eq!(shape(line), r#"#3 ► w { w: w(7), w: "team-a" }"#);
    }

    #[test]
    fn shape_leaves_out_quoted_sentences() {
        assert_eq!(shape(r#"Failed("no \"room\" here", 3)"#), r#"w("", 3)"#);
    }

    #[test]
    fn renaming_changes_only_the_exact_digest() {
        let (before, after) = (digests(&["Moved { to: 3 }"]), digests(&["Arrived { at_tier: 3 }"]));
        assert_ne!(before.0, after.0);
        assert_eq!(before.1, after.1);
    }

    #[test]
    fn another_number_or_order_changes_both_digests() {
        let before = digests(&["Moved { to: 3 }", "Tick"]);
        for after in [digests(&["Moved { to: 4 }", "Tick"]), digests(&["Tick", "Moved { to: 3 }"])] {
            assert_ne!(before.0, after.0);
            assert_ne!(before.1, after.1);
        }
    }
}
