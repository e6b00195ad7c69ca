//! The measure: earliest deadline first with full knowledge. It knows all arrivals, sizes and the speed of the link,
//! interrupts any copy at any time without a cost, and spends nothing on requests that it does not meet.
//!
//! It admits requests in the order of their deadlines. If the admitted ones no longer all fit, it rejects the largest
//! of those that compete for the time that is short. With equal arrivals this is the rule of Moore and Hodgson, which
//! meets the most deadlines possible. With different arrivals it need not, but it comes close: see the tests.

use super::requests::Request;

/// Which requests are ready in time. The requests are in the order of their arrival.
pub(super) fn met(requests: &[Request]) -> Vec<bool> {
    // How long the copies of each admitted request take.
    let mut admitted = vec![0; requests.len()];
    let mut by_deadline: Vec<usize> = (0..requests.len()).collect();
    by_deadline.sort_by_key(|number| requests[*number].deadline());
    for newest in by_deadline {
        admitted[newest] = requests[newest].micros();
        if let Some(rejected) = rejected(requests, &admitted, newest) {
            admitted[rejected] = 0;
        }
    }
    admitted.into_iter().map(|micros| micros > 0).collect()
}

/// Returns the request to reject after the newest one was admitted, whose deadline is the last so far. Without it all
/// others fit.
///
/// They fit if for each time the copies of all that arrive from then on end by that deadline. From the latest time for
/// which they do not, the largest one is rejected: it is at least as large as the newest, and it counts for each
/// earlier time too.
fn rejected(requests: &[Request], admitted: &[u64], newest: usize) -> Option<usize> {
    let deadline = requests[newest].deadline();
    let (mut demand, mut largest) = (0, newest);
    for number in (0..requests.len()).rev() {
        demand += admitted[number];
        if admitted[number] > admitted[largest] {
            largest = number;
        }
        if number <= newest && requests[number].arrives + demand > deadline {
            return Some(largest);
        }
    }
    None
}

/// Whether these requests can all be ready in time, if the link does nothing else: earliest deadline first, which meets
/// all deadlines wherever any order does.
#[cfg(test)]
pub(super) fn is_feasible(requests: &[Request], chosen: &[bool]) -> bool {
    use std::{cmp::Reverse, collections::BinaryHeap};

    let arrivals = requests.iter().zip(chosen).filter(|(_, chosen)| **chosen).map(|(request, _)| request);
    let mut arrivals = arrivals.peekable();
    let mut waiting = BinaryHeap::new();
    let mut now = 0;
    loop {
        let Some(Reverse((deadline, left))) = waiting.pop() else {
            let Some(next) = arrivals.next() else { return true };
            now = now.max(next.arrives);
            waiting.push(Reverse((next.deadline(), next.micros())));
            continue;
        };
        let until = arrivals.peek().map_or(u64::MAX, |next| next.arrives).max(now);
        let ends: u64 = now + left;
        now = ends.min(until);
        if ends > until {
            waiting.push(Reverse((deadline, ends - until)));
        } else if ends > deadline {
            return false;
        }
        while let Some(next) = arrivals.next_if(|next| next.arrives <= now) {
            waiting.push(Reverse((next.deadline(), next.micros())));
        }
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::Bytes;

    use super::{super::requests::copy_micros, *};
    use crate::dice::Dice;

    /// Times are in copies of one part.
    fn request(arrives: u64, parts: u64, deadline: u64) -> Request {
        let part_size = Bytes::mib(1);
        let unit = copy_micros(part_size);
        let within = (deadline - arrives) * unit;
        Request { tenant: 0, parts, part_size, arrives: arrives * unit, within }
    }

    #[test]
    fn all_are_met_where_all_fit() {
        let requests = [request(0, 2, 5), request(0, 3, 5), request(5, 1, 6)];
        assert_eq!(met(&requests), [true; 3]);
    }

    #[test]
    fn urgent_request_interrupts_a_long_one() {
        let requests = [request(0, 10, 12), request(3, 2, 5)];
        assert_eq!(met(&requests), [true; 2]);
    }

    #[test]
    fn largest_is_rejected_and_not_the_last() {
        let requests = [request(0, 4, 5), request(0, 2, 6), request(0, 2, 7), request(0, 2, 8)];
        assert_eq!(met(&requests), [false, true, true, true]);
    }

    #[test]
    fn large_request_makes_way_for_later_arrivals() {
        // Without knowledge of the future the first one would begin.
        let requests = [request(0, 8, 9), request(5, 2, 7), request(6, 2, 9)];
        assert_eq!(met(&requests), [false, true, true]);
        // One that competes for nothing stays, however large.
        let requests = [request(0, 20, 20), request(30, 2, 33), request(30, 1, 33), request(30, 1, 33)];
        assert_eq!(met(&requests), [true, false, true, true]);
    }

    #[test]
    fn request_that_never_fits_is_not_met() {
        assert_eq!(met(&[request(0, 3, 2), request(0, 1, 3)]), [false, true]);
    }

    #[test]
    fn better_order_is_rare_in_small_worlds() {
        let (mut worlds, mut best_sum, mut met_sum) = (0, 0, 0);
        for seed in 0..300 {
            let mut dice = Dice::new(seed);
            let mut draw = |_| {
                let (arrives, parts) = (dice.below(12), dice.between(1, 5));
                request(arrives, parts, arrives + parts + dice.below(8))
            };
            let mut requests: Vec<Request> = (0..9).map(&mut draw).collect();
            requests.sort_by_key(|request| request.arrives);
            let met = met(&requests);
            assert!(is_feasible(&requests, &met), "seed {seed}: {met:?} of {requests:?}");
            let subsets = (0..1_u32 << requests.len())
                .map(|bits| (0..requests.len()).map(|at| bits >> at & 1 == 1).collect::<Vec<bool>>());
            let count = |met: &[bool]| met.iter().filter(|met| **met).count();
            let best = subsets.filter(|it| is_feasible(&requests, it)).map(|it| count(&it)).max();
            let best = best.expect("nothing is feasible");
            assert!(best <= count(&met) + 1, "seed {seed}: {best} are possible of {requests:?}");
            (worlds, best_sum, met_sum) = (worlds + 1, best_sum + best, met_sum + count(&met));
        }
        assert!(met_sum * 100 >= best_sum * 99, "{met_sum} of {best_sum} in {worlds} worlds");
    }
}
