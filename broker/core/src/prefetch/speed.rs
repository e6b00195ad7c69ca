//! How fast parts come to each device, as measured.

use std::{collections::BTreeMap, time::Duration};

use vramd_types::{Bytes, DeviceIndex};

use crate::time::Time;

/// One new figure counts as one of so many.
const SMOOTHING: u64 = 8;

#[derive(Debug, Default)]
pub(crate) struct Speed {
    by_device: BTreeMap<DeviceIndex, Measured>,
}

#[derive(Debug)]
struct Measured {
    bytes_per_second: u64,
    /// The end of the last fetch.
    last: Time,
}

impl Speed {
    /// Records a fetch that began then and has ended now. Of fetches that overlap, each counts from the end of the one
    /// before.
    pub(crate) fn record(&mut self, device: DeviceIndex, bytes: Bytes, began: Time, now: Time) {
        let known = self.by_device.get(&device);
        let took = now.since(known.map_or(began, |known| known.last.max(began))).as_micros().max(1);
        let figure = u128::from(bytes.get()).saturating_mul(1_000_000) / took;
        let figure = u64::try_from(figure).unwrap_or(u64::MAX);
        let smoothed = known.map_or(figure, |known| {
            let before = known.bytes_per_second;
            (before - before / SMOOTHING).saturating_add(figure / SMOOTHING)
        });
        self.by_device.insert(device, Measured { bytes_per_second: smoothed, last: now });
    }

    /// How long that many bytes take; `None` if no fetch was measured.
    pub(crate) fn time_for(&self, device: DeviceIndex, bytes: Bytes) -> Option<Duration> {
        let speed = self.by_device.get(&device)?.bytes_per_second;
        let micros = u128::from(bytes.get()).saturating_mul(1_000_000) / u128::from(speed.max(1));
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }

    /// When the link will have carried so many bytes, behind others that it has carried since a time; now if no fetch
    /// was measured.
    pub(crate) fn end_of(
        &self,
        device: DeviceIndex,
        (since, ahead): (Option<Time>, Bytes),
        bytes: Bytes,
        now: Time,
    ) -> Time {
        let takes = |bytes| self.time_for(device, bytes).unwrap_or_default();
        let last = self.by_device.get(&device).map(|measured| measured.last);
        let from = since.map_or(now, |since| last.map_or(since, |last| last.max(since)));
        from.after(takes(ahead.saturating_add(bytes))).max(now.after(takes(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: DeviceIndex = DeviceIndex(0);

    #[test]
    fn overlapping_fetches_share_the_time() {
        let mut speed = Speed::default();
        assert_eq!(speed.time_for(ON, Bytes::mib(1)), None);
        let at = Time::from_micros;
        // Both began at once, and the second ended as long after the first as the first took.
        speed.record(ON, Bytes::mib(1), at(0), at(1_000));
        speed.record(ON, Bytes::mib(1), at(0), at(2_000));
        assert_eq!(speed.time_for(ON, Bytes::mib(4)), Some(Duration::from_micros(4_000)));
        // A pause does not count.
        speed.record(ON, Bytes::mib(1), at(50_000), at(51_000));
        assert_eq!(speed.time_for(ON, Bytes::mib(1)), Some(Duration::from_micros(1_000)));
        // A slower one counts as one of eight.
        speed.record(ON, Bytes::mib(1), at(60_000), at(69_000));
        let slower = speed.time_for(ON, Bytes::mib(1)).unwrap();
        assert!(slower > Duration::from_micros(1_050) && slower < Duration::from_micros(1_200), "{slower:?}");
    }
}
