//! The cost of a process switch: 64 bytes there and back over a Unix socket, between two blocking threads.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::bare::end_with_input;

const BYTES: usize = 64;

/// Sends back the bytes of one connection until it, or the input, ends.
pub(crate) fn serve(socket: &Path) -> Result<()> {
    end_with_input();
    let (mut stream, _) = UnixListener::bind(socket)?.accept()?;
    let mut bytes = [0; BYTES];
    loop {
        match stream.read_exact(&mut bytes) {
            Ok(()) => stream.write_all(&bytes)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pinger(UnixStream);

impl Pinger {
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        Ok(Self(UnixStream::connect(socket)?))
    }

    pub(crate) fn time(&mut self, rounds: usize) -> Result<Vec<Duration>> {
        let mut bytes = [7; BYTES];
        let round = |_| {
            let started = Instant::now();
            self.0.write_all(&bytes)?;
            self.0.read_exact(&mut bytes)?;
            Ok(started.elapsed())
        };
        (0..rounds).map(round).collect()
    }
}
