//! Assigns submissions to threads, and delays or holds those that the schedule says.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

use super::{
    copier::{self, Copy},
    digester::Digest,
    disk_mover::DiskEnd,
    fault::Fate,
    maker::{Make, PinAhead, Task},
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
                let failure = failure.or_else(|| routes.state.refuse_node(node));
                Self::Task(Task::Make(Make { extent, location: Location::Host, size, zeroed, failure }))
            }
            Submission::PinAhead { node, size, piece, pieces_max, pace } => {
                Self::Task(Task::PinAhead(PinAhead { node, size, piece, pieces_max, pace }))
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

/// How often the timer looks for the files that hold submissions.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// A delayed submission.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) due: Instant,
    /// The file that must exist, too.
    pub(super) held_until: Option<PathBuf>,
    pub(super) order: Order,
}

/// Sends each order on when it is due and its file exists. Once all senders are gone it sends the rest at once, in
/// order.
pub(super) fn run(arrivals: &Receiver<Late>, onward: &Routes) {
    // Ordered by due time, then by arrival.
    let mut waiting: BTreeMap<(Instant, u64), (Option<PathBuf>, Order)> = BTreeMap::new();
    // Due, and without their files.
    let mut held: Vec<(PathBuf, Order)> = Vec::new();
    for number in 0.. {
        let next =
            waiting.first_key_value().map(|((due, _), _)| due.saturating_duration_since(Instant::now()));
        let poll = (!held.is_empty()).then_some(POLL_EVERY);
        let arrived = match next.into_iter().chain(poll).min() {
            None => arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(pause) => arrivals.recv_timeout(pause),
        };
        match arrived {
            Ok(Late { due, held_until, order }) => {
                waiting.insert((due, number), (held_until, order));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= Instant::now()) {
            match first.remove() {
                (Some(file), order) => held.push((file, order)),
                (None, order) => onward.send(order),
            }
        }
        held.extract_if(.., |(file, _)| file.exists()).for_each(|(_, order)| onward.send(order));
    }
    for order in held.into_iter().map(|(_, order)| order).chain(waiting.into_values().map(|(_, order)| order))
    {
        onward.send(order);
    }
}
