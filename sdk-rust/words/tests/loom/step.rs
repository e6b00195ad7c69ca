//! Steps of the words executed by the model, for forms that need another ordering, or another path, than the views
//! have.

use std::sync::atomic::Ordering;

use vramd_words::{AtomicU64, Word};

/// A step whose ordering another step relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Pin,
    Unpin,
    SetMapped,
    BeginUnmap,
    BeginWriteBack,
}

/// Applies `step` as one atomic change with exactly this ordering, the load before it included.
pub(crate) fn take<E>(
    word: &AtomicU64,
    order: Ordering,
    step: impl Fn(Word) -> Result<Word, E>,
) -> Result<Word, E> {
    let look = if matches!(order, Ordering::Acquire | Ordering::AcqRel) {
        Ordering::Acquire
    } else {
        Ordering::Relaxed
    };
    let mut old = Word::from_raw(word.load(look));
    loop {
        let new = step(old)?;
        match word.compare_exchange(old.raw(), new.raw(), order, look) {
            Ok(_) => return Ok(new),
            Err(found) => old = Word::from_raw(found),
        }
    }
}
