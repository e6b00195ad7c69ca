//! The opening of a session: `hello`, answered by `welcome` or a refusal.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    time::Instant,
};

use rustix::io::Errno;
use vramd_proto::{
    channel::{FEATURES, PROTOCOL_MAJOR, PROTOCOL_MINOR, feature_bit},
    v1::{Feature, Hello, Welcome, WordsMapped, client_frame, daemon_frame},
};
use vramd_types::{Reason, SessionId};

use super::{
    link::Link,
    socket::{Received, Socket},
};
use crate::{
    error::{Error, Result},
    interrupt::Interrupt,
    pins::Words,
    process::fork::Gate,
};

/// The contents of a hello.
#[derive(Clone, Debug)]
pub(crate) struct Greeting {
    pub(crate) client_name: String,
    /// UUIDs; `None` takes any.
    pub(crate) devices: Option<Vec<String>>,
    /// Earlier sessions of this process that map nothing any more.
    pub(crate) unmapped_sessions: Vec<SessionId>,
    /// Whether it supports pins, if the daemon does.
    pub(crate) pins: bool,
}

pub(crate) fn open(path: &Path, greeting: Greeting, deadline: Instant) -> Result<(Link, Welcome, Words)> {
    let gone = |error: Errno| Error::broker_gone(format!("{}: {error}", path.display()));
    let socket = Socket::connect(path, deadline).map_err(gone)?;
    fault_point!(Connected);
    let hello = client_frame::Frame::Hello(hello(greeting));
    // A daemon that refuses before it reads may have closed already; its refusal is still there to be read.
    let sent = socket.send(hello);
    fault_point!(HelloSent);
    let (welcome, words) = match answer(&socket, deadline) {
        Ok(answer) => answer,
        Err(error @ Error::BrokerGone { .. }) => return Err(sent.map_err(gone).err().unwrap_or(error)),
        Err(error) => return Err(error),
    };
    fault_point!(Welcomed);
    if welcome.features & feature_bit(Feature::StandingMappings) == 0 {
        let problem = "the daemon lacks the feature of standing mappings, which this build needs";
        return Err(Error::refused(Reason::ProtocolBroken, &[("problem", &problem)]));
    }
    let words = match words {
        Some(words) => {
            // Sent before anything else, by this thread alone: the daemon waits for it.
            socket.send(client_frame::Frame::WordsMapped(WordsMapped {})).map_err(gone)?;
            words
        }
        None => Words::own().map_err(Error::broker_gone)?,
    };
    Ok((Link::new(socket).map_err(gone)?, welcome, words))
}

fn hello(greeting: Greeting) -> Hello {
    let pins = feature_bit(Feature::Pins);
    Hello {
        protocol_major: PROTOCOL_MAJOR,
        protocol_minor: PROTOCOL_MINOR,
        features: if greeting.pins { FEATURES | pins } else { FEATURES & !pins },
        any_device: greeting.devices.is_none(),
        devices: greeting.devices.unwrap_or_default(),
        client_name: greeting.client_name,
        unmapped_session_ids: greeting.unmapped_sessions.into_iter().map(SessionId::get).collect(),
    }
}

/// Reads the welcome, with the word table that came with it.
fn answer(socket: &Socket, deadline: Instant) -> Result<(Welcome, Option<Words>)> {
    let gone = |problem: &str| Error::broker_gone(problem);
    let interrupt = Interrupt::of_thread();
    loop {
        let pause = interrupt.next_check(deadline);
        if !socket.wait_readable(Some(pause)).map_err(|error| gone(&error.to_string()))? {
            interrupt.check()?;
            if pause < deadline {
                continue;
            }
            return Err(Error::deadline());
        }
        // No child may inherit the descriptor of the word table.
        let _gate = Gate::hold();
        match socket.receive().map_err(|error| gone(&error.to_string()))? {
            None => {}
            Some(Received::Ended) => return Err(gone("the daemon ended the channel before its welcome")),
            Some(Received::Unknown(problem)) => return Err(broken(&problem)),
            Some(Received::Packet(packet)) => {
                return match packet.frame {
                    daemon_frame::Frame::Welcome(welcome) => {
                        let words = words(&welcome, &packet.fds).map_err(|problem| broken(&problem))?;
                        Ok((welcome, words))
                    }
                    daemon_frame::Frame::Refused(refused) => Err(refused.into()),
                    _ => Err(broken("the daemon's first frame is not a welcome")),
                };
            }
        }
    }
}

