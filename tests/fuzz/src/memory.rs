//! How much memory reading may take. What comes from a stranger is paid for by the reader, so it is bounded by what
//! the stranger sent.

/// For what does not depend on the input: texts of refusals, first allocations of collections.
const BASE_BYTES: u64 = 8 * 1024;

/// Runs `read` and checks that it never held more than `per_byte` bytes for each byte of input, on this thread.
pub(crate) fn bounded<T>(input: &[u8], per_byte: u64, read: impl FnOnce() -> T) -> T {
    let mut result = None;
    let taken = allocation_counter::measure(|| result = Some(read())).bytes_max;
    let input_bytes = u64::try_from(input.len()).expect("an input is shorter than 2^64 bytes");
    let allowed = BASE_BYTES + per_byte * input_bytes;
    assert!(taken <= allowed, "{taken} bytes to read {input_bytes}, and {allowed} is the most");
    result.expect("`measure` runs what it measures")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_within_the_bound_passes() {
        assert_eq!(bounded(&[0; 1024], 2, || vec![1_u8; 2048].len()), 2048);
    }

    #[test]
    #[should_panic(expected = "and 10240 is the most")]
    fn what_is_above_it_does_not() {
        bounded(&[0; 1024], 2, || vec![1_u8; 20_000].len());
    }
}
