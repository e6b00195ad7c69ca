//! Counts the daemon's starts on this node. The count forms the high bits of every id, so that no id is used twice.

use std::{
    io,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use vramd_types::BOOT_EPOCH_MAX;

use super::{StateError, atomic_file};

pub(super) const NAME: &str = "boot_epoch";
/// How far a reset count is ahead of its last known number.
const RESET_STEP: u64 = 1000;
/// Seconds from 1970 to 2020. A reset without any known number counts on from the minutes since then: no daemon starts
/// once a minute for years.
const SECONDS_TO_2020: u64 = 1_577_836_800;

/// Counts this start. With `reset` a damaged count is set aside, and a number is taken that no earlier start can have had.
pub(super) fn next(dir: &Path, has_quotas: bool, reset: bool) -> Result<u64, StateError> {
    let next = match last(dir, has_quotas) {
        Ok(last) => last + 1,
        Err(StateError::Damaged { path, problem, .. }) if reset => {
            atomic_file::set_aside(dir, NAME)
                .map_err(|source| StateError::Io { path: path.clone(), source })?;
            let next = safe(dir);
            tracing::warn!(path = %path.display(), problem, boot_epoch = next, "state reset: the count of starts goes on from a safe number");
            next
        }
        Err(error) => return Err(error),
    };
    store(dir, next).map_err(|source| StateError::Io { path: dir.join(NAME), source })?;
    Ok(next)
}

/// Returns the number of starts so far.
pub(super) fn last(dir: &Path, has_quotas: bool) -> Result<u64, StateError> {
    let path = dir.join(NAME);
    let damaged = |problem: String| StateError::Damaged {
        path: path.clone(),
        problem,
        remedy: format!(
            "Do not remove it, since ids would be used twice. Start once with --reset-state, which counts on from a safe number, or write a number into it that is larger than every earlier one, of at most {}",
            BOOT_EPOCH_MAX - 1
        ),
    };
    let failed = |source| StateError::Io { path: path.clone(), source };
    match atomic_file::read(dir, NAME) {
        Ok(Some(text)) => parse(&text).map_err(damaged),
        Ok(None) if has_quotas || known(dir).is_some() => {
            Err(damaged("the file is missing, though a daemon has started here before".to_owned()))
        }
        Ok(None) => Ok(0),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(damaged("not a number".to_owned())),
        Err(error) => Err(failed(error)),
    }
}

fn parse(text: &str) -> Result<u64, String> {
    let last: u64 = text.trim().parse().map_err(|_| "not a number".to_owned())?;
    if last < BOOT_EPOCH_MAX {
        Ok(last)
    } else {
        Err(format!("{last} starts are too many: ids would repeat"))
    }
}

/// The number in the copy of the file.
fn known(dir: &Path) -> Option<u64> {
    parse(&atomic_file::read(dir, &atomic_file::old(NAME)).ok()??).ok()
}

/// A number that no earlier start can have had. The copy is one start behind at most.
fn safe(dir: &Path) -> u64 {
    let minutes = || {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since_1970.as_secs().saturating_sub(SECONDS_TO_2020) / 60
    };
    known(dir).unwrap_or_else(minutes).saturating_add(RESET_STEP).min(BOOT_EPOCH_MAX)
}

/// Writes the number. A full disk does not keep the daemon from its start: a number takes no more room than the one
/// before.
fn store(dir: &Path, epoch: u64) -> io::Result<()> {
    let content = format!("{epoch}\n");
    match atomic_file::replace(dir, NAME, content.as_bytes()) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
                && dir.join(NAME).exists() =>
        {
            tracing::warn!(path = %dir.display(), %error, "the state directory is full: quotas cannot be changed until it has room");
            atomic_file::overwrite(dir, NAME, content.as_bytes())
        }
        stored => stored,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn damaged(dir: &Path) -> String {
        match next(dir, false, false) {
            Err(error @ StateError::Damaged { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn counts_up_and_never_guesses() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(next(dir, false, false).unwrap(), 1);
        assert_eq!(next(dir, false, false).unwrap(), 2);
        for bad in ["what", "", "-1", &u64::MAX.to_string(), &BOOT_EPOCH_MAX.to_string()] {
            fs::write(dir.join(NAME), bad).unwrap();
            let said = damaged(dir);
            assert!(said.contains("Do not remove it"), "{said}");
        }
        fs::write(dir.join(NAME), b"\xff\xff").unwrap();
        damaged(dir);
        fs::remove_file(dir.join(NAME)).unwrap();
        assert!(damaged(dir).contains("missing"));
    }

    #[test]
    fn the_last_epoch_is_used_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NAME), (BOOT_EPOCH_MAX - 1).to_string()).unwrap();
        assert_eq!(next(dir.path(), false, false).unwrap(), BOOT_EPOCH_MAX);
        assert!(damaged(dir.path()).contains("too many"));
    }

    #[test]
    fn a_reset_counts_on_from_a_number_that_was_never_used() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for _ in 0..3 {
            next(dir, false, true).unwrap();
        }
        fs::write(dir.join(NAME), "3garbage").unwrap();
        assert_eq!(next(dir, false, true).unwrap(), 2 + RESET_STEP);
        assert_eq!(fs::read_to_string(dir.join("boot_epoch.damaged")).unwrap(), "3garbage");
        assert_eq!(next(dir, false, true).unwrap(), 3 + RESET_STEP, "nothing is damaged any longer");

        let empty = tempfile::tempdir().unwrap();
        assert!(
            matches!(next(empty.path(), true, false), Err(StateError::Damaged { .. })),
            "quotas are there"
        );
        let fresh = next(empty.path(), true, true).unwrap();
        assert!((1_000_000..BOOT_EPOCH_MAX).contains(&fresh), "{fresh}");
    }
}
