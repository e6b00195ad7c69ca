//! Waiting for whoever started this process: its standard input ends when they do.

use std::{io, path::Path};

use crate::output::failure::Failure;

pub(crate) fn until_input_ends() -> Result<(), Failure> {
    let drained = io::copy(&mut io::stdin().lock(), &mut io::sink());
    drained.map(drop).map_err(Failure::file(Path::new("standard input")))
}
