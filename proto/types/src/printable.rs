//! Makes text that clients or file names chose safe to print in tables, messages and logs.

/// Stands for a character that is not shown.
const MARK: char = char::REPLACEMENT_CHARACTER;

/// Returns a text with a mark for each character that would move the cursor, colour the terminal, or reverse the text
/// that follows.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(shown).collect()
}

/// Like [`printable`], but returns at most `bytes_max` bytes.
#[must_use]
pub fn printable_within(text: &str, bytes_max: usize) -> String {
    let mut printable = String::with_capacity(text.len().min(bytes_max));
    for char in text.chars().map(shown) {
        if printable.len() + char.len_utf8() > bytes_max {
            break;
        }
        printable.push(char);
    }
    printable
}

fn shown(char: char) -> char {
    if is_printable(char) { char } else { MARK }
}

/// Whether a character is no control character, no line separator, not invisible, and does not set the direction of
/// text.
fn is_printable(char: char) -> bool {
    let is_format = matches!(char,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !char.is_control() && !is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_of_a_name_moves_the_cursor() {
        assert_eq!(
            printable("x\u{1b}[31mEVIL\nuid-9\r\u{9b}"),
            "x\u{fffd}[31mEVIL\u{fffd}uid-9\u{fffd}\u{fffd}"
        );
        assert_eq!(printable("a\u{202e}b\u{2028}c\u{200d}"), "a\u{fffd}b\u{fffd}c\u{fffd}");
        assert_eq!(printable("trainer #7, größer 🚀"), "trainer #7, größer 🚀");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(printable_within(&"ä".repeat(200), 256), "ä".repeat(128));
        assert_eq!(printable_within("äöü", 3), "ä");
        assert_eq!(printable_within("\n\n", 5), "\u{fffd}");
        assert_eq!(printable_within("", 5), "");
    }
}
