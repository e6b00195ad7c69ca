//! Pins on several parts at once: all or none, and none left, while the daemon revokes one of them.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use vramd_words::{
    Access, AtomicU64, Daemon, Fence, HEADER_WORDS, Header, NotUnmappable, State, Unpinned, Waiting, open,
    pin_set,
};

use crate::bound::{self, Bound};

/// Two parts are mapped, the second is being unmapped, and a caller wants both while the first is fenced.
///
/// Another pin on the first ends meanwhile, so that the set's own pin can be the last one released.
#[test]
fn a_set_that_is_given_back_wakes_the_worker_if_it_was_the_last() {
    let woken_by_a_set = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let seen = Arc::clone(&woken_by_a_set);
    let bound = Bound { preemptions: Some(3), runs_min: 820 };
    bound::explore(&"a set that is given back", bound, move || {
        let memory: Arc<[AtomicU64]> = (0..HEADER_WORDS + 4).map(|_| AtomicU64::new(0)).collect();
        let header = Header { major: 1, minor: 0, features: 0, slots: 2 };
        let daemon = Daemon::create(memory.clone(), header).unwrap();
        let (client, worker) = open(memory, 1).unwrap();
        worker.slot(0).unwrap().set_mapped(Waiting { readers: 1, writers: 0 }).unwrap();
        let woken = Arc::new(AtomicBool::new(false));

        let other = {
            let (client, woken) = (client.clone(), Arc::clone(&woken));
            thread::spawn(move || {
                if client.slot(0).unwrap().unpin() == Ok(Unpinned::WakeWorker) {
                    assert!(!woken.swap(true, Ordering::AcqRel), "two were the last");
                }
            })
        };
        let caller = {
            let (woken, seen) = (Arc::clone(&woken), Arc::clone(&seen));
            thread::spawn(move || {
                let both = [0, 1].map(|index| (client.slot(index).unwrap(), Access::Read));
                let refused = pin_set(&both).expect_err("the second part is not mapped");
                if refused.unpinned == Unpinned::WakeWorker {
                    seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    assert!(!woken.swap(true, Ordering::AcqRel), "two were the last");
                }
            })
        };
        let Fence::Revoked { .. } = daemon.slot(0).unwrap().revoke_to_fence().unwrap() else {
            panic!("the first part is mapped");
        };
        // The frame: if it finds a pin, there must be a wake after it, or the worker would wait for ever.
        let at_once = match worker.slot(0).unwrap().begin_unmap_revoked() {
            Ok(unmapping) => Some(unmapping),
            Err(NotUnmappable::Pinned) => None,
            Err(refused) => panic!("{refused}"),
        };
        other.join().unwrap();
        caller.join().unwrap();
        assert!(at_once.is_some() || woken.load(Ordering::Acquire), "a wake was lost");
        let unmapping = at_once.unwrap_or_else(|| worker.slot(0).unwrap().begin_unmap_revoked().unwrap());
        assert!(!unmapping.finish());
        assert_eq!(daemon.slot(0).unwrap().state(), Ok(State::Absent));
    });
    assert!(woken_by_a_set.load(std::sync::atomic::Ordering::Relaxed) > 0, "no run came by the case");
}