/// Maps the table that comes with the feature; its descriptor is closed with the packet.
fn words(welcome: &Welcome, fds: &[OwnedFd]) -> Result<Option<Words>, String> {
    match fds {
        _ if welcome.features & feature_bit(Feature::Pins) == 0 => Ok(None),
        [fd] => Words::shared(fd.as_fd(), welcome.slot_count).map(Some),
        fds => Err(format!("{} descriptors arrived with the welcome, not one of a word table", fds.len())),
    }
}

fn broken(problem: &str) -> Error {
    Error::refused(Reason::ProtocolBroken, &[("problem", &problem)])
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, io::IoSlice, mem::MaybeUninit, path::PathBuf, thread, time::Duration};

    use prost::Message as _;
    use rustix::{
        fs::{MemfdFlags, ftruncate, memfd_create},
        net::{
            AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
            SocketFlags, SocketType, accept, bind, listen, recv, sendmsg, socket_with,
        },
    };
    use vramd_proto::{
        channel::PINS,
        v1::{ClientFrame, DaemonFrame, Refused},
    };
    use vramd_words::{Daemon, Header, bytes_for};

    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("vramd-client-{name}-{}", std::process::id()))
    }

    fn greeting() -> Greeting {
        let unmapped_sessions = vec![SessionId::from_raw(9)];
        Greeting { client_name: "test".to_owned(), devices: None, unmapped_sessions, pins: true }
    }

    fn opened(name: &str, answer: Option<daemon_frame::Frame>) -> (Hello, Result<Welcome>) {
        let (frames, outcome) = opened_with(name, answer, None);
        let Some(client_frame::Frame::Hello(hello)) = frames.into_iter().next() else { panic!("no hello") };
        (hello, outcome)
    }

    /// Runs a fake daemon; returns the client's frames until it ends the channel, and the outcome of `open`.
    fn opened_with(
        name: &str,
        answer: Option<daemon_frame::Frame>,
        fd: Option<OwnedFd>,
    ) -> (Vec<client_frame::Frame>, Result<Welcome>) {
        let path = path(name);
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        let daemon = thread::spawn(move || {
            let client = accept(&listener).unwrap();
            let next = || {
                let mut bytes = vec![0; 65536];
                let (count, _) = recv(&client, bytes.as_mut_slice(), RecvFlags::empty()).unwrap();
                (count > 0).then(|| ClientFrame::decode(&bytes[..count]).unwrap().frame.unwrap())
            };
            let mut frames = vec![next().unwrap()];
            if let Some(frame) = answer {
                let frame = DaemonFrame { frame: Some(frame) }.encode_to_vec();
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
                assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
                sendmsg(&client, &[IoSlice::new(&frame)], &mut control, SendFlags::empty()).unwrap();
                frames.extend(std::iter::from_fn(next));
            }
            frames
        });
        let outcome = open(&path, greeting(), Instant::now() + Duration::from_secs(20));
        std::fs::remove_file(&path).unwrap();
        let outcome = outcome.map(|(link, welcome, _)| (link.end(), welcome).1);
        (daemon.join().unwrap(), outcome)
    }

    #[test]
    fn hello_names_the_client_and_is_welcomed() {
        let welcome = Welcome { session_id: 7, features: FEATURES & !PINS, ..Default::default() };
        let (hello, outcome) = opened("welcome", Some(daemon_frame::Frame::Welcome(welcome)));
        assert_eq!(outcome.unwrap().session_id, 7);
        assert_eq!((hello.protocol_major, hello.any_device), (PROTOCOL_MAJOR, true));
        assert_eq!(hello.unmapped_session_ids, [9]);
    }

    #[test]
    fn refused_hello_returns_the_reason() {
        let refused = Refused {
            code: Reason::ProtocolVersion.code() as i32,
            reason: Reason::ProtocolVersion.name().to_owned(),
            message: "other majors".to_owned(),
            metadata: HashMap::from([("daemon_major".to_owned(), "2".to_owned())]),
        };
        let (_, outcome) = opened("refused", Some(daemon_frame::Frame::Refused(refused)));
        let error = outcome.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::ProtocolVersion));
        assert_eq!(error.facts()["daemon_major"], "2");
    }

    #[test]
    fn hello_fails_without_a_compatible_daemon() {
        let deadline = Instant::now() + Duration::from_secs(20);
        let nobody = open(&path("nobody"), greeting(), deadline).unwrap_err();
        assert_eq!(nobody.reason(), Some(Reason::BrokerGone));
        let (_, outcome) = opened("closes", None);
        assert_eq!(outcome.unwrap_err().reason(), Some(Reason::BrokerGone));
        let featureless = daemon_frame::Frame::Welcome(Welcome { session_id: 7, ..Default::default() });
        let (_, outcome) = opened("featureless", Some(featureless));
        assert_eq!(outcome.unwrap_err().reason(), Some(Reason::ProtocolBroken));
    }

    /// Makes a word table with that many slots and that protocol major.
    fn table(slots: u32, major: u32) -> OwnedFd {
        let fd = memfd_create("vramd-words", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, bytes_for(slots)).unwrap();
        let memory = crate::pins::Memory::shared(fd.as_fd(), bytes_for(slots)).unwrap();
        Daemon::create(memory, Header { major, minor: 0, features: 0, slots }).unwrap();
        fd
    }

    fn pinning(slot_count: u32) -> Option<daemon_frame::Frame> {
        let features = FEATURES | feature_bit(Feature::Pins);
        Some(daemon_frame::Frame::Welcome(Welcome {
            session_id: 7,
            features,
            slot_count,
            ..Default::default()
        }))
    }

    #[test]
    fn word_table_is_mapped_and_reported_first() {
        let (frames, outcome) = opened_with("words", pinning(64), Some(table(64, PROTOCOL_MAJOR)));
        assert_eq!(outcome.unwrap().slot_count, 64);
        let [client_frame::Frame::Hello(hello), client_frame::Frame::WordsMapped(_)] = &frames[..] else {
            panic!("{frames:?}")
        };
        assert_ne!(hello.features & feature_bit(Feature::Pins), 0);
    }

    #[test]
    fn invalid_word_table_opens_no_session() {
        let roomy = table(63, PROTOCOL_MAJOR);
        ftruncate(&roomy, bytes_for(64)).unwrap();
        for (name, fd, problem) in [
            ("none", None, "0 descriptors arrived with the welcome"),
            ("short", Some(table(63, PROTOCOL_MAJOR)), "Invalid argument"),
            ("long", Some(table(65, PROTOCOL_MAJOR)), "claims 65 slots and has room for 64"),
            ("roomy", Some(roomy), "has 63 slots, not 64"),
            ("newer", Some(table(64, PROTOCOL_MAJOR + 1)), "the word table is of protocol 2"),
        ] {
            let (frames, outcome) = opened_with(name, pinning(64), fd);
            let error = outcome.unwrap_err();
            assert_eq!((error.reason(), frames.len()), (Some(Reason::ProtocolBroken), 1), "{name}");
            assert!(
                error.to_string().contains(problem) || error.facts()["problem"].contains(problem),
                "{error:?}"
            );
        }
    }
}
