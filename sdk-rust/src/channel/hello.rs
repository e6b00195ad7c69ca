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
    fork::Gate,
    pins::Words,
};

/// What a client says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Greeting {
    pub(crate) client_name: String,
    /// UUIDs; `None` takes any.
    pub(crate) devices: Option<Vec<String>>,
    /// Earlier sessions of this process that map nothing any more.
    pub(crate) unmapped_sessions: Vec<SessionId>,
    /// It pins what it uses, where the daemon knows how.
    pub(crate) pins: bool,
}

pub(crate) fn open(path: &Path, greeting: Greeting, deadline: Instant) -> Result<(Link, Welcome, Words)> {
    let gone = |error: Errno| Error::BrokerGone { problem: format!("{}: {error}", path.display()) };
    let socket = Socket::connect(path).map_err(gone)?;
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
        let problem = "the daemon does not speak standing mappings, the only ones this build knows";
        return Err(Error::refused(Reason::ProtocolBroken, &[("problem", &problem)]));
    }
    let words = match words {
        Some(words) => {
            // Before anything else is sent, and by nobody else: the daemon waits for it.
            socket.send(client_frame::Frame::WordsMapped(WordsMapped {})).map_err(gone)?;
            words
        }
        None => Words::own().map_err(|problem| Error::BrokerGone { problem })?,
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

/// The welcome, with the words that came with it.
fn answer(socket: &Socket, deadline: Instant) -> Result<(Welcome, Option<Words>)> {
    let gone = |problem: &str| Error::BrokerGone { problem: problem.to_owned() };
    loop {
        if !socket.wait_readable(Some(deadline)).map_err(|error| gone(&error.to_string()))? {
            return Err(Error::Deadline);
        }
        // No child is to inherit the words' descriptor.
        let _gate = Gate::hold();
        match socket.receive().map_err(|error| gone(&error.to_string()))? {
            None => {}
            Some(Received::Ended) => return Err(gone("the daemon ended the channel before it said welcome")),
            Some(Received::Unknown(problem)) => return Err(broken(&problem)),
            Some(Received::Packet(packet)) => {
                return match packet.frame {
                    daemon_frame::Frame::Welcome(welcome) => {
                        let words = words(&welcome, &packet.fds).map_err(|problem| broken(&problem))?;
                        Ok((welcome, words))
                    }
                    daemon_frame::Frame::Refused(refused) => Err(refused.into()),
                    _ => Err(broken("the daemon did not begin with welcome")),
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
        fds => Err(format!("{} descriptors came with the welcome, not that of a word table", fds.len())),
    }
}

fn broken(problem: &str) -> Error {
    Error::refused(Reason::ProtocolBroken, &[("problem", &problem)])
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, path::PathBuf, thread, time::Duration};

    use prost::Message as _;
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen,
        recv, send, socket_with,
    };
    use vramd_proto::v1::{ClientFrame, DaemonFrame, Refused};

    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("vramd-client-{name}-{}", std::process::id()))
    }

    fn greeting() -> Greeting {
        let unmapped_sessions = vec![SessionId::from_raw(9)];
        Greeting { client_name: "test".to_owned(), devices: None, unmapped_sessions, pins: true }
    }

    fn opened(name: &str, answer: Option<daemon_frame::Frame>) -> (Hello, Result<Welcome>) {
        let path = path(name);
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        let daemon = thread::spawn(move || {
            let client = accept(&listener).unwrap();
            let mut bytes = vec![0; 65536];
            let (count, _) = recv(&client, bytes.as_mut_slice(), RecvFlags::empty()).unwrap();
            if let Some(frame) = answer {
                let frame = DaemonFrame { frame: Some(frame) }.encode_to_vec();
                send(&client, &frame, SendFlags::empty()).unwrap();
            }
            ClientFrame::decode(&bytes[..count]).unwrap().frame.unwrap()
        });
        let outcome = open(&path, greeting(), Instant::now() + Duration::from_secs(20));
        std::fs::remove_file(&path).unwrap();
        let client_frame::Frame::Hello(hello) = daemon.join().unwrap() else { panic!("no hello") };
        (hello, outcome.map(|(_, welcome, _)| welcome))
    }

    #[test]
    fn says_who_it_is_and_is_welcome() {
        let welcome = Welcome { session_id: 7, features: FEATURES, ..Default::default() };
        let (hello, outcome) = opened("welcome", Some(daemon_frame::Frame::Welcome(welcome)));
        assert_eq!(outcome.unwrap().session_id, 7);
        assert_eq!((hello.protocol_major, hello.any_device), (PROTOCOL_MAJOR, true));
        assert_eq!(hello.unmapped_session_ids, [9]);
    }

    #[test]
    fn a_refusal_is_its_reason() {
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
    fn no_daemon_a_silent_one_and_one_that_speaks_otherwise() {
        let deadline = Instant::now() + Duration::from_secs(20);
        let nobody = open(&path("nobody"), greeting(), deadline).unwrap_err();
        assert_eq!(nobody.reason(), Some(Reason::BrokerGone));
        let (_, outcome) = opened("closes", None);
        assert_eq!(outcome.unwrap_err().reason(), Some(Reason::BrokerGone));
        let featureless = daemon_frame::Frame::Welcome(Welcome { session_id: 7, ..Default::default() });
        let (_, outcome) = opened("featureless", Some(featureless));
        assert_eq!(outcome.unwrap_err().reason(), Some(Reason::ProtocolBroken));
    }
}
