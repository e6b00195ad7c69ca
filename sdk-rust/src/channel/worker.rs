//! The session's worker: the thread that reads the channel when no caller does.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
};

use super::{link::Link, reader};
use crate::mapping::Table;

/// Starts the worker. It ends with the channel.
pub(crate) fn spawn(link: Arc<Link>, table: Arc<Table>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("vramd-channel".to_owned()).spawn(move || {
        reader::serve(&link, &table);
    })
}
