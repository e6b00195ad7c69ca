//! One small world: where the part lies at first, what the callers do, and what the operator orders meanwhile.

use std::panic::catch_unwind;
use std::sync::Arc;

use loom::sync::mpsc::channel;
use loom::thread;

use crate::bound::{self, Bound};
use crate::caller::{self, Act};
use crate::daemon::Broker;
use crate::form::Form;
use crate::worker;
use crate::world::{ToDaemon, ToWorker, Truth, World};

/// Orders of the operator or the program during the calls.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    Daemon(ToDaemon),
    Detach,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    /// Mapped before anything else happens; otherwise the part lies in the host.
    pub(crate) resident: bool,
    pub(crate) sealed: bool,
    pub(crate) callers: &'static [&'static [Act]],
    pub(crate) orders: &'static [Order],
    pub(crate) preemptions: usize,
}

pub(crate) const EVICT: Order = Order::Daemon(ToDaemon::Evict);
pub(crate) const FENCE: Order = Order::Daemon(ToDaemon::Fence);
pub(crate) const DEADLINE: Order = Order::Daemon(ToDaemon::Deadline);
pub(crate) const WRITE_BACK: Order = Order::Daemon(ToDaemon::WriteBack { fails: false });
pub(crate) const FAILED_WRITE_BACK: Order = Order::Daemon(ToDaemon::WriteBack { fails: true });

/// One caller at most.
pub(crate) const RESIDENT: Scenario =
    Scenario { resident: true, sealed: false, callers: &[], orders: &[], preemptions: 3 };
pub(crate) const IN_HOST: Scenario = Scenario { resident: false, ..RESIDENT };
/// Many orders: three preemptions would take too many runs, so two must do.
pub(crate) const RESIDENT_FOR_LONG: Scenario = Scenario { preemptions: 2, ..RESIDENT };
/// Two callers: five threads, so fewer preemptions.
pub(crate) const RESIDENT_FOR_TWO: Scenario = Scenario { preemptions: 1, ..RESIDENT };
pub(crate) const IN_HOST_FOR_TWO: Scenario = Scenario { preemptions: 1, ..IN_HOST };

impl Scenario {
    /// Explores the runs of the right protocol, at least this many.
    pub(crate) fn holds(self, runs_min: u64) {
        self.explore(None, runs_min);
    }

    /// Checks that a form fails in this world with this message.
    pub(crate) fn breaks(self, form: Form, finding: &str) {
        let found = catch_unwind(|| self.explore(Some(form), 0));
        let panic = found.expect_err("the checker found nothing wrong with this form");
        let said = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .expect("a panic with a message");
        assert!(said.contains(finding), "{form:?} breaks otherwise: {said}");
    }

    /// Explores the runs of a form, or of the right protocol, within the bound.
    pub(crate) fn explore(self, form: Option<Form>, runs_min: u64) {
        let bound = Bound { preemptions: Some(self.preemptions), runs_min };
        bound::explore(&(form, self), bound, move || self.run(form));
    }

    fn run(self, form: Option<Form>) {
        const AT_FIRST: u64 = 1;
        let (to_daemon, daemon_inbox) = channel();
        let (to_worker, worker_inbox) = channel();
        let (world, daemon_words, worker_words) = World::new(form, to_daemon, to_worker);
        let world = Arc::new(world);
        *world.truth() = Truth { writes: vec![AT_FIRST], settled: 1, ..Truth::default() };

        let mut broker = Broker::new(Arc::clone(&world), daemon_words, AT_FIRST);
        if self.sealed {
            broker.seal();
        }
        if self.resident {
            broker.prefetch();
            let frame = worker_inbox.recv().unwrap();
            worker::handle(&world, &worker_words, &mut false, frame);
            broker.handle(daemon_inbox.recv().unwrap());
        }
        let daemon = thread::spawn(move || broker.run(&daemon_inbox));
        let worker = {
            let world = Arc::clone(&world);
            thread::spawn(move || worker::run(&world, &worker_words, &worker_inbox))
        };
        let callers: Vec<_> = self
            .callers
            .iter()
            .enumerate()
            .map(|(id, acts)| {
                let world = Arc::clone(&world);
                thread::spawn(move || caller::run(&world, id, acts))
            })
            .collect();
        for order in self.orders {
            match order {
                Order::Daemon(order) => world.tell_daemon(*order),
                Order::Detach => world.tell_worker(ToWorker::Detach),
            }
        }
        for caller in callers {
            caller.join().unwrap();
        }
        world.tell_daemon(ToDaemon::Finish);
        let host = daemon.join().unwrap();
        worker.join().unwrap();
        let kept = if self.sealed { Some(AT_FIRST) } else { world.truth().writes.last().copied() };
        assert_eq!(Some(host), kept, "a byte was lost");
    }
}
