//! The rule of quantities, written a second time: from the unit backwards, and in unbounded integers.

use num_bigint::BigUint;
use vramd_types::{Bytes, Quantity};

/// Longer units come before those that they end with.
const UNITS: [(&str, u32, u32); 14] = [
    ("KiB", 2, 10),
    ("MiB", 2, 20),
    ("GiB", 2, 30),
    ("TiB", 2, 40),
    ("Ki", 2, 10),
    ("Mi", 2, 20),
    ("Gi", 2, 30),
    ("Ti", 2, 40),
    ("KB", 10, 3),
    ("kB", 10, 3),
    ("MB", 10, 6),
    ("GB", 10, 9),
    ("TB", 10, 12),
    ("B", 10, 0),
];

pub(super) fn quantity(text: &str) -> Option<Quantity> {
    let text = text.trim_start_matches(' ').trim_end_matches(' ');
    if let Some(number) = text.strip_suffix('%') {
        let percent = digits(number.trim_end_matches(' '))?;
        return u8::try_from(percent).ok().filter(|percent| *percent <= 100).map(Quantity::Percent);
    }
    let united = UNITS.iter().find_map(|(unit, base, power)| Some((text.strip_suffix(unit)?, *base, *power)));
    let (number, base, power) = united.unwrap_or((text, 10, 0));
    let number = number.trim_end_matches(' ');
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let places = u32::try_from(fraction.len()).ok()?;
    let scale = BigUint::from(10_u8).pow(places);
    let scaled = (digits(whole)? * &scale + digits(fraction)?) * BigUint::from(base).pow(power);
    let is_whole = &scaled % &scale == BigUint::ZERO;
    let bytes = u64::try_from(scaled / scale).ok()?;
    is_whole.then_some(Quantity::Bytes(Bytes::new(bytes)))
}

/// Parses digits only, and at least one.
fn digits(text: &str) -> Option<BigUint> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| BigUint::parse_bytes(text.as_bytes(), 10)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oracle_follows_the_rule() {
        let bytes = |bytes| Some(Quantity::Bytes(Bytes::new(bytes)));
        assert_eq!(quantity(" 1.5 GiB "), bytes(3 << 29));
        assert_eq!(quantity("0.1GB"), bytes(100_000_000));
        assert_eq!(quantity("18446744073709551615B"), bytes(u64::MAX));
        assert_eq!(quantity("0.0000000000009094947017729282379150390625TiB"), bytes(1));
        assert_eq!(quantity("90 %"), Some(Quantity::Percent(90)));
        for bad in ["", "B", "1.", ".5", "1.5", "0.3GiB", "101%", "1.5%", "18446744073709551616", "+1", "1 2"]
        {
            assert_eq!(quantity(bad), None, "{bad}");
        }
    }
}
