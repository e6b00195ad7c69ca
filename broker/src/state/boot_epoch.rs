//! Counts the daemon's starts on this node. The count forms the high bits of every id, so that no id is used twice.

use std::path::Path;

use super::{StateError, atomic_file};

const NAME: &str = "boot_epoch";

pub(super) fn next(dir: &Path) -> Result<u64, StateError> {
    let path = dir.join(NAME);
    let failed = |source| StateError::Io { path: path.clone(), source };
    let damaged = |problem: &str| StateError::Damaged { path: path.clone(), problem: problem.to_owned() };
    let last: u64 = match atomic_file::read(dir, NAME).map_err(failed)? {
        None => 0,
        Some(text) => text.trim().parse().map_err(|_| damaged("not a number"))?,
    };
    let next = last.checked_add(1).ok_or_else(|| damaged("too large"))?;
    atomic_file::replace(dir, NAME, format!("{next}\n").as_bytes()).map_err(failed)?;
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_up_and_never_guesses() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(next(dir.path()).unwrap(), 1);
        assert_eq!(next(dir.path()).unwrap(), 2);
        std::fs::write(dir.path().join(NAME), "what").unwrap();
        assert!(matches!(next(dir.path()), Err(StateError::Damaged { .. })));
        std::fs::write(dir.path().join(NAME), u64::MAX.to_string()).unwrap();
        assert!(matches!(next(dir.path()), Err(StateError::Damaged { .. })));
    }
}
