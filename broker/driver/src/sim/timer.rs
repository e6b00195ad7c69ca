//! Which thread does what, and the thread that holds back what is to be late.

use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::Instant,
};

use super::{digester::Digest, looker::Look, maker::Make, state::hand};
use crate::{DriverError, ExtentKind, Submission};

/// The queues of the threads. They are as long as what the caller has outstanding.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    pub(super) makes: Sender<Make>,
    pub(super) looks: Sender<Look>,
    pub(super) digests: Sender<Digest>,
}

/// Their other ends.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) makes: Receiver<Make>,
    pub(super) looks: Receiver<Look>,
    pub(super) digests: Receiver<Digest>,
}

pub(super) fn routes() -> (Routes, Ends) {
    let (makes, makes_end) = channel();
    let (looks, looks_end) = channel();
    let (digests, digests_end) = channel();
    (Routes { makes, looks, digests }, Ends { makes: makes_end, looks: looks_end, digests: digests_end })
}

impl Routes {
    /// To the thread that does it, or says that it failed.
    pub(super) fn send(&self, submission: Submission, failure: Option<DriverError>) {
        match submission {
            Submission::Create { extent, device, size, kind } => {
                let failure = failure.or_else(|| unsupported(kind));
                hand(&self.makes, Make { extent, device, size, failure });
            }
            Submission::Release { extent } => hand(&self.looks, Look::Release { extent }),
            Submission::Survey { device, clients: _ } => hand(&self.looks, Look::Survey { device }),
            Submission::Digest { ticket, spans } => hand(&self.digests, Digest { ticket, spans, failure }),
        }
    }
}

/// Memfds go by descriptor; a legacy handle is CUDA's own.
fn unsupported(kind: ExtentKind) -> Option<DriverError> {
    (kind == ExtentKind::Fixed).then(|| DriverError::Failed("sim makes no fixed extents".to_owned()))
}

/// A submission that is begun later.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) due: Instant,
    pub(super) submission: Submission,
    pub(super) failure: Option<DriverError>,
}

/// Sends each on when it is due, and all that are left, in that order, when nobody can bring more.
pub(super) fn run(arrivals: &Receiver<Late>, onward: &Routes) {
    // By when it is due, and of two at once by which came first.
    let mut waiting: BTreeMap<(Instant, u64), Late> = BTreeMap::new();
    for number in 0.. {
        let arrived = match waiting.first_entry() {
            None => arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(first) => arrivals.recv_timeout(first.key().0.saturating_duration_since(Instant::now())),
        };
        match arrived {
            Ok(late) => {
                waiting.insert((late.due, number), late);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= Instant::now()) {
            first.remove().send(onward);
        }
    }
    for late in waiting.into_values() {
        late.send(onward);
    }
}

impl Late {
    fn send(self, onward: &Routes) {
        onward.send(self.submission, self.failure);
    }
}
