//! How fast parts come to each device, and how busy its link is, as measured by the copies that it has carried.
//!
//! Every copy from host memory counts, whatever its cause, and copies from disk for prefetch requests. A part that came
//! without a copy measures nothing.

use std::{collections::BTreeMap, time::Duration};

use vramd_types::{Bytes, DeviceIndex};

use crate::{event::Tier, time::Time};

/// The older measurements lose one of so many parts of their weight with each new one.
const SMOOTHING: u64 = 8;

/// Sums over the last copies, in which older copies weigh less.
#[derive(Debug)]
struct Measured {
    bytes: u64,
    /// The time in which they were copied, in nanoseconds: finer than times are, so that little is lost as it decays.
    busy: u64,
    /// The part of it in which a client waited for the copy.
    awaited: u64,
    /// The time from the end of the copy before the first of them.
    elapsed: u64,
    /// The end of the last copy.
    last: Time,
}

/// The copies to one device.
#[derive(Debug)]
struct Link {
    all: Measured,
    from_host: Option<Measured>,
}

/// A copy that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkCopy {
    pub(crate) from: Tier,
    pub(crate) bytes: Bytes,
    /// A client waited for it.
    pub(crate) awaited: bool,
    pub(crate) began: Time,
}

/// The shares of time in which copies from host memory run, and in which clients wait for them, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkLoad {
    pub(crate) busy: u64,
    pub(crate) awaited: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Links {
    by_device: BTreeMap<DeviceIndex, Link>,
}

impl Measured {
    const fn from(began: Time) -> Self {
        Self { bytes: 0, busy: 0, awaited: 0, elapsed: 0, last: began }
    }

    /// Adds a copy that has ended now. Of copies that overlap, each counts from the end of the one before.
    fn add(&mut self, copy: LinkCopy, now: Time) {
        let keep = |sum: u64| sum.saturating_sub(sum / SMOOTHING);
        let took = nanos(now.since(copy.began.max(self.last))).max(1_000);
        self.bytes = keep(self.bytes).saturating_add(copy.bytes.get());
        self.busy = keep(self.busy).saturating_add(took);
        self.awaited = keep(self.awaited).saturating_add(if copy.awaited { took } else { 0 });
        self.elapsed = keep(self.elapsed).saturating_add(nanos(now.since(self.last)).max(took));
        self.last = now;
    }

    fn time_for(&self, bytes: Bytes) -> Duration {
        let took = u128::from(bytes.get()).saturating_mul(self.busy.into()) / u128::from(self.bytes.max(1));
        Duration::from_micros(u64::try_from(took / 1_000).unwrap_or(u64::MAX))
    }

    fn load(&self, now: Time) -> LinkLoad {
        let elapsed = self.elapsed.saturating_add(nanos(now.since(self.last)));
        let percent = |of: u64| of.saturating_mul(100).checked_div(elapsed).unwrap_or_default();
        LinkLoad { busy: percent(self.busy), awaited: percent(self.awaited) }
    }
}

impl Links {
    /// Records a copy to the device that has ended now.
    pub(crate) fn record(&mut self, device: DeviceIndex, copy: LinkCopy, now: Time) {
        let new = || Measured::from(copy.began);
        let link = self.by_device.entry(device).or_insert_with(|| Link { all: new(), from_host: None });
        link.all.add(copy, now);
        if copy.from == Tier::Host {
            link.from_host.get_or_insert_with(new).add(copy, now);
        }
    }

    /// How long that many bytes take to come to the device, from where parts come from of late; `None` before the first
    /// copy.
    pub(crate) fn time_for(&self, device: DeviceIndex, bytes: Bytes) -> Option<Duration> {
        Some(self.by_device.get(&device)?.all.time_for(bytes))
    }

    /// How long that many bytes take from host memory, and the load of the link.
    pub(crate) fn time_from_host(
        &self,
        device: DeviceIndex,
        bytes: Bytes,
        now: Time,
    ) -> Option<(Duration, LinkLoad)> {
        let measured = self.by_device.get(&device)?.from_host.as_ref()?;
        Some((measured.time_for(bytes), measured.load(now)))
    }

    /// When the link will have carried so many bytes, behind others that it has carried since a time; now before the first
    /// copy.
    pub(crate) fn end_of(
        &self,
        device: DeviceIndex,
        (since, ahead): (Option<Time>, Bytes),
        bytes: Bytes,
        now: Time,
    ) -> Time {
        let takes = |bytes| self.time_for(device, bytes).unwrap_or_default();
        let last = self.by_device.get(&device).map(|link| link.all.last);
        let from = since.map_or(now, |since| last.map_or(since, |last| last.max(since)));
        from.after(takes(ahead.saturating_add(bytes))).max(now.after(takes(bytes)))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: DeviceIndex = DeviceIndex(0);

    fn record(links: &mut Links, from: Tier, (began, end): (u64, u64), awaited: bool) {
        let copy = LinkCopy { from, bytes: Bytes::mib(1), awaited, began: Time::from_micros(began) };
        links.record(ON, copy, Time::from_micros(end));
    }

    #[test]
    fn overlapping_copies_share_the_time() {
        let mut links = Links::default();
        assert_eq!(links.time_for(ON, Bytes::mib(1)), None);
        // Both began at once, and the second ended as long after the first as the first took.
        record(&mut links, Tier::Host, (0, 1_000), false);
        record(&mut links, Tier::Host, (0, 2_000), false);
        assert_eq!(links.time_for(ON, Bytes::mib(4)), Some(Duration::from_micros(4_000)));
        // A pause does not count.
        record(&mut links, Tier::Host, (50_000, 51_000), false);
        assert_eq!(links.time_for(ON, Bytes::mib(1)), Some(Duration::from_micros(1_000)));
        // A slower one changes the mean by its weight.
        (0..60)
            .for_each(|at| record(&mut links, Tier::Host, (60_000 + at * 2_000, 61_000 + at * 2_000), false));
        record(&mut links, Tier::Host, (200_000, 209_000), false);
        let slower = links.time_for(ON, Bytes::mib(1)).unwrap();
        assert!(slower > Duration::from_micros(1_900) && slower < Duration::from_micros(2_100), "{slower:?}");
    }

    #[test]
    fn copies_from_disk_measure_nothing_for_host_memory() {
        let mut links = Links::default();
        record(&mut links, Tier::Disk, (0, 9_000), true);
        assert_eq!(links.time_from_host(ON, Bytes::mib(1), Time::from_micros(9_000)), None);
        assert_eq!(links.time_for(ON, Bytes::mib(1)), Some(Duration::from_micros(9_000)));
        record(&mut links, Tier::Host, (10_000, 11_000), true);
        let (time, load) = links.time_from_host(ON, Bytes::mib(1), Time::from_micros(12_000)).unwrap();
        assert_eq!((time, load), (Duration::from_micros(1_000), LinkLoad { busy: 50, awaited: 50 }));
    }
}
