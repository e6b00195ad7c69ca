//! `vramctl watch`: what happens, one line an event.

pub(crate) mod event;

use std::ops::ControlFlow;

use clap::{Args, ValueEnum};
use vramd_client::{Error, admin::AdminClient};
use vramd_proto::v1::{self, node_event::Change, watch_response::Event};

use self::event::Told;
use crate::output::{Output, failure::Failure};

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Of this tenant alone, and what concerns no tenant.
    #[arg(long, default_value = "", hide_default_value = true)]
    tenant: String,
    /// Of this kind alone; may be given more than once [default: every kind].
    #[arg(long = "kind", value_enum)]
    kinds: Vec<Kind>,
    /// Ends after so many events.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Session,
    Quota,
    Refusal,
    Revoke,
    Allocation,
    Device,
    Node,
    Move,
    Pressure,
    Settings,
}

/// Runs until the daemon ends, which is a failure of its own, or nobody reads any more.
pub(crate) fn run(watch: Watch, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let request = v1::WatchRequest {
        tenant: watch.tenant,
        kinds: watch.kinds.iter().map(|kind| kind.wire().into()).collect(),
    };
    let mut left = watch.count;
    let mut why = "the daemon has ended".to_owned();
    for event in admin.watch(request)? {
        let event = event?;
        if output.line(&Told::of(&event))?.is_break() || is_last(&event, &mut left).is_break() {
            return Ok(());
        }
        if let Some(Event::Node(node)) = &event.event
            && node.change() == Change::Ending
        {
            why = format!("the daemon has ended: {}", event::plain(&node.detail));
        }
    }
    Err(Error::BrokerGone { problem: why }.into())
}

/// The beginning is no event that anybody counts.
fn is_last(event: &v1::WatchResponse, left: &mut Option<u64>) -> ControlFlow<()> {
    if matches!(event.event, Some(Event::Begun(_))) {
        return ControlFlow::Continue(());
    }
    *left = left.map(|left| left.saturating_sub(1));
    if *left == Some(0) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

impl Kind {
    fn wire(self) -> v1::EventKind {
        match self {
            Self::Session => v1::EventKind::Session,
            Self::Quota => v1::EventKind::Quota,
            Self::Refusal => v1::EventKind::Refusal,
            Self::Revoke => v1::EventKind::Revoke,
            Self::Allocation => v1::EventKind::Allocation,
            Self::Device => v1::EventKind::Device,
            Self::Node => v1::EventKind::Node,
            Self::Move => v1::EventKind::Move,
            Self::Pressure => v1::EventKind::Pressure,
            Self::Settings => v1::EventKind::Settings,
        }
    }
}
