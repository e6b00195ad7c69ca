//! `vramctl put` and `vramctl verify`: commands that compare a file with the bytes of an allocation. They connect as a client.

mod checkpoint;
mod digest;
pub(crate) mod put;
mod stdin;
pub(crate) mod verify;

use std::{
    fs::{File, Metadata},
    io::{Error, ErrorKind},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use rustix::fs::OFlags;
use vramd_types::file_kind_name;

use crate::output::failure::Failure;

/// Opens a regular file for reading. Anything else is refused before it is opened, and once more afterwards: the path may
/// lead to another file by then. The open waits for nothing, as that of a pipe would wait for its writer.
fn open_regular(path: &Path) -> Result<File, Failure> {
    check_regular(&path.metadata().map_err(Failure::file(path))?).map_err(Failure::file(path))?;
    let without_wait = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(without_wait).open(path);
    let file = file.map_err(Failure::file(path))?;
    check_regular(&file.metadata().map_err(Failure::file(path))?).map_err(Failure::file(path))?;
    Ok(file)
}

fn check_regular(found: &Metadata) -> Result<(), Error> {
    if found.is_file() {
        return Ok(());
    }
    let problem = format!("it is not a regular file but {}", file_kind_name(found.mode()));
    Err(Error::new(ErrorKind::InvalidInput, problem))
}
