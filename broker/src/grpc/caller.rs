//! Identifies the caller of a gRPC call by the kernel's credentials.
//!
//! The credentials are those of the process that connected, at that time. A process that passes its connection on
//! passes its identity on too, but only while it lives. After its end its pid may name another process. So each
//! connection keeps a pidfd of the process that made it, and a call counts only while that process lives.

use std::{collections::BTreeSet, io, os::fd::BorrowedFd, sync::Arc};

use broker_core as core;
use tonic::{Request, Status};
use vramd_types::SessionId;

use super::{intake::Held, status};
use crate::platform::{
    credentials,
    peer::{Peer, Unidentified},
};

/// The process that made a connection, as it was at the accept. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Origin(Arc<Connector>);

#[derive(Debug)]
enum Connector {
    Known(Peer),
    /// The process had ended before the accept; another process has its connection.
    Gone(core::Peer),
    /// The process is in another pid or user namespace, so its ids identify no process or user here.
    Unknown,
}

impl Origin {
    /// Asks the kernel. It fails if the process has no descriptor left, or if this is no socket.
    pub(super) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let made = match Peer::of(socket) {
            Ok(peer) => Connector::Known(peer),
            Err(Unidentified::Ended) => {
                let credentials = credentials::of_peer(socket)?;
                let pid = u32::try_from(credentials.pid).unwrap_or_default();
                Connector::Gone(core::Peer { pid, uid: credentials.uid })
            }
            Err(Unidentified::Unknown(error))
                if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) =>
            {
                return Err(error);
            }
            Err(Unidentified::Unknown(_) | Unidentified::ForeignPid | Unidentified::OverflowUid(_)) => {
                Connector::Unknown
            }
        };
        Ok(Self(Arc::new(made)))
    }

    /// Returns the uid, if it identifies a user.
    pub(super) fn uid(&self) -> Option<u32> {
        match &*self.0 {
            Connector::Known(peer) => Some(peer.uid),
            Connector::Gone(peer) => Some(peer.uid),
            Connector::Unknown => None,
        }
    }

    /// Returns the process and whether it lives.
    fn process(&self) -> Result<(core::Peer, bool), Status> {
        match &*self.0 {
            Connector::Known(peer) => Ok((core::Peer { pid: peer.pid, uid: peer.uid }, !peer.has_ended())),
            Connector::Gone(peer) => Ok((*peer, false)),
            Connector::Unknown => Err(status::unidentified()),
        }
    }
}

/// The process behind a client's call.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    origin: Origin,
    held: Option<Held>,
}

impl Caller {
    /// Identifies the caller, or refuses the call with UNAUTHENTICATED.
    pub(super) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let origin = origin(request)?;
        origin.process()?;
        Ok(Self { origin, held: request.extensions().get().cloned() })
    }

    /// Returns the charges of the request, which last until the core has answered it.
    pub(super) fn held(&self) -> Option<Held> {
        self.held.clone()
    }

    /// Passes the process to a closure that asks the kernel more about it.
    pub(super) fn with_peer<T>(&self, read: impl FnOnce(&Peer) -> T) -> Option<T> {
        match &*self.origin.0 {
            Connector::Known(peer) => Some(read(peer)),
            Connector::Gone(_) | Connector::Unknown => None,
        }
    }

    /// Returns the process if it lives. A call after its end does not come from the session's process.
    pub(super) fn living(&self, session: SessionId) -> Result<core::Peer, Status> {
        match self.origin.process()? {
            (peer, true) => Ok(peer),
            (_, false) => Err(status::refused(&core::Refusal::SessionLost { session })),
        }
    }
}

/// The operator behind a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operator {
    pub(super) uid: u32,
}

impl Operator {
    /// Identifies the operator, or refuses the call with PERMISSION_DENIED. A process in a container is no operator: root
    /// there may be anyone's, and has the uid of root here. One of which the kernel does not say that counts as such.
    pub(super) fn of<T>(request: &Request<T>, operators: &BTreeSet<u32>) -> Result<Self, Status> {
        let origin = origin(request)?;
        let is_in_container = match &*origin.0 {
            Connector::Known(peer) if operators.contains(&peer.uid) => peer.is_in_container().unwrap_or(true),
            _ => false,
        };
        // Asked after that: what `/proc` showed was about the process that lives now.
        match origin.process()? {
            (peer, true) if is_in_container => Err(status::operator_in_container(peer.uid)),
            (peer, true) if operators.contains(&peer.uid) => Ok(Self { uid: peer.uid }),
            (peer, _) => Err(status::not_operator(peer.uid)),
        }
    }
}

fn origin<T>(request: &Request<T>) -> Result<Origin, Status> {
    request.extensions().get::<Origin>().cloned().ok_or_else(status::unidentified)
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd, unix::net::UnixStream};

    use super::*;

    fn request(origin: Origin) -> Request<()> {
        let mut request = Request::new(());
        request.extensions_mut().insert(origin);
        request
    }

    #[test]
    fn this_process_is_known_and_lives() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let request = request(Origin::of(ours.as_fd()).unwrap());
        let uid = rustix::process::getuid().as_raw();
        let peer = Caller::of(&request).unwrap().living(SessionId::from_shown(1)).unwrap();
        assert_eq!(peer, core::Peer { pid: std::process::id(), uid });
        assert_eq!(Operator::of(&request, &BTreeSet::from([uid])).unwrap(), Operator { uid });
    }

    #[test]
    fn a_process_that_is_gone_has_no_session_and_is_no_operator() {
        let gone = Connector::Gone(core::Peer { pid: 7, uid: 0 });
        let request = request(Origin(Arc::new(gone)));
        let lost = Caller::of(&request).unwrap().living(SessionId::from_shown(1)).unwrap_err();
        assert_eq!(lost.code(), tonic::Code::FailedPrecondition);
        let denied = Operator::of(&request, &BTreeSet::from([0])).unwrap_err();
        assert_eq!(denied.code(), tonic::Code::PermissionDenied);
    }

    #[test]
    fn a_call_without_credentials_is_refused() {
        for request in [Request::new(()), request(Origin(Arc::new(Connector::Unknown)))] {
            let status = Caller::of(&request).unwrap_err();
            assert_eq!(status.code(), tonic::Code::Unauthenticated);
            assert_eq!(Operator::of(&request, &BTreeSet::from([0])).unwrap_err().code(), status.code());
        }
    }
}
