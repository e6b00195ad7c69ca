//! Content that looks like nothing else, the same on the processor as in `kernels/suite.cu`.

/// One word of it.
fn word(seed: u64, index: u64) -> u64 {
    let z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// So many bytes of it; a multiple of 8.
pub(crate) fn bytes(seed: u64, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(size / 8 * 8).expect("it fits in memory")];
    write(seed, &mut bytes);
    bytes
}

/// The same where it is to lie; what is beyond the last whole word is left alone.
pub(crate) fn write(seed: u64, bytes: &mut [u8]) {
    let (words, _) = bytes.as_chunks_mut();
    for (place, index) in words.iter_mut().zip(0..) {
        *place = word(seed, index).to_le_bytes();
    }
}

/// The sum of it, in which each word counts by its place.
pub(crate) fn sum(seed: u64, size: u64) -> u64 {
    (0..size / 8).fold(0_u64, |sum, index| {
        sum.wrapping_add(word(seed, index).wrapping_mul(index.wrapping_mul(2).wrapping_add(1)))
    })
}

/// The same sum of what lies in memory; what is beyond the last whole word counts for nothing.
pub(crate) fn sum_of(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks();
    words.iter().zip(0_u64..).fold(0, |sum, (word, index)| {
        sum.wrapping_add(u64::from_le_bytes(*word).wrapping_mul(index.wrapping_mul(2).wrapping_add(1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_bytes_and_sees_an_exchange() {
        let mut content = bytes(7, 4096);
        assert_eq!(sum_of(&content), sum(7, 4096));
        let (first, second) = content.split_at_mut(2048);
        first[..8].swap_with_slice(&mut second[..8]);
        assert_ne!(sum_of(&content), sum(7, 4096));
        assert_ne!(bytes(8, 64), bytes(7, 64));
    }
}
