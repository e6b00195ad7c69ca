//! Writes `docs/reference/configuration.md` from `deploy/config/vramd.toml`, the example with every key and its comment.
//!
//! `cargo run -p vramd-tests --bin config-md` writes the page; with `--check` it only compares and exits 1 on a difference.
//! Tests of the daemon hold the example against the code: it names every key, and its values are the defaults.

use std::{fmt::Write as _, fs, process::ExitCode};

use anyhow::Context as _;
use dev_kit::{Page, repository};

const EXAMPLE: &str = "deploy/config/vramd.toml";

const HEAD: &str = "\
# Configuration

<!-- Generated from deploy/config/vramd.toml by `make config-md`. Do not edit. -->

For operators: every key of the configuration file, except keys that only tests use
([simulated-driver.md](../testing/simulated-driver.md)). `vramd --config FILE --check` reports what is wrong in a file, with
line and field. A value in parentheses is an example: the key has no fixed default, and its text says what applies without it.
";

fn main() -> anyhow::Result<ExitCode> {
    page()?.write_or_check()
}

fn page() -> anyhow::Result<Page> {
    let path = repository().join(EXAMPLE);
    let example = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(Page { name: "reference/configuration.md", tool: "config-md", text: text(&example) })
}

/// A line of the example.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Blank,
    /// Text of a comment.
    Comment(&'a str),
    /// `[table]` or `[[table]]`, with its brackets. `set` is false where it is commented out.
    Table {
        name: &'a str,
        set: bool,
    },
    /// `key = value`. `set` is false where it is commented out: then the value is an example.
    Key {
        name: &'a str,
        value: &'a str,
        set: bool,
    },
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        let (rest, set) = match line.strip_prefix('#') {
            Some(rest) => (rest.trim(), false),
            None => (line, true),
        };
        if rest.is_empty() {
            return Self::Blank;
        }
        if rest.starts_with('[') && rest.ends_with(']') {
            return Self::Table { name: rest, set };
        }
        let is_key =
            |key: &str| key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        match rest.split_once(" = ") {
            Some((name, value)) if is_key(name) => Self::Key { name, value, set },
            _ => Self::Comment(rest),
        }
    }
}

/// One table of the page for each table of the example. A comment belongs to the table or key below it, and only if no blank line is
/// between them; a comment that belongs to neither is a paragraph.
fn text(example: &str) -> String {
    let mut page = String::from(HEAD);
    let mut comment: Vec<&str> = Vec::new();
    let mut in_table = false;
    for line in example.lines().chain([""]).map(Line::parse) {
        match line {
            Line::Comment(text) => comment.push(text),
            Line::Blank => {
                if !comment.is_empty() {
                    paragraph(&mut page, &std::mem::take(&mut comment).join(" "));
                    in_table = false;
                }
            }
            Line::Table { name, set } => {
                let optional = if set { "" } else { " (optional)" };
                writeln!(page, "\n## `{name}`{optional}").expect("a String takes all that is written");
                if !comment.is_empty() {
                    paragraph(&mut page, &std::mem::take(&mut comment).join(" "));
                }
                in_table = false;
            }
            Line::Key { name, value, set } => {
                if !in_table {
                    page += "\n| Key | Default | Meaning |\n|---|---|---|\n";
                    in_table = true;
                }
                let value = if set { format!("`{value}`") } else { format!("(`{value}`)") };
                let meaning = std::mem::take(&mut comment).join(" ").replace('|', "\\|");
                writeln!(page, "| `{name}` | {value} | {meaning} |")
                    .expect("a String takes all that is written");
            }
        }
    }
    page
}

/// Appends a paragraph, wrapped at 120 columns.
fn paragraph(page: &mut String, text: &str) {
    page.push('\n');
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > 120 {
            page.push('\n');
            width = 0;
        }
        if width > 0 {
            page.push(' ');
            width += 1;
        }
        page.push_str(word);
        width += length;
    }
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_page_is_current() {
        page().expect("the example can be read").assert_current();
    }

    #[test]
    fn comment_belongs_to_the_key_below_it() {
        let page = text(
            "[daemon]\n# Where. Default: here.\n# Change it never.\n# dir = \"/x\"\n# How many.\nn = 3\n",
        );
        assert!(page.contains("\n## `[daemon]`\n"), "{page}");
        assert!(page.contains("| `dir` | (`\"/x\"`) | Where. Default: here. Change it never. |"), "{page}");
        assert!(page.contains("| `n` | `3` | How many. |"), "{page}");
    }

    #[test]
    fn comment_before_a_blank_line_is_a_paragraph() {
        let page = text("# About all of it.\n\n# About the table.\n[memory]\nx = 1\n");
        assert!(page.contains("\nAbout all of it.\n"), "{page}");
        assert!(page.contains("## `[memory]`\n\nAbout the table.\n\n| Key"), "{page}");
    }

    #[test]
    fn sentence_with_an_equals_sign_is_a_comment() {
        assert_eq!(Line::parse("# With x = 1 it waits."), Line::Comment("With x = 1 it waits."));
        assert_eq!(Line::parse("# uid = 1000"), Line::Key { name: "uid", value: "1000", set: false });
        assert_eq!(Line::parse("# [[tenants]]"), Line::Table { name: "[[tenants]]", set: false });
    }
}
