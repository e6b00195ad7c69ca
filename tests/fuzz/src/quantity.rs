//! Sizes as people type them. The parser accepts exactly what the oracle accepts, with its value. A printed
//! size reads the same again. A larger number of the same unit is larger.

mod oracle;

use vramd_types::{Bytes, Quantity, QuantityError};

use crate::Verdict;

pub(crate) fn check(input: &[u8]) -> Verdict {
    let text = String::from_utf8_lossy(input);
    let parsed: Result<Quantity, QuantityError> = text.parse();
    assert_eq!(parsed.clone().ok(), oracle::quantity(&text), "{text:?} is {parsed:?}");
    let bytes = Quantity::parse_bytes(&text);
    match &parsed {
        Ok(quantity @ Quantity::Percent(_)) => {
            assert_eq!(bytes, Err(QuantityError::ShareNotAllowed(text.to_string())));
            same_when_printed(*quantity);
            let of_all = quantity.of(Bytes::MAX);
            assert!(quantity.of(Bytes::gib(1)) <= of_all, "{quantity} of more is less");
        }
        Ok(quantity @ Quantity::Bytes(value)) => {
            assert_eq!(bytes, Ok(*value));
            same_when_printed(*quantity);
            grows(&text, *value);
        }
        Err(error) => {
            assert_eq!(bytes, Err(error.clone()));
            // The error repeats the text, so that a person finds it.
            let named = *error == QuantityError::Empty || error.to_string().contains(&*text);
            assert!(named, "{error} does not name {text:?}");
        }
    }
    Verdict::of(&parsed)
}

fn same_when_printed(quantity: Quantity) {
    let printed = quantity.to_string();
    assert_eq!(printed.parse(), Ok(quantity), "printed as {printed}");
    assert_eq!(oracle::quantity(&printed), Some(quantity), "printed as {printed}");
}

/// Checks that one more whole unit, without the fraction, is more, or too large.
fn grows(text: &str, value: Bytes) {
    let text = text.trim_matches(' ');
    let whole: String = text.chars().take_while(char::is_ascii_digit).collect();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let Some(more) = whole.parse::<u64>().ok().and_then(|whole| whole.checked_add(1)) else { return };
    let text = format!("{more}{unit}");
    match Quantity::parse_bytes(&text) {
        Ok(larger) => assert!(larger > value, "{text} is {larger}, not above {value}"),
        Err(error) => assert_eq!(error, QuantityError::TooLarge(text)),
    }
}
