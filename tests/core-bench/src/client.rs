//! A client of the shell, with a session of its own.

use broker_core::{
    AllocationSpec, CallId, ChannelId, ClientFrame, ClientRequest, Event, Hello, Kind, Lifetime,
    OperatorRequest, Peer, Reply, Target, Tier,
};
use vramd_types::{AllocationId, Bytes, SessionId};

use crate::shell::{Shell, UUIDS};

const UID: u32 = 1000;

#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub channel: ChannelId,
    session: SessionId,
    pid: u32,
}

impl Client {
    /// Opens a session with pins.
    pub fn open(shell: &mut Shell, tenant: u32) -> Self {
        let (pid, channel) = (tenant + 1, ChannelId(u64::from(tenant + 1)));
        let hello = Hello {
            tenant: format!("team-{tenant}"),
            pid,
            uid: UID,
            client_name: "python3 train.py".to_owned(),
            devices: None,
            unmapped_sessions: Vec::new(),
            pins: true,
            managed_orders: false,
            pressure: false,
        };
        shell.send(Event::Hello { channel, hello });
        shell.send(Event::Frame { channel, frame: ClientFrame::WordsMapped });
        shell.drain();
        let (_, session) = shell.welcomes.pop().expect("it is welcome");
        Self { channel, session, pid }
    }

    pub fn allocate(self, shell: &mut Shell, call: CallId, spec: AllocationSpec) -> AllocationId {
        self.request(shell, call, ClientRequest::allocate(vec![spec]));
        match shell.replies.pop() {
            Some((_, Ok(Reply::Allocated(views)))) => views[0].id,
            other => panic!("no allocation: {other:?}"),
        }
    }

    /// Makes a request. Its answer is in `replies` of the shell, unless it waits.
    pub fn request(self, shell: &mut Shell, call: CallId, request: ClientRequest) {
        let peer = Peer { pid: self.pid, uid: UID };
        shell.send(Event::Client { call, session: self.session, peer, key: None, request });
        shell.drain();
    }
}

/// Movable memory on the first device.
pub fn spec(size: Bytes, part_size: Bytes) -> AllocationSpec {
    AllocationSpec {
        size,
        device: Some(UUIDS[0].to_owned()),
        kind: Kind::Movable,
        lifetime: Lifetime::Session,
        name: None,
        readers: Vec::new(),
        part_size: Some(part_size),
        replace: false,
        uninitialized: false,
        unpinned: false,
        discardable: false,
    }
}

/// An operator moves the memory to the host. Its answer is in `replies` of the shell.
pub fn evict(shell: &mut Shell, call: CallId, allocation: AllocationId) {
    let request =
        OperatorRequest::MoveParts { target: Target::Id(allocation), parts: Vec::new(), tier: Tier::Host };
    shell.send(Event::Operator { call, uid: 0, key: None, request });
    while shell.replies.is_empty() {
        shell.drain();
        shell.advance(1);
    }
}
