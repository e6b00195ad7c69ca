//! Another process with a context of its own: this program again, which follows orders from a socket.

use std::{
    env, io,
    io::Read,
    os::fd::{AsFd, OwnedFd},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use broker_driver::{
    Export,
    contract::{Access, Importer},
    cuda::peer::{Imported, Mapped, Own, Peer},
};
use vramd_types::{Bytes, DeviceIndex};

use crate::wire::{self, Order, Verb};

const ROLE: &str = "VRAMD_CONTRACT_IMPORTER";
const LIBRARY: &str = "VRAMD_CONTRACT_LIBRARY";

/// The role of this process, if it is an importer: the devices of the suite, as CUDA numbers them.
pub(crate) fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Serves until the suite ends or kills the process.
pub(crate) fn serve(role: &str) {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().expect("standard input is open"));
    let library = env::var_os(LIBRARY).map(PathBuf::from);
    let ordinals = role.split(',').map(|number| number.parse().expect("the number of a device")).collect();
    let mut held = Held { library, ordinals, ..Held::default() };
    while let Some((order, fd)) = wire::receive(&socket).expect("the suite speaks as this program does") {
        let (done, bytes) = held.obey(order, fd, &socket);
        wire::send_answer(&socket, done, &bytes).expect("the suite listens");
    }
}

enum Import {
    Descriptor { fd: Option<OwnedFd>, size: Bytes },
    File { fd: Option<OwnedFd>, size: Bytes },
    Export([u8; 64]),
}

#[derive(Default)]
struct Held {
    library: Option<PathBuf>,
    ordinals: Vec<usize>,
    /// Dropped in this order: before the context.
    import: Option<Import>,
    mapped: Option<Mapped>,
    own: Vec<Own>,
    /// With a context on the first requested device.
    peer: Option<Peer>,
}

impl Held {
    fn open(&mut self, device: u64) {
        let ordinal = self.ordinals[usize::try_from(device).expect("the number of a device")];
        let peer = || Peer::open(self.library.as_deref(), ordinal).unwrap_or_else(|why| panic!("{why}"));
        self.peer.get_or_insert_with(peer);
    }

    fn peer(&self) -> &Peer {
        self.peer.as_ref().expect("it has imported or taken memory before")
    }

    fn obey(&mut self, order: Order, fd: Option<OwnedFd>, mut socket: &UnixStream) -> (bool, Vec<u8>) {
        let length = usize::try_from(order.length).expect("the length fits in memory");
        let done = match order.verb {
            Verb::Import | Verb::ImportFile => {
                let (there, size) = (fd.is_some(), Bytes::new(order.length));
                self.open(order.offset);
                self.import = Some(match order.verb {
                    Verb::ImportFile => Import::File { fd, size },
                    _ => Import::Descriptor { fd, size },
                });
                there
            }
            Verb::ImportBlock => {
                let mut export = [0; 64];
                socket.read_exact(&mut export).expect("the handle follows");
                self.open(order.offset);
                self.import = Some(Import::Export(export));
                true
            }
            Verb::MapReadOnly => self.map(false),
            Verb::MapReadWrite => self.map(true),
            // A legacy handle is only text: there is nothing to close.
            Verb::Close => match &mut self.import {
                Some(Import::Descriptor { fd, .. } | Import::File { fd, .. }) => fd.take().is_some(),
                Some(Import::Export(_)) => true,
                None => false,
            },
            Verb::Unmap => self.mapped.take().is_some(),
            Verb::Allocate => {
                self.open(order.offset);
                let own = self.peer().allocate(Bytes::new(order.length));
                own.map(|own| self.own.push(own)).is_ok()
            }
            Verb::Read => {
                let mut bytes = vec![0; length];
                let read = self.peer().read(self.at(), order.offset, &mut bytes);
                return (report("read", read), bytes);
            }
            Verb::Write => {
                let mut bytes = vec![0; length];
                socket.read_exact(&mut bytes).expect("the bytes follow");
                matches!(self.peer().write(self.at(), order.offset, &bytes), Ok(true))
            }
        };
        (done, Vec::new())
    }

    fn map(&mut self, writable: bool) -> bool {
        let mapped = match &self.import {
            None => return false,
            Some(Import::Export(export)) => self.peer().open_block(export),
            Some(Import::Descriptor { fd: None, .. } | Import::File { fd: None, .. }) => return false,
            Some(Import::File { fd: Some(fd), size }) => {
                let mapped = self.peer().map_file(fd.as_fd(), *size, writable);
                self.mapped = mapped.map_err(|error| eprintln!("importer: map: {error}")).ok();
                return self.mapped.is_some();
            }
            Some(Import::Descriptor { fd: Some(fd), size }) => {
                let imported: Result<Imported, _> = self.peer().import(fd.as_fd(), *size);
                imported.and_then(|imported| self.peer().map(&imported, writable))
            }
        };
        match mapped {
            Ok(mapped) => {
                self.mapped = Some(mapped);
                true
            }
            Err(error) => report("map", Err(error)),
        }
    }

    fn at(&self) -> &Mapped {
        self.mapped.as_ref().expect("it is mapped before it is touched")
    }
}

fn report(what: &str, result: Result<(), impl std::fmt::Display>) -> bool {
    if let Err(error) = &result {
        eprintln!("importer: {what}: {error}");
    }
    result.is_ok()
}

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    socket: UnixStream,
}

impl Process {
    /// The importer makes its context on the device of its first import.
    pub(crate) fn start(library: Option<&Path>, ordinals: &[usize]) -> Self {
        let (socket, theirs) = UnixStream::pair().expect("a pair of sockets can be made");
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        let ordinals: Vec<String> = ordinals.iter().map(ToString::to_string).collect();
        command.env(ROLE, ordinals.join(",")).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        if let Some(library) = library {
            command.env(LIBRARY, library);
        }
        Self { child: command.spawn().expect("this program can be started again"), socket }
    }

    fn order(&self, verb: Verb, offset: u64, length: u64, payload: &[u8]) -> (bool, Vec<u8>) {
        wire::send(&self.socket, Order { verb, offset, length }, None, payload)
            .expect("the importer listens");
        wire::answer(&self.socket).expect("the importer answers")
    }

    fn must(&self, verb: Verb) {
        assert!(self.order(verb, 0, 0, &[]).0, "{verb:?}");
    }

    fn end(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Importer for Process {
    fn import(&mut self, export: &Export, device: DeviceIndex, size: Bytes) {
        let device = u64::from(device.0);
        let done = match export {
            Export::CudaIpc(export) => self.order(Verb::ImportBlock, device, size.get(), export).0,
            Export::VmmFd(_) | Export::Memfd(_) => {
                let is_file = matches!(export, Export::Memfd(_));
                let verb = if is_file { Verb::ImportFile } else { Verb::Import };
                let order = Order { verb, offset: device, length: size.get() };
                wire::send(&self.socket, order, export.fd(), &[]).expect("the importer listens");
                wire::answer(&self.socket).expect("the importer answers").0
            }
        };
        assert!(done, "import");
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
        let (done, bytes) = self.order(Verb::Read, offset, length as u64, &[]);
        assert!(done && bytes.len() == length, "read {length} bytes at {offset}");
        bytes
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> bool {
        self.order(Verb::Write, offset, bytes.len() as u64, bytes).0
    }

    fn kill(&mut self) {
        self.end().expect("it can be killed");
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn allocate(&mut self, size: Bytes) -> bool {
        self.order(Verb::Allocate, 0, size.get(), &[]).0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have been killed before.
        let _ = self.end();
    }
}
