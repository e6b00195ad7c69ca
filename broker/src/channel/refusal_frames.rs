//! Encodes `Refused` frames: those of the core, and those of the shell before the core knows a channel.

use broker_core::Refusal;
use prost::Message;
use vramd_proto::{channel as protocol, v1};
use vramd_types::Reason;

use super::OutFrame;
use crate::platform::descriptor_shares::TooFewDescriptors;

/// Why the shell itself refuses a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HelloRefusal {
    /// The kernel does not identify the process.
    Unidentified { problem: String },
    /// Too many connections have not said hello yet.
    TooMany { limit: usize },
    /// Too few of the daemon's descriptors are left for another session of the user.
    FewDescriptors(TooFewDescriptors),
    /// The client speaks another major version of the protocol.
    Version { client_major: u32 },
    /// The first packet is no valid hello, or comes from another process than the one that connected.
    Broken { problem: String },
}

impl HelloRefusal {
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::Unidentified { .. } => Reason::PeerUnidentified,
            Self::TooMany { .. } => Reason::QueueFull,
            Self::FewDescriptors(_) => Reason::OpenFilesLimit,
            Self::Version { .. } => Reason::ProtocolVersion,
            Self::Broken { .. } => Reason::ProtocolBroken,
        }
    }

    pub(super) fn frame(&self) -> OutFrame {
        let refused = match self {
            Self::Unidentified { problem } => shell(Reason::PeerUnidentified, problem.clone(), vec![]),
            Self::TooMany { limit } => of_core(&Refusal::QueueFull { limit: *limit }),
            Self::FewDescriptors(TooFewDescriptors { limit }) => shell(
                Reason::OpenFilesLimit,
                format!(
                    "the daemon may have {limit} open files, and too few are left for another session of this user. \
                     Close sessions, or ask an operator to raise the daemon's limit of open files (LimitNOFILE)"
                ),
                vec![("limit_count", limit.to_string())],
            ),
            Self::Version { client_major } => shell(
                Reason::ProtocolVersion,
                format!(
                    "the daemon speaks major version {} of the protocol, the client {client_major}",
                    protocol::PROTOCOL_MAJOR
                ),
                vec![
                    ("daemon_major", protocol::PROTOCOL_MAJOR.to_string()),
                    ("client_major", client_major.to_string()),
                ],
            ),
            Self::Broken { problem } => of_core(&Refusal::ProtocolBroken { problem: problem.clone() }),
        };
        let frame = v1::DaemonFrame { frame: Some(v1::daemon_frame::Frame::Refused(refused)) };
        OutFrame { bytes: frame.encode_to_vec(), exports: vec![], note_of: None }
    }
}

/// Converts a refusal of the core, with the contents of a gRPC status.
pub(super) fn of_core(refusal: &Refusal) -> v1::Refused {
    shell(refusal.reason(), refusal.to_string(), refusal.facts())
}

fn shell(reason: Reason, message: String, facts: Vec<(&'static str, String)>) -> v1::Refused {
    v1::Refused {
        code: reason.code() as i32,
        reason: reason.name().to_owned(),
        message,
        metadata: facts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_the_facts_of_its_reason() {
        let cases = [
            (HelloRefusal::Unidentified { problem: "pid 0".into() }, Reason::PeerUnidentified, 16),
            (HelloRefusal::TooMany { limit: 4 }, Reason::QueueFull, 8),
            (HelloRefusal::FewDescriptors(TooFewDescriptors { limit: 128 }), Reason::OpenFilesLimit, 8),
            (HelloRefusal::Version { client_major: 9 }, Reason::ProtocolVersion, 9),
            (HelloRefusal::Broken { problem: "no hello".into() }, Reason::ProtocolBroken, 9),
        ];
        for (refusal, reason, code) in cases {
            let frame = v1::DaemonFrame::decode(&refusal.frame().bytes[..]).unwrap();
            let Some(v1::daemon_frame::Frame::Refused(refused)) = frame.frame else { panic!("{refusal:?}") };
            assert_eq!((refused.code, refused.reason.as_str()), (code, reason.name()));
            let mut keys: Vec<_> = refused.metadata.keys().map(String::as_str).collect();
            let mut expected = reason.facts().to_vec();
            keys.sort_unstable();
            expected.sort_unstable();
            assert_eq!(keys, expected, "{reason}");
        }
    }
}
