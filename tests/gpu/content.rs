//! Pseudo-random content from a seed, the same on the processor as in `kernels/suite.cu`.

/// The words of a line. [`sum_lines`] reads only some of the lines.
pub(crate) const LINE_WORDS: u64 = 512;

/// Returns one word of the content.
fn word(seed: u64, index: u64) -> u64 {
    let z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the first bytes of the content; their number is a multiple of 8.
pub(crate) fn bytes(seed: u64, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(size / 8 * 8).expect("it fits in memory")];
    write(seed, &mut bytes);
    bytes
}

/// Writes the content into memory. Bytes beyond the last whole word stay.
pub(crate) fn write(seed: u64, bytes: &mut [u8]) {
    let (words, _) = bytes.as_chunks_mut();
    for (place, index) in words.iter_mut().zip(0..) {
        *place = word(seed, index).to_le_bytes();
    }
}

/// Returns the content's sum, with each word weighted by its place.
pub(crate) fn sum(seed: u64, size: u64) -> u64 {
    (0..size / 8).fold(0, |sum, index| add(sum, index, word(seed, index)))
}

/// Returns the sum over every n-th line of 4 KiB, from the first on. Each word is weighted by its place among all words.
pub(crate) fn sum_lines(seed: u64, size: u64, every: u64) -> u64 {
    places(size, every).fold(0, |sum, index| add(sum, index, word(seed, index)))
}

/// Returns the sum of memory. Bytes beyond the last whole word do not count.
pub(crate) fn sum_of(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks();
    words.iter().zip(0..).fold(0, |sum, (word, index)| add(sum, index, u64::from_le_bytes(*word)))
}

/// Returns the sum of lines of memory, like [`sum_lines`].
pub(crate) fn sum_lines_of(bytes: &[u8], every: u64) -> u64 {
    let (words, _) = bytes.as_chunks();
    let of = |index: u64| usize::try_from(index).ok().and_then(|at| words.get(at));
    places(bytes.len() as u64, every)
        .fold(0, |sum, index| add(sum, index, of(index).map_or(0, |word| u64::from_le_bytes(*word))))
}

/// Returns the number of lines that are summed.
pub(crate) fn lines(size: u64, every: u64) -> u64 {
    size / 8 / LINE_WORDS / every
}

fn places(size: u64, every: u64) -> impl Iterator<Item = u64> {
    let firsts = (0..lines(size, every)).map(move |line| line * every * LINE_WORDS);
    firsts.flat_map(|first| first..first + LINE_WORDS)
}

fn add(sum: u64, index: u64, word: u64) -> u64 {
    sum.wrapping_add(word.wrapping_mul(index.wrapping_mul(2).wrapping_add(1)))
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

    #[test]
    fn the_sum_of_lines_is_that_of_some_and_of_all() {
        let size = 21 * LINE_WORDS * 8;
        let mut content = bytes(7, size);
        assert_eq!(lines(size, 10), 2);
        assert_eq!(sum_lines_of(&content, 1), sum(7, size));
        assert_eq!(sum_lines_of(&content, 10), sum_lines(7, size, 10));
        let second = usize::try_from(LINE_WORDS * 8).unwrap();
        content[second] ^= 1;
        assert_eq!(sum_lines_of(&content, 10), sum_lines(7, size, 10), "it is not among them");
        content[10 * second] ^= 1;
        assert_ne!(sum_lines_of(&content, 10), sum_lines(7, size, 10));
    }
}
