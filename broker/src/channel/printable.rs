//! Makes text that clients chose safe to print in tables and logs.

/// Stands for a character that is not shown.
const MARK: char = char::REPLACEMENT_CHARACTER;

/// Returns at most `bytes_max` bytes of a text, with a mark for each character that would move the cursor, colour the
/// terminal, or reverse the text that follows.
pub(super) fn printable(text: &str, bytes_max: usize) -> String {
    let mut printable = String::with_capacity(text.len().min(bytes_max));
    for char in text.chars() {
        let char = if is_printable(char) { char } else { MARK };
        if printable.len() + char.len_utf8() > bytes_max {
            break;
        }
        printable.push(char);
    }
    printable
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
            printable("x\u{1b}[31mEVIL\nuid-9\r\u{9b}", 128),
            "x\u{fffd}[31mEVIL\u{fffd}uid-9\u{fffd}\u{fffd}"
        );
        assert_eq!(printable("a\u{202e}b\u{2028}c\u{200d}", 128), "a\u{fffd}b\u{fffd}c\u{fffd}");
        assert_eq!(printable("trainer #7, größer 🚀", 128), "trainer #7, größer 🚀");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(printable(&"ä".repeat(200), 256), "ä".repeat(128));
        assert_eq!(printable("äöü", 3), "ä");
        assert_eq!(printable("\n\n", 5), "\u{fffd}");
        assert_eq!(printable("", 5), "");
    }
}
