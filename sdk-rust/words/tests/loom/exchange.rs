//! An exchange: one part out of an extent and another into it, the second copy behind the first.
//!
//! The words play no part here, but the wrong form is as tempting as theirs: to queue the copy in behind an *event*
//! of the copy out, as streams do. An event says that the copy has ended, not that it succeeded.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::sync::mpsc::channel;
use loom::thread;
use vramd_words::AtomicU64;

use crate::bound::{self, Bound};

/// The condition that the copy in waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// The daemon read that the last hop was a success.
    Success,
    /// The copy out's event, which fires at its end.
    Event,
}

const GOING: u64 = 1;
const COMING: u64 = 2;
/// A part is copied in this many hops.
const HOPS: usize = 2;

/// Out of the extent and into it, by an engine for each direction; hop `failing` of the copy out fails.
fn exchange(behind: Behind, failing: Option<usize>) {
    let cells = || -> Arc<[AtomicU64]> { (0..HOPS).map(|_| AtomicU64::new(0)).collect() };
    let (extent, below) = (cells(), cells());
    for cell in extent.iter() {
        cell.store(GOING, Relaxed);
    }
    let (completion, completed) = channel();
    let (event, fired) = channel();
    let out = {
        let (extent, below) = (Arc::clone(&extent), Arc::clone(&below));
        thread::spawn(move || {
            let success = (0..HOPS).all(|hop| {
                let good = failing != Some(hop);
                if good {
                    below[hop].store(extent[hop].load(Relaxed), Relaxed);
                }
                good
            });
            event.send(()).unwrap();
            completion.send(success).unwrap();
        })
    };
    let (start, started) = channel();
    let into = {
        let extent = Arc::clone(&extent);
        thread::spawn(move || {
            let go = match behind {
                Behind::Success => started.recv().unwrap(),
                Behind::Event => fired.recv().is_ok(),
            };
            for cell in extent.iter().filter(|_| go) {
                cell.store(COMING, Relaxed);
            }
        })
    };
    let success = completed.recv().unwrap();
    start.send(success).unwrap();
    out.join().unwrap();
    into.join().unwrap();

    let holds = |cells: &[AtomicU64], part| cells.iter().all(|cell| cell.load(Relaxed) == part);
    if success {
        assert!(
            holds(&below, GOING) && holds(&extent, COMING),
            "a part was lost in an exchange that succeeded"
        );
    } else {
        assert!(holds(&extent, GOING), "a part was lost: its copy out failed, and it was overwritten");
    }
}

fn explore(behind: Behind, failing: Option<usize>) {
    let bound = Bound { preemptions: None, runs_min: 4 };
    bound::explore(&(behind, failing), bound, move || exchange(behind, failing));
}

#[test]
fn an_exchange_behind_a_success_that_was_read() {
    for failing in [None, Some(0), Some(HOPS - 1)] {
        explore(Behind::Success, failing);
    }
}

#[test]
#[should_panic(expected = "its copy out failed, and it was overwritten")]
fn an_exchange_behind_an_event() {
    explore(Behind::Event, None);
    explore(Behind::Event, Some(HOPS - 1));
}
