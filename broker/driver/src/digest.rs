//! BLAKE3 over pieces of memory, on several cores.

/// The bytes handed to the thread pool at once. All digests share the pool. Between two steps a small digest
/// gets its turn beside one of many gigabytes. A step is far above the 128 KiB from which several cores pay
/// off.
const STEP_BYTES: usize = 64 << 20;

/// A digest in progress.
#[derive(Debug, Default)]
pub(crate) struct Hasher(blake3::Hasher);

impl Hasher {
    pub(crate) fn add(&mut self, span: &[u8]) {
        for step in span.chunks(STEP_BYTES) {
            self.0.update_rayon(step);
        }
    }

    pub(crate) fn end(&self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest<'a>(spans: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
        let mut hasher = Hasher::default();
        spans.into_iter().for_each(|span| hasher.add(span));
        hasher.end()
    }

    #[test]
    fn spans_are_hashed_as_one_text() {
        let text: Vec<u8> = (0..STEP_BYTES + 12_345).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let whole: [u8; 32] = blake3::hash(&text).into();
        assert_eq!(digest([text.as_slice()]), whole);
        let (head, tail) = text.split_at(1_000_001);
        assert_eq!(digest([head, &[], tail]), whole);
        assert_ne!(digest([tail, head]), whole);
    }

    #[test]
    fn nothing_has_the_known_digest_of_nothing() {
        let hex = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(blake3::Hash::from(digest([])).to_hex().as_str(), hex);
    }
}
