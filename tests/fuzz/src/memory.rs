//! Bounds the memory that reading takes. The reader pays for it, so it must be bounded by what the sender
//! sent.

/// Memory that does not depend on the input: texts of refusals, first allocations of collections.
const BASE_BYTES: u64 = 8 * 1024;

/// Runs `read` and checks that it never held more than `per_byte` bytes for each byte of input, on this thread.
pub(crate) fn bounded<T>(input: &[u8], per_byte: u64, read: impl FnOnce() -> T) -> T {
    let mut result = None;
    let taken = allocation_counter::measure(|| result = Some(read())).bytes_max;
    let input_bytes = u64::try_from(input.len()).expect("an input is shorter than 2^64 bytes");
    let allowed = BASE_BYTES + per_byte * input_bytes;
    assert!(taken <= allowed, "reading {input_bytes} bytes took {taken}, and {allowed} is the maximum");
    result.expect("`measure` runs what it measures")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_within_the_bound_passes() {
        assert_eq!(bounded(&[0; 1024], 2, || vec![1_u8; 2048].len()), 2048);
    }

    #[test]
    #[should_panic(expected = "and 10240 is the maximum")]
    fn reading_above_the_bound_fails() {
        bounded(&[0; 1024], 2, || vec![1_u8; 20_000].len());
    }
}
