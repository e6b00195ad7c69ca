//! Waits for the parent process: standard input ends when the parent closes it or ends.

use std::{io, path::Path};

use crate::output::failure::Failure;

pub(crate) fn wait_for_end() -> Result<(), Failure> {
    let drained = io::copy(&mut io::stdin().lock(), &mut io::sink());
    drained.map(drop).map_err(Failure::file(Path::new("standard input")))
}
