//! Sizes as people type them. Protocol, configuration, command line and Python share this parser.
//!
//! `24GiB` and `24Gi` are binary, `24GB` is decimal, a bare integer is bytes, and `90%` is a share of a size given
//! elsewhere. A decimal fraction is accepted if the result is a whole number of bytes (`1.5GiB`). Everything else is
//! refused: signs, other units, second values.

use std::{fmt, str::FromStr};

use crate::Bytes;

/// A size, absolute or as a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    Bytes(Bytes),
    /// 0 to 100.
    Percent(u8),
}

impl Quantity {
    /// Returns the size in bytes; a share is one of `whole`.
    pub const fn of(self, whole: Bytes) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => whole.percent(percent),
        }
    }
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuantityError {
    Empty,
    /// The text does not begin with a number but with a sign, a letter or a bare dot.
    NotANumber(String),
    UnknownUnit(String),
    /// The fraction gives no whole number of bytes, or of percent.
    Fraction(String),
    /// The size is 2^64 bytes or more, or more than 100 %.
    TooLarge(String),
    /// A share is given where only bytes are allowed.
    ShareNotAllowed(String),
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a quantity like `24GiB` is missing"),
            Self::NotANumber(text) => write!(f, "`{text}` does not begin with a number, like `24GiB`"),
            Self::UnknownUnit(text) => write!(
                f,
                "`{text}` has an unknown unit: use B, KiB, MiB, GiB, TiB (or Ki, Mi, Gi, Ti), KB, MB, GB, TB, or %"
            ),
            Self::Fraction(text) => write!(f, "`{text}` is not a whole number of bytes"),
            Self::TooLarge(text) => write!(f, "`{text}` is too large"),
            Self::ShareNotAllowed(text) => {
                write!(f, "`{text}` is a share, which is not allowed here; give a number of bytes")
            }
        }
    }
}

impl std::error::Error for QuantityError {}

impl Quantity {
    /// Parses a size in bytes and refuses a share.
    pub fn parse_bytes(text: &str) -> Result<Bytes, QuantityError> {
        match text.parse()? {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Percent(_) => Err(QuantityError::ShareNotAllowed(text.to_owned())),
        }
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = |kind: fn(String) -> QuantityError| kind(text.to_owned());
        let trimmed = text.trim_matches(' ');
        if trimmed.is_empty() {
            return Err(QuantityError::Empty);
        }
        let unit_at = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(unit_at);
        let (whole, fraction) = number.split_once('.').map_or((number, None), |(w, f)| (w, Some(f)));
        if whole.is_empty() || fraction.is_some_and(|f| f.is_empty() || f.contains('.')) {
            return Err(error(QuantityError::NotANumber));
        }
        let unit = unit.trim_start_matches(' ');
        if unit == "%" {
            if fraction.is_some() {
                return Err(error(QuantityError::Fraction));
            }
            return match whole.parse() {
                Ok(percent @ 0..=100) => Ok(Self::Percent(percent)),
                _ => Err(error(QuantityError::TooLarge)),
            };
        }
        let factor = unit_factor(unit).ok_or_else(|| error(QuantityError::UnknownUnit))?;
        let whole: u128 = whole.parse().map_err(|_| error(QuantityError::TooLarge))?;
        let mut bytes = whole.checked_mul(factor).ok_or_else(|| error(QuantityError::TooLarge))?;
        if let Some(fraction) = fraction {
            bytes = bytes
                .checked_add(fraction_of(fraction, factor).ok_or_else(|| error(QuantityError::Fraction))?)
                .ok_or_else(|| error(QuantityError::TooLarge))?;
        }
        u64::try_from(bytes)
            .map(|bytes| Self::Bytes(Bytes::new(bytes)))
            .map_err(|_| error(QuantityError::TooLarge))
    }
}

/// Bytes of one unit.
fn unit_factor(unit: &str) -> Option<u128> {
    Some(match unit {
        "" | "B" => 1,
        "Ki" | "KiB" => 1 << 10,
        "Mi" | "MiB" => 1 << 20,
        "Gi" | "GiB" => 1 << 30,
        "Ti" | "TiB" => 1 << 40,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    })
}

