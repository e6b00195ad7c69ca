//! The names of kinds of files, for refusals of what is no regular file.

const TYPE_BITS: u32 = 0o170_000;

/// Names the kind of file that a mode (`st_mode`) has: daemon, SDKs and tools say the same of one file.
#[must_use]
pub const fn file_kind_name(mode: u32) -> &'static str {
    match mode & TYPE_BITS {
        0o100_000 => "a regular file",
        0o040_000 => "a directory",
        0o010_000 => "a pipe",
        0o140_000 => "a socket",
        0o020_000 | 0o060_000 => "a device",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt as _};

    use super::*;

    #[test]
    fn files_are_named_by_their_kind() {
        let name = |path: &str| file_kind_name(fs::metadata(path).map_or(0, |found| found.mode()));
        assert_eq!(name("/proc/self/exe"), "a regular file");
        assert_eq!(name("/proc/self"), "a directory");
        assert_eq!(name("/dev/null"), "a device");
        assert_eq!((file_kind_name(0o010_644), file_kind_name(0o140_755)), ("a pipe", "a socket"));
        assert_eq!(file_kind_name(0), "something else");
    }
}
