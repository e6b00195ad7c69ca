//! How a daemon shows the ids that it counts up.
//!
//! Inside the daemon ids count up: its tables rely on that, and the order of ids is the order of creation. A client
//! that saw these numbers would learn from two of its own how many sessions or allocations all tenants opened between
//! them. So the daemon shows each id permuted by a key that it draws at its start. The permutation keeps the boot
//! epoch, so shown ids are as unique as the numbers behind them.
//!
//! Each [`Kind`] of id has its own permutation. With one for all, the n-th session and the n-th allocation would show
//! the same number, and a client could allocate until it met the number of a session. No id is shown with the counter 0,
//! which stands for none.
//!
//! The key is one for the process, since an id also appears in the text of an error or of a log line, wherever it is
//! formatted. No decision depends on it. Without [`hide_counts`], ids are shown as they are: in clients, tools and
//! the simulator.

use std::{
    hash::{BuildHasher, RandomState},
    sync::OnceLock,
};

use crate::ids::{COUNTER_BITS, COUNTER_MAX};

const HALF_BITS: u32 = COUNTER_BITS / 2;
const HALF_MAX: u64 = (1 << HALF_BITS) - 1;
/// Four rounds already hide the order, as long as the hash of a round cannot be predicted. Two more cost 100 ns.
const ROUNDS: u8 = 6;

/// The kinds of ids that clients see. The kind is mixed into every round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Allocation,
    Session,
    Wait,
}

static PERMUTATION: OnceLock<Permutation<RandomState>> = OnceLock::new();

/// Shows the ids of this process permuted from now on. The daemon calls it once, before it shows the first.
pub fn hide_counts() {
    // The standard library keys the hasher with random bits of the kernel.
    PERMUTATION.get_or_init(|| Permutation(RandomState::new()));
}

/// Returns the number that is shown for an id. An id of no kind never leaves the daemon, and stays as it is.
pub(crate) fn show(kind: Option<Kind>, raw: u64) -> u64 {
    PERMUTATION.get().zip(kind).map_or(raw, |(permutation, kind)| permutation.show(kind, raw))
}

/// Returns the id that is shown as that number.
pub(crate) fn read(kind: Option<Kind>, shown: u64) -> u64 {
    PERMUTATION.get().zip(kind).map_or(shown, |(permutation, kind)| permutation.read(kind, shown))
}

/// A permutation of the counters of ids for each kind: a balanced Feistel network over the two halves of a counter.
struct Permutation<S>(S);

impl<S: BuildHasher> Permutation<S> {
    fn show(&self, kind: Kind, raw: u64) -> u64 {
        past_zero(raw, |id| self.permute(kind, id, 0..ROUNDS))
    }

    fn read(&self, kind: Kind, shown: u64) -> u64 {
        past_zero(shown, |id| self.unpermute(kind, id))
    }

    fn unpermute(&self, kind: Kind, id: u64) -> u64 {
        // With its halves swapped before and after, a Feistel network in reverse order undoes itself.
        swap(self.permute(kind, swap(id), (0..ROUNDS).rev()))
    }

    fn permute(&self, kind: Kind, id: u64, rounds: impl Iterator<Item = u8>) -> u64 {
        let halves = (id >> HALF_BITS & HALF_MAX, id & HALF_MAX);
        let (left, right) = rounds.fold(halves, |(left, right), round| {
            (right, left ^ self.0.hash_one((kind, round, right)) & HALF_MAX)
        });
        id & !COUNTER_MAX | left << HALF_BITS | right
    }
}

/// Makes a permutation keep the counter 0, and still be one: what it takes to 0 goes where 0 would have gone.
fn past_zero(id: u64, permute: impl Fn(u64) -> u64) -> u64 {
    let is_zero = |id: u64| id & COUNTER_MAX == 0;
    match permute(id) {
        _ if is_zero(id) => id,
        zero if is_zero(zero) => permute(zero),
        other => other,
    }
}

const fn swap(id: u64) -> u64 {
    id & !COUNTER_MAX | (id & HALF_MAX) << HALF_BITS | id >> HALF_BITS & HALF_MAX
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{IdSource, epoch_of};

    /// The first ids of a boot epoch, the last ones, and some between.
    fn ids() -> impl Iterator<Item = u64> {
        let base = 7 << COUNTER_BITS;
        let counters =
            (0..2000).chain((0..2000).map(|step| step * 549_755_813)).chain(COUNTER_MAX - 2000..=COUNTER_MAX);
        counters.map(move |counter| base | counter)
    }

    #[test]
    fn shown_ids_are_unique_and_read_back() {
        let permutation = Permutation(RandomState::new());
        let mut seen = BTreeSet::new();
        for id in ids().collect::<BTreeSet<_>>() {
            let shown = permutation.show(Kind::Session, id);
            assert_eq!(permutation.read(Kind::Session, shown), id);
            let unshown = permutation.read(Kind::Session, id);
            assert_eq!(permutation.show(Kind::Session, unshown), id, "an id that no one was shown");
            assert_eq!(epoch_of(shown), 7);
            assert!(seen.insert(shown), "{shown} is shown twice");
        }
    }

    #[test]
    fn no_id_is_shown_as_zero() {
        let permutation = Permutation(RandomState::new());
        for zero in [0, 7 << COUNTER_BITS] {
            assert_eq!(permutation.show(Kind::Wait, zero), zero);
            let id = permutation.unpermute(Kind::Wait, zero);
            let shown = permutation.show(Kind::Wait, id);
            assert_ne!(shown, zero);
            assert_eq!(permutation.read(Kind::Wait, shown), id);
        }
    }

    /// Neither the order of two successive ids nor their distance tells anything: the distances spread evenly over
    /// the whole range.
    #[test]
    fn shown_ids_do_not_count() {
        const PAIRS: usize = 4000;
        const SIXTEENTH: u64 = (COUNTER_MAX + 1) / 16;
        let permutation = Permutation(RandomState::new());
        let mut source = IdSource::new(1);
        let shown: Vec<u64> = (0..=PAIRS)
            .filter_map(|_| source.next_raw())
            .map(|raw| permutation.show(Kind::Session, raw))
            .collect();
        let mut found = [0usize; 16];
        for pair in shown.windows(2) {
            let distance = pair[1].wrapping_sub(pair[0]) & COUNTER_MAX;
            found[usize::try_from(distance / SIXTEENTH).expect("below 16")] += 1;
        }
        // 250 are expected of each; ten standard deviations are 153.
        assert!(found.iter().all(|count| (97..404).contains(count)), "{found:?}");
    }

    #[test]
    fn two_starts_show_ids_differently() {
        let (first, second) = (Permutation(RandomState::new()), Permutation(RandomState::new()));
        let show = |by: &Permutation<RandomState>, id| by.show(Kind::Session, id);
        let same = ids().filter(|id| show(&first, *id) == show(&second, *id)).count();
        assert!(same < 10, "{same}");
    }

    /// No two kinds of ids can be counted by each other.
    #[test]
    fn each_kind_is_permuted_in_its_own_way() {
        let permutation = Permutation(RandomState::new());
        let shown = |kind| ids().map(|id| permutation.show(kind, id)).collect::<BTreeSet<_>>();
        let kinds = [Kind::Allocation, Kind::Session, Kind::Wait].map(shown);
        for [one, other] in [[0, 1], [0, 2], [1, 2]] {
            // Of 6,000 numbers among 2^40, hardly ever one is in two sets.
            assert!(kinds[one].intersection(&kinds[other]).count() < 3);
        }
    }
}
