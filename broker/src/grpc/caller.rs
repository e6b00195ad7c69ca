//! Who calls, by the kernel's word.
//!
//! The credentials are those of the process that connected, at that time: a process that hands its connection on
//! hands its identity on too.

use std::collections::BTreeSet;

use tokio::net::unix::UCred;
use tonic::{Request, Status, transport::server::UdsConnectInfo};

use super::status;

/// What the kernel shows for an id that has none in this user namespace.
const OVERFLOW_ID: u32 = 65534;

/// The process behind a client's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) pid: u32,
}

impl Caller {
    /// UNAUTHENTICATED where the caller lives in another pid or user namespace, so that its ids say nothing.
    pub(super) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let credentials = credentials(request)?;
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok());
        Self::new(pid, credentials.uid()).ok_or_else(status::unidentified)
    }

    fn new(pid: Option<u32>, uid: u32) -> Option<Self> {
        let pid = pid.filter(|pid| *pid != 0)?;
        is_known(uid).then_some(Self { pid })
    }
}

/// The user behind an operator's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operator {
    pub(super) uid: u32,
}

impl Operator {
    /// PERMISSION_DENIED where the caller is none.
    pub(super) fn of<T>(request: &Request<T>, operators: &BTreeSet<u32>) -> Result<Self, Status> {
        let uid = credentials(request)?.uid();
        if !is_known(uid) {
            return Err(status::unidentified());
        }
        if operators.contains(&uid) { Ok(Self { uid }) } else { Err(status::not_operator(uid)) }
    }
}

fn credentials<T>(request: &Request<T>) -> Result<UCred, Status> {
    let info = request.extensions().get::<UdsConnectInfo>();
    info.and_then(|info| info.peer_cred).ok_or_else(status::unidentified)
}

fn is_known(uid: u32) -> bool {
    uid != OVERFLOW_ID && uid != u32::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_say_nothing_name_nobody() {
        assert_eq!(Caller::new(Some(7), 1000), Some(Caller { pid: 7 }));
        assert_eq!(Caller::new(Some(7), 0), Some(Caller { pid: 7 }));
        for (pid, uid) in [(None, 1000), (Some(0), 1000), (Some(7), 65534), (Some(7), u32::MAX)] {
            assert_eq!(Caller::new(pid, uid), None, "{pid:?} {uid}");
        }
    }

    #[test]
    fn a_call_without_credentials_is_refused() {
        let status = Caller::of(&Request::new(())).unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unauthenticated);
    }
}
