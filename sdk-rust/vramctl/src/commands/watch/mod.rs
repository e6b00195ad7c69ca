//! `vramctl watch`: prints events as they happen, one line each.

mod event;
mod turns;

use std::ops::ControlFlow;

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use vramd_client::{Error, Sentence, admin::AdminClient};
use vramd_proto::v1::{self, node_event::Change, watch_response::Event};

use self::event::EventReport;
use crate::output::{Output, failure::Failure, text::plain};

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Show events of this tenant alone, and those of no tenant.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    tenant: Option<String>,
    /// Show events of this kind alone. May be repeated [default: every kind].
    #[arg(long = "kind", value_enum)]
    kinds: Vec<Kind>,
    /// End after this many events.
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
    Prefetch,
    Tenant,
    Turn,
}

/// Prints events until `--count` is reached or the reader of standard output has gone. The end of the daemon is a failure.
pub(crate) fn run(watch: Watch, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let request = v1::WatchRequest {
        tenant: watch.tenant,
        kinds: watch.kinds.iter().map(|kind| kind.wire().into()).collect(),
    };
    let mut left = watch.count;
    let mut problem = "the daemon has ended".to_owned();
    for event in admin.watch(request)? {
        let event = event?;
        let report = EventReport::new(&event);
        if output.show_line(&report.line, report.fields)?.is_break()
            || count_event(&event, &mut left).is_break()
        {
            return Ok(());
        }
        if let Some(Event::Node(node)) = &event.event
            && node.change() == Change::Ending
        {
            problem = format!("the daemon has ended: {}", plain(&node.detail));
        }
    }
    Err(Error::BrokerGone { problem, said: Sentence::default() }.into())
}

/// Counts the event, and breaks after the last one. The beginning of the watch does not count.
fn count_event(event: &v1::WatchResponse, left: &mut Option<u64>) -> ControlFlow<()> {
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
            Self::Prefetch => v1::EventKind::Prefetch,
            Self::Tenant => v1::EventKind::Tenant,
            Self::Turn => v1::EventKind::Turn,
        }
    }
}
