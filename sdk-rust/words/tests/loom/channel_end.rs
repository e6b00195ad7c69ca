//! The channel ends during a revoke: mapped memory stays usable, and no call waits for a frame that never comes.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use vramd_words::{
    Access, AtomicU64, Daemon, Evict, HEADER_WORDS, Header, PinRefused, Unpinned, Waiting, open,
};

use crate::bound::{self, Bound};

#[test]
fn a_revoke_that_the_daemon_sets_before_it_has_noticed() {
    let bound = Bound { preemptions: None, runs_min: 2900 };
    bound::explore(&"a late revoke", bound, || {
        let memory: Arc<[AtomicU64]> = (0..HEADER_WORDS + 2).map(|_| AtomicU64::new(0)).collect();
        let header = Header { major: 1, minor: 0, features: 0, slots: 1 };
        let daemon = Daemon::create(memory.clone(), header).unwrap();
        let (client, worker) = open(memory, 1).unwrap();
        worker.slot(0).unwrap().set_mapped(Waiting::default()).unwrap();
        let ended = Arc::new(AtomicBool::new(false));

        let broker = thread::spawn(move || match daemon.slot(0).unwrap().revoke_to_evict().unwrap() {
            // The frame that would follow is lost with the channel.
            Evict::Revoked | Evict::StillPinned => {}
            Evict::Leaving => panic!("nobody unmaps"),
        });
        let (worker, worker_thread) = {
            let (worker, ended) = (Arc::new(worker), Arc::clone(&ended));
            let same = Arc::clone(&worker);
            let thread = thread::spawn(move || {
                ended.store(true, Ordering::Release);
                worker.slot(0).unwrap().forget_revoke();
            });
            (same, thread)
        };
        let slot = client.slot(0).unwrap();
        while let Err(refused) = slot.pin(Access::Read) {
            assert_eq!(refused, PinRefused::NeedsFrame);
            if ended.load(Ordering::Acquire) {
                worker.slot(0).unwrap().forget_revoke();
            }
            thread::yield_now();
        }
        broker.join().unwrap();
        worker_thread.join().unwrap();
        // Only a late revoke can need a wake, and there is no frame to act on.
        assert!(matches!(slot.unpin(), Ok(Unpinned::Done | Unpinned::WakeWorker)));
        worker.slot(0).unwrap().forget_revoke();
        slot.pin(Access::Write).unwrap();
    });
}
