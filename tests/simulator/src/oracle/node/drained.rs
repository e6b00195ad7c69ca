//! Without faults everything drains.

use broker_core::{AllocationState, Broker, invariants::DRAINS};

use crate::oracle::Oracle;

impl Oracle {
    /// Checks that, once nothing is under way, no call is unanswered and nothing is left of a refused one.
    pub fn check_all_answered(&mut self, broker: &Broker) {
        let left: Vec<_> = self.facts.calls.iter().take(3).collect();
        let detail = format!("never answered: {left:?}");
        self.expect(DRAINS, self.facts.calls.is_empty(), || detail);
        let (views, _) = broker.list_allocations(None, None, usize::MAX);
        for view in views {
            let reported =
                self.facts.allocations.contains_key(&view.id) || view.state == AllocationState::Freeing;
            self.expect(DRAINS, reported, || {
                format!("an allocation exists that no client was told of: {view:?}")
            });
        }
    }

    /// Checks that, once all processes have ended, only sealed persistent allocations are left.
    pub fn check_after_processes(&mut self, broker: &Broker) {
        let sessions = broker.node().sessions;
        self.expect(DRAINS, sessions == 0, || format!("{sessions} sessions are left"));
        let (views, _) = broker.list_allocations(None, None, usize::MAX);
        for view in views {
            let stays = view.state == AllocationState::Sealed
                && view.lifetime == broker_core::Lifetime::Persistent
                && view.mapper_count == 0;
            self.expect(DRAINS, stays, || format!("left after all processes have ended: {view:?}"));
        }
    }

    pub fn check_drained(&mut self, broker: &Broker) {
        self.check_no_prefetches(broker);
        let node = broker.node();
        let left = (node.sessions, node.allocations, node.fds_in_flight);
        self.expect(DRAINS, left == (0, 0, 0), || {
            format!("left sessions, allocations and descriptors: {left:?}")
        });
        for device in broker.devices() {
            let held = (device.charged, device.unreturned, device.unbrokered);
            let none =
                [device.charged, device.unreturned, device.unbrokered].iter().all(|bytes| bytes.is_zero());
            self.expect(DRAINS, none, || {
                format!("charged, unreturned and unbrokered on {}: {held:?}", device.uuid)
            });
        }
        for device in broker.devices() {
            let below = [device.host, device.disk].map(|tier| tier.map_or(0, |tier| tier.charged.get()));
            let left = (below, device.moving_in.get(), device.moving_out.get(), device.parts_waiting);
            self.expect(DRAINS, left == ([0, 0], 0, 0, 0), || {
                format!(
                    "charged in host memory and on disk, moving and waited for on {}: {left:?}",
                    device.uuid
                )
            });
        }
        let extents = self.facts.extents.len();
        self.expect(DRAINS, extents == 0, || format!("{extents} extents were never given back"));
    }
}
