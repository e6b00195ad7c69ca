//! Another process: this program again, which imports, maps, reads and writes by orders from a socket.

mod child;
mod wire;

use std::{
    env, io,
    os::fd::OwnedFd,
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
};

use broker_driver::{
    Export,
    contract::{Access, Importer},
};
use vramd_types::{Bytes, DeviceIndex};

use self::wire::{Order, Verb};

const ROLE: &str = "VRAMD_TEST_IMPORTER";

/// Held while a process starts: until its exec it holds every descriptor of this one.
static STARTING: Mutex<()> = Mutex::new(());

pub(crate) fn wait_for_starts() {
    drop(STARTING.lock().unwrap_or_else(PoisonError::into_inner));
}

/// The entry of the started process. In the process that runs the tests it does nothing.
#[test]
fn process() {
    serves();
}

/// Whether this is the started process, which has then done all its work.
pub(crate) fn serves() -> bool {
    let started = env::var_os(ROLE).is_some();
    if started {
        child::serve();
    }
    started
}

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    socket: UnixStream,
}

impl Process {
    pub(crate) fn start() -> Self {
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let (socket, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(env::current_exe().unwrap())
            .args(["importer::process", "--exact", "--nocapture"])
            .env(ROLE, "1")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, socket }
    }

    fn order(&self, verb: Verb, offset: u64, length: usize, payload: &[u8]) -> (bool, Vec<u8>) {
        let order = Order { verb, offset, length: length as u64 };
        wire::send(&self.socket, order, None, payload).unwrap();
        wire::answer(&self.socket).unwrap()
    }

    fn must(&self, verb: Verb) {
        assert!(self.order(verb, 0, 0, &[]).0, "{verb:?}");
    }
}

impl Importer for Process {
    fn import(&mut self, export: &Export, _device: DeviceIndex, size: Bytes) {
        let order = Order { verb: Verb::Import, offset: 0, length: size.get() };
        wire::send(&self.socket, order, Some(export.fd().unwrap()), &[]).unwrap();
        assert!(wire::answer(&self.socket).unwrap().0);
    }

    fn map(&mut self, access: Access) {
        self.must(match access {
            Access::ReadOnly => Verb::MapReadOnly,
            Access::ReadWrite => Verb::MapReadWrite,
        });
    }

    fn close(&mut self) {
        self.must(Verb::Close);
    }

    fn unmap(&mut self) {
        self.must(Verb::Unmap);
    }

    fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        let (_, bytes) = self.order(Verb::Read, offset, length, &[]);
        assert_eq!(bytes.len(), length);
        bytes
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> bool {
        self.order(Verb::Write, offset, bytes.len(), bytes).0
    }

    fn kill(&mut self) {
        self.end().unwrap();
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn allocate(&mut self, _size: Bytes) -> bool {
        unreachable!("memory of a simulated device is the driver's own")
    }
}

impl Process {
    fn end(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have been killed before.
        let _ = self.end();
    }
}
