//! Forces illegal steps through the functions of the core that take all steps of their kind.
//!
//! The core never tries most of them, so no run would show whether it refuses them.

use broker_core::{
    AllocationSpec, Broker, CallId, ChannelId, ClientRequest, Command, Completion, Config, DeviceConfig,
    Event, Forced, Hello, Kind, Lifetime, Limits, Peer, StoredQuotas, Time, Transition,
};
use vramd_types::{Bytes, Quantity};

/// Forces the step in a broker of its own, which has one session and one allocation.
pub fn force(step: Transition) -> Forced {
    broker_with_one_of_each().force(step).expect("there is a session that was offered a part")
}

/// Whether the state stayed and the core reported the step.
pub fn is_refused(step: Transition) -> bool {
    force(step) == Forced { state_unchanged: true, reported: true }
}

fn broker_with_one_of_each() -> Broker {
    let (channel, peer) = (ChannelId(1), Peer { pid: 2, uid: 3 });
    let device = DeviceConfig {
        uuid: "GPU-0".to_owned(),
        name: "sim".to_owned(),
        total: Bytes::mib(64),
        share: Bytes::mib(64),
        host: Bytes::ZERO,
        disk: Bytes::ZERO,
        context_bytes: Bytes::ZERO,
        maps_host: true,
        makes_fixed: true,
    };
    let config = Config {
        boot_epoch: 1,
        devices: vec![device],
        part_size: Bytes::mib(2),
        default_limit: Quantity::Percent(100),
        default_host_limit: Quantity::Percent(100),
        default_disk_limit: Quantity::Percent(100),
        sessions_reserved: 0,
        eviction: broker_core::EvictionPolicy::default(),
        victim_script: Vec::new(),
        check_clean_backings: false,
        files: false,
        shares: vramd_types::Shares::default(),
        pressure: broker_core::PressureBounds::default(),
        tenants: std::collections::BTreeMap::new(),
        limits: Limits::default(),
    };
    let mut broker = Broker::new(config, StoredQuotas::default(), Time::START);
    let hello = Hello {
        tenant: "ada".to_owned(),
        pid: peer.pid,
        uid: peer.uid,
        client_name: String::new(),
        devices: None,
        unmapped_sessions: Vec::new(),
        pins: false,
        managed_orders: false,
        pressure: false,
    };
    broker.handle(Time::START, Event::Hello { channel, hello });
    let (sessions, _) = broker.list_sessions(None, None, 1);
    let spec = AllocationSpec {
        size: Bytes::mib(2),
        device: None,
        kind: Kind::Movable,
        lifetime: Lifetime::Session,
        name: None,
        readers: Vec::new(),
        part_size: None,
        replace: false,
        uninitialized: false,
        unpinned: false,
        discardable: false,
    };
    let request = ClientRequest::allocate(vec![spec]);
    for session in sessions {
        let (call, request) = (CallId(1), request.clone());
        broker.handle(Time::START, Event::Client { call, session: session.id, peer, key: None, request });
    }
    while let Some(command) = broker.poll_command() {
        if let Command::CreateExtent { extent, .. } = command {
            broker.handle(Time::START, Event::Completion(Completion::Created { extent, result: Ok(()) }));
        }
    }
    broker
}
