//! A cached extent backs no part, is its tenant's alone, is in the index, and is released in time.

use super::{CACHED, Violation, expect, expect_equal, scope::Scope};
use crate::{broker::Broker, pool::ExtentState, shell::Timer};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    let mut count = 0;
    for (id, extent) in scope.extents(broker) {
        let ExtentState::Cached(charge) = &extent.state else { continue };
        count += 1;
        expect(found, CACHED, extent.part.is_none(), || {
            format!("{id} is cached and backs {:?}", extent.part)
        });
        let own = extent.sent_to.iter().all(|of| *of == charge.tenant()) && !extent.unacknowledged;
        expect(found, CACHED, own, || format!("{id} is cached and was sent to {:?}", extent.sent_to));
    }
    if matches!(scope, Scope::All) {
        check_index(broker, count, found);
    }
}

fn check_index(broker: &Broker, count: usize, found: &mut Vec<Violation>) {
    let cache = broker.pool.cache();
    expect_equal(found, CACHED, || "extents in the index".to_owned(), &cache.iter().count(), &count);
    let next =
        broker.shell.timers.iter().find(|(_, timer)| *timer == Timer::Cached).map(|(deadline, _)| *deadline);
    for (_, entry) in cache.iter() {
        let extent = broker.pool.get(entry.extent);
        let is = extent.is_some_and(|extent| match &extent.state {
            ExtentState::Cached(charge) => {
                (charge.tenant(), extent.place.device, extent.size)
                    == (entry.tenant, entry.device, entry.size)
            }
            _ => false,
        });
        expect(found, CACHED, is, || {
            format!("{} is in the index with other data than its extent", entry.extent)
        });
        let until = broker.cached_until(entry.tenant, entry.since);
        let watched = next.is_some_and(|next| next <= until);
        expect(found, CACHED, watched, || {
            format!("{} stays cached until {until:?}, and no timer is set", entry.extent)
        });
    }
    for device in broker.device_indices() {
        let on_device = cache.iter().filter(|(_, entry)| entry.device == device);
        let bytes = vramd_types::Bytes::checked_sum(on_device.map(|(_, entry)| entry.size));
        expect_equal(found, CACHED, || format!("cached on {device}"), &Some(cache.bytes_on(device)), &bytes);
    }
}
