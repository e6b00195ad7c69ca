//! Counts files that clients copied to a device instead of having the device read them in place.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use broker_platform::readings::FallBackReadings;
use vramd_types::{Bytes, FallBack};

/// The counts since the daemon started. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct FallBacks(Arc<[Count; FallBack::ALL.len()]>);

#[derive(Debug, Default)]
struct Count {
    loads: AtomicU64,
    copied: AtomicU64,
}

impl FallBacks {
    /// Counts one load. Clients say how many bytes they copied, so the sum stops at the largest number.
    pub fn count(&self, reason: FallBack, copied: Bytes) {
        let Some(count) = self.0.get(reason as usize) else { return };
        count.loads.fetch_add(1, Ordering::Relaxed);
        let add = |sum: u64| Some(sum.saturating_add(copied.get()));
        // The closure always has a sum.
        let _ = count.copied.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Lists the reasons that have occurred.
    pub fn readings(&self) -> Vec<FallBackReadings> {
        let all = FallBack::ALL.into_iter().zip(self.0.iter());
        let reading = |(reason, count): (FallBack, &Count)| FallBackReadings {
            reason: reason.name().to_owned(),
            meaning: reason.meaning().to_owned(),
            loads: count.loads.load(Ordering::Relaxed),
            copied_bytes: count.copied.load(Ordering::Relaxed),
        };
        all.map(reading).filter(|reading| reading.loads > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_count() {
        let all = FallBacks::default();
        assert!(all.readings().is_empty());
        all.count(FallBack::FileMutable, Bytes::new(5));
        all.clone().count(FallBack::FileMutable, Bytes::new(u64::MAX));
        all.count(FallBack::NotRequested, Bytes::new(7));
        let read = all.readings();
        let read: Vec<_> = read.iter().map(|it| (&*it.reason, it.loads, it.copied_bytes)).collect();
        assert_eq!(read, [("file_mutable", 2, u64::MAX), ("not_requested", 1, 7)]);
    }
}
