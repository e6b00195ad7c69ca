//! The requests of two tenants for one link, drawn from a seed.

use vramd_types::Bytes;

use crate::dice::Dice;

/// The speed of the link: 55 GB/s.
const BYTES_PER_MICRO: u64 = 55_000;

/// For so long requests arrive.
pub(super) const DURATION_MICROS: u64 = 12_000_000;

/// The parts of each tenant. The larger size is the daemon's default.
pub(super) const PART_SIZES: [Bytes; 2] = [Bytes::mib(32), Bytes::mib(256)];

const PARTS_MAX: u64 = 4;

/// A deadline leaves from 4 to 256 ms beyond the copies of its request. Each doubling in between is equally likely.
pub(super) const SLACK_MICROS_MIN: u64 = 4_000;
const SLACK_DOUBLINGS: u64 = 6;

/// Deadlines are whole milliseconds, as in the protocol.
const MILLI: u64 = 1_000;

/// A request for memory that no other request names. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The number of the tenant, 0 or 1.
    pub(super) tenant: usize,
    pub(super) parts: u64,
    pub(super) part_size: Bytes,
    pub(super) arrives: u64,
    /// The deadline, from the arrival on.
    pub(super) within: u64,
}

impl Request {
    /// How long its copies take.
    pub(super) fn micros(&self) -> u64 {
        self.parts * copy_micros(self.part_size)
    }

    pub(super) const fn deadline(&self) -> u64 {
        self.arrives + self.within
    }

    pub(super) fn slack(&self) -> u64 {
        self.within.saturating_sub(self.micros())
    }
}

pub(super) fn copy_micros(bytes: Bytes) -> u64 {
    bytes.get().div_ceil(BYTES_PER_MICRO)
}

/// Draws the requests, in the order of their arrival. Each tenant offers half of the load, which is in percent of the
/// link. The same seed draws the same requests for each load, closer together for a higher one.
pub(super) fn draw(seed: u64, load: u64) -> Vec<Request> {
    let mut requests = Vec::new();
    for (tenant, part_size) in PART_SIZES.into_iter().enumerate() {
        let mut dice = Dice::new(seed * 2 + u64::try_from(tenant).expect("0 or 1"));
        let mean_micros = copy_micros(part_size) * (1 + PARTS_MAX) / 2;
        let mean_gap = mean_micros * 2 * 100 / load;
        let mut arrives = dice.exponential(mean_gap);
        while arrives < DURATION_MICROS {
            let parts = dice.between(1, PARTS_MAX);
            let slack = SLACK_MICROS_MIN << dice.below(SLACK_DOUBLINGS);
            let slack = slack + dice.below(slack);
            let within = (parts * copy_micros(part_size) + slack).next_multiple_of(MILLI);
            requests.push(Request { tenant, parts, part_size, arrives, within });
            arrives += dice.exponential(mean_gap);
        }
    }
    requests.sort_by_key(|request| (request.arrives, request.tenant));
    requests
}
