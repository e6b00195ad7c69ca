//! Which thread does what, and the thread that holds back what is to be late.

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

/// The queues of the threads. They are as long as what the caller has outstanding.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    /// What copies move is found when they are begun.
    pub(super) state: Arc<State>,
    pub(super) tasks: Sender<Task>,
    pub(super) surveys: Sender<SurveyorOrder>,
    pub(super) digests: Sender<Digest>,
    pub(super) file_digests: Sender<Digest>,
    pub(super) disk: Sender<DiskOrder>,
    pub(super) lanes: Lanes<copier::Work, DiskWork<DiskEnd>>,
}

/// Their other ends.
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

/// A submission on its way to the thread that does it, or says that it failed.
#[derive(Debug)]
pub(super) enum Order {
    Task(Task),
    Survey(SurveyorOrder),
    Digest(Digest),
    Disk(DiskOrder),
    Copy(Copy),
}

impl Order {
    /// `None` for what is done by now.
    pub(super) fn of(submission: Submission, fate: Fate, routes: &Routes) -> Option<Self> {
        let Fate { failure, flaw, .. } = fate;
        Some(match submission {
            Submission::Create { extent, device, size, kind } => {
                let failure = failure.or_else(|| unsupported(kind));
                let location = Location::Device(device);
                Self::Task(Task::Make(Make { extent, location, size, zeroed: true, failure }))
            }
            Submission::CreateHost { extent, node, size, zeroed } => {
                let failure = failure.or_else(|| maker::nowhere(node));
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
            // None is put off.
            Submission::ReleaseNow { .. } => return None,
        })
    }
}

impl Routes {
    pub(super) fn send(&self, order: Order) {
        match order {
            Order::Task(task) => send(&self.tasks, task),
            Order::Survey(order) => send(&self.surveys, order),
            // Files take as long as their disk does, and hold up nobody's seal.
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

/// Memfds go by descriptor; a legacy handle is CUDA's own.
fn unsupported(kind: ExtentKind) -> Option<DriverError> {
    (kind == ExtentKind::Fixed).then(|| DriverError::Failed("sim makes no fixed extents".to_owned()))
}

/// What is begun later.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) due: Instant,
    pub(super) order: Order,
}

/// Sends each on when it is due, and all that are left, in that order, when nobody can bring more.
pub(super) fn run(arrivals: &Receiver<Late>, onward: &Routes) {
    // By when it is due, and of two at once by which came first.
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
