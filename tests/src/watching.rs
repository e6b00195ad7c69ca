//! A watch of the node's events, as an operator's program has it.

use tokio::time::timeout;
use tonic::{Status, Streaming};
use vramd_proto::v1::{WatchRequest, WatchResponse, watch_response::Event};

use crate::{
    refusal::Refused,
    rpc::{Admin, runtime},
    wait::PATIENCE,
};

/// A watch that reads only when it is asked to.
#[derive(Debug)]
pub struct Watching {
    stream: Streaming<WatchResponse>,
    /// The first message.
    pub begun: WatchResponse,
}

impl Watching {
    /// Starts a watch, and returns once the daemon has begun it: all later events are in it.
    pub fn start(admin: &Admin, request: WatchRequest) -> Result<Self, Refused> {
        let mut stream = admin.watch(request).wait().map_err(|status| Refused::from_status(&status))?;
        let begun = message(&mut stream).expect("a watch begins").expect("with a message");
        assert!(matches!(begun.event, Some(Event::Begun(_))), "{begun:?}");
        Ok(Self { stream, begun })
    }

    /// Watches every event.
    #[track_caller]
    pub fn all(admin: &Admin) -> Self {
        Self::start(admin, WatchRequest::default()).expect("one may watch")
    }

    /// The next event.
    #[track_caller]
    pub fn read(&mut self) -> WatchResponse {
        self.message().expect("the watch goes on").expect("the watch has not ended")
    }

    /// Reads on to the first event that matches, and returns all events up to it.
    #[track_caller]
    pub fn until(&mut self, is_it: impl Fn(&Event) -> bool) -> Vec<WatchResponse> {
        let mut seen = Vec::new();
        loop {
            seen.push(self.read());
            if seen.last().and_then(|last| last.event.as_ref()).is_some_and(&is_it) {
                return seen;
            }
        }
    }

    /// The next message, or the end of the watch.
    #[track_caller]
    pub fn message(&mut self) -> Result<Option<WatchResponse>, Status> {
        message(&mut self.stream)
    }
}

#[track_caller]
fn message(stream: &mut Streaming<WatchResponse>) -> Result<Option<WatchResponse>, Status> {
    let message = runtime().block_on(async { timeout(PATIENCE, stream.message()).await });
    message.expect("something happens in time")
}