/// Returns `0.fraction` of `factor`, if that is a whole number.
///
/// It goes from the last digit to the first, so that no power of ten is needed, however many digits there are. If the
/// whole fraction gives a whole number, so does each end of it, since the digits before that end give one too.
fn fraction_of(fraction: &str, factor: u128) -> Option<u128> {
    fraction.bytes().rev().try_fold(0, |end, digit| {
        let tenfold = end + u128::from(digit - b'0') * factor;
        tenfold.is_multiple_of(10).then_some(tenfold / 10)
    })
}

/// Formats so that it parses back: bytes as a bare integer or in the largest exact binary unit, shares with `%`.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Bytes(bytes) => {
                let bytes = bytes.get();
                for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
                    if bytes > 0 && bytes.is_multiple_of(1 << shift) {
                        return write!(f, "{}{unit}", bytes >> shift);
                    }
                }
                write!(f, "{bytes}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<u64, QuantityError> {
        Quantity::parse_bytes(text).map(Bytes::get)
    }

    #[test]
    fn quantities_are_parsed_as_people_type_them() {
        assert_eq!(bytes("24GiB"), Ok(24 << 30));
        assert_eq!(bytes("24Gi"), Ok(24 << 30));
        assert_eq!(bytes("24 GiB"), Ok(24 << 30));
        assert_eq!(bytes("24GB"), Ok(24_000_000_000));
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(bytes("0.1GB"), Ok(100_000_000));
        assert_eq!(bytes("7.00"), Ok(7));
        assert_eq!(bytes("0"), Ok(0));
        assert_eq!(bytes("18446744073709551615"), Ok(u64::MAX));
        assert_eq!("90%".parse(), Ok(Quantity::Percent(90)));
    }

    /// One byte of a unit has as many digits as the unit has powers of two.
    #[test]
    fn a_fraction_may_have_as_many_digits_as_it_needs() {
        assert_eq!(bytes("0.0000000000009094947017729282379150390625TiB"), Ok(1));
        assert_eq!(bytes("0.9999999999990905052982270717620849609375TiB"), Ok((1 << 40) - 1));
        assert_eq!(bytes("0.999999999068677425384521484375GiB"), Ok((1 << 30) - 1));
        assert_eq!(bytes(&format!("1.5{}GiB", "0".repeat(100))), Ok(3 << 29));
    }

    #[test]
    fn everything_else_is_refused() {
        use QuantityError as E;
        type Kind = fn(String) -> QuantityError;
        let cases: [(&str, Kind); 16] = [
            ("-1GiB", E::NotANumber),
            ("+1", E::NotANumber),
            (".5GiB", E::NotANumber),
            ("1.GiB", E::NotANumber),
            ("1.2.3", E::NotANumber),
            ("GiB", E::NotANumber),
            ("24gib", E::UnknownUnit),
            ("24G", E::UnknownUnit),
            ("1e9", E::UnknownUnit),
            ("1 GiB 2", E::UnknownUnit),
            ("1_000", E::UnknownUnit),
            ("0.3GiB", E::Fraction),
            ("0.5", E::Fraction),
            ("18446744073709551616", E::TooLarge),
            ("101%", E::TooLarge),
            ("50%", E::ShareNotAllowed),
        ];
        for (text, error) in cases {
            assert_eq!(bytes(text), Err(error(text.to_owned())), "{text}");
        }
        assert_eq!(bytes("  "), Err(E::Empty));
        assert_eq!("1.5%".parse::<Quantity>(), Err(E::Fraction("1.5%".to_owned())));
    }

    #[test]
    fn printed_form_parses_back() {
        for quantity in [
            Quantity::Bytes(Bytes::gib(24)),
            Quantity::Bytes(Bytes::new(1_000_000)),
            Quantity::Bytes(Bytes::ZERO),
            Quantity::Bytes(Bytes::MAX),
            Quantity::Percent(90),
        ] {
            assert_eq!(quantity.to_string().parse(), Ok(quantity));
        }
    }
}
