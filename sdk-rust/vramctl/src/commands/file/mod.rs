//! `vramctl put` and `vramctl verify`: commands that compare a file with the bytes of an allocation. They connect as a client.

mod digest;
pub(crate) mod put;
mod stdin;
pub(crate) mod verify;

use std::{
    fs::File,
    io::{Error, ErrorKind},
    os::unix::fs::FileTypeExt as _,
    path::Path,
};

use crate::output::failure::Failure;

/// Opens a regular file for reading. Anything else is refused before it is opened: a pipe would open only once another
/// process writes to it, and would then be waited for without end.
fn open_regular(path: &Path) -> Result<File, Failure> {
    let kind = path.metadata().map_err(Failure::file(path))?.file_type();
    if kind.is_file() {
        return File::open(path).map_err(Failure::file(path));
    }
    let kind = match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    let problem = format!("it is not a regular file but {kind}");
    Err(Failure::file(path)(Error::new(ErrorKind::InvalidInput, problem)))
}
