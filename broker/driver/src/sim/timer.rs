//! Assigns submissions to threads, and delays those with a scheduled delay.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Instant,
};

use super::{
    copier::{self, Copy},
    digester::Digest,
    disk_mover::DiskEnd,
    fault::Fate,
    maker::{self, Make, PinAhead, Task},
    state::{State, send},
    surveyor::SurveyorOrder,
};
use crate::{
    DriverError, ExtentKind, LinkFacts, Submission,
    copies::{LaneEnds, Lanes},
    disk::{DiskOrder, DiskWork},
    location::Location,
};

/// The sending ends of the threads' queues, which are as long as the caller's outstanding submissions.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    /// The extents of a copy are found when it begins.
    pub(super) state: Arc<State>,
    pub(super) tasks: Sender<Task>,
    pub(super) surveys: Sender<SurveyorOrder>,
    pub(super) digests: Sender<Digest>,
    pub(super) file_digests: Sender<Digest>,
    pub(super) disk: Sender<DiskOrder>,
    pub(super) lanes: Lanes<copier::Work, DiskWork<DiskEnd>>,
}

/// The receiving ends.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) tasks: Receiver<Task>,
    pub(super) surveys: Receiver<SurveyorOrder>,
    pub(super) digests: Receiver<Digest>,
    pub(super) file_digests: Receiver<Digest>,
    pub(super) disk: Receiver<DiskOrder>,
    pub(super) lanes: LaneEnds<copier::Work, DiskWork<DiskEnd>>,
}

pub(super) fn routes(
    state: Arc<State>,
    devices: usize,
    has_disk: bool,
    links: &[LinkFacts],
) -> (Routes, Ends) {
    let (tasks, tasks_end) = channel();
    let (surveys, surveys_end) = channel();
    let (digests, digests_end) = channel();
    let (file_digests, file_digests_end) = channel();
    let (disk, disk_end) = channel();
    let (lanes, lane_ends) = Lanes::new(devices, has_disk, links);
    (
        Routes { state, tasks, surveys, digests, file_digests, disk, lanes },
        Ends {
            tasks: tasks_end,
            surveys: surveys_end,
            digests: digests_end,
            file_digests: file_digests_end,
            disk: disk_end,
            lanes: lane_ends,
        },
    )
}

/// A submission on its way to the thread that does it, or reports its failure.
#[derive(Debug)]
pub(super) enum Order {
    Task(Task),
    Survey(SurveyorOrder),
    Digest(Digest),
    Disk(DiskOrder),
    Copy(Copy),
}

impl Order {
    /// `None` for a submission that is already done.
    pub(super) fn of(submission: Submission, fate: Fate, routes: &Routes) -> Option<Self> {
        let Fate { failure, flaw, .. } = fate;
        Some(match submission {
            Submission::Create { extent, device, size, kind } => {
                let failure = failure.or_else(|| unsupported(kind));
                let location = Location::Device(device);
                Self::Task(Task::Make(Make { extent, location, size, zeroed: true, failure }))
            }
            Submission::CreateHost { extent, node, size, zeroed } => {
                let failure = failure.or_else(|| maker::refuse_unknown_node(node));
                Self::Task(Task::Make(Make { extent, location: Location::Host, size, zeroed, failure }))
            }
            Submission::PinAhead { node, size, piece, pieces_max } => {
                Self::Task(Task::PinAhead(PinAhead { node, size, piece, pieces_max }))
            }
            Submission::CreateDisk { extent, size } => Self::Disk(DiskOrder::Make { extent, size, failure }),
            Submission::OpenFile { extent, size, span } => Self::Disk(DiskOrder::Open { extent, size, span }),
            Submission::Release { extent } => Self::Survey(SurveyorOrder::Release { extent }),
            Submission::Survey { device, clients: _ } => Self::Survey(SurveyorOrder::Survey { device }),
            Submission::Digest { ticket, spans } => Self::Digest(Digest { ticket, spans, failure }),
            Submission::Copy { copy, from, to, size, class } => {
                let requested = routes.lanes.table().register(copy, size, class);
                Self::Copy(Copy { requested, from, to, failure, flaw })
            }
            Submission::CancelCopy { copy } => {
                routes.lanes.cancel(copy);
                return None;
            }
            Submission::SetShares { shares } => {
                routes.lanes.links().set_shares(shares);
                return None;
            }
            Submission::HastenCopy { copy } => {
                routes.lanes.hasten(copy);
                return None;
            }
            // No release is deferred.
            Submission::ReleaseNow { .. } => return None,
        })
    }
}

impl Routes {
    pub(super) fn send(&self, order: Order) {
        match order {
            Order::Task(task) => send(&self.tasks, task),
            Order::Survey(order) => send(&self.surveys, order),
            // Files take as long as their disk, and must not delay seals of memory.
            Order::Digest(digest) => {
                let of_file = digest.spans.first().is_some_and(|(extent, _)| self.state.is_in_file(*extent));
                send(if of_file { &self.file_digests } else { &self.digests }, digest);
            }
            Order::Disk(order) => send(&self.disk, order),
            Order::Copy(copy) => {
                let found = copy.find(&self.state);
                self.lanes.send(copy.requested, found);
            }
        }
    }
}

/// Memfds go by descriptor; only CUDA has legacy handles.
fn unsupported(kind: ExtentKind) -> Option<DriverError> {
    (kind == ExtentKind::Fixed)
        .then(|| DriverError::Failed("the simulated driver does not support fixed extents".to_owned()))
}

/// A delayed submission.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) due: Instant,
    pub(super) order: Order,
}

/// Sends each order on when it is due. Once all senders are gone it sends the rest at once, in order.
pub(super) fn run(arrivals: &Receiver<Late>, onward: &Routes) {
    // Ordered by due time, then by arrival.
    let mut waiting: BTreeMap<(Instant, u64), Order> = BTreeMap::new();
    for number in 0.. {
        let arrived = match waiting.first_entry() {
            None => arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(first) => arrivals.recv_timeout(first.key().0.saturating_duration_since(Instant::now())),
        };
        match arrived {
            Ok(late) => {
                waiting.insert((late.due, number), late.order);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= Instant::now()) {
            onward.send(first.remove());
        }
    }
    for order in waiting.into_values() {
        onward.send(order);
    }
}
