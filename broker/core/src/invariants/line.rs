//! The last scan of the line is still valid, and every waiter waits for something.

use super::{LINE_SCANNED, Violation, expect, scope::Scope};

use crate::broker::Broker;

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    if matches!(scope, Scope::All) {
        for (_, demand) in broker.line.iter() {
            expect(found, LINE_SCANNED, broker.still_waits(demand.waiter), || {
                format!("{demand:?} is in the line and waits for nothing")
            });
        }
        expect(found, LINE_SCANNED, broker.is_scan_current(), || {
            "another scan of the line would find more to do".to_owned()
        });
    }
}
