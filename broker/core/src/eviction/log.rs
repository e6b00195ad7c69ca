//! Logarithms of integers, alike on every machine.

/// The binary logarithm in 256ths, rounded down; 0 for 0.
pub(super) fn log2(number: u64) -> u64 {
    let Some(whole) = number.checked_ilog2() else { return 0 };
    // Between 1 and 2, with 31 bits behind the point. Each square shows one more bit of the logarithm.
    let mut rest =
        if whole > 31 { number >> whole.saturating_sub(31) } else { number << 31_u32.saturating_sub(whole) };
    let mut bits = u64::from(whole);
    for _ in 0..8 {
        rest = rest.saturating_mul(rest) >> 31;
        let bit = rest >> 32;
        rest >>= bit;
        bits = bits << 1 | bit;
    }
    bits
}

/// ln 2 as a fraction.
const LN_2: (u64, u64) = (710, 1024);

/// The natural logarithm in 256ths, rounded down.
pub(super) fn ln(number: u64) -> u64 {
    log2(number).saturating_mul(LN_2.0) / LN_2.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_exact_to_a_256th() {
        for (number, expected) in [(0, 0), (1, 0), (2, 256), (3, 405), (10, 850), (1 << 40, 40 * 256)] {
            assert_eq!(log2(number), expected, "{number}");
        }
        assert_eq!(log2(u64::MAX), 64 * 256 - 1);
        assert!((1..1000).all(|number| log2(number) <= log2(number + 1)));
        assert_eq!(ln(1 << 40), 7100);
    }
}
