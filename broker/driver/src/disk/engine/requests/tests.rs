//! Every order in which the requests of an operation can end.

use std::{fs::File, sync::Arc};

use super::*;
use crate::disk::{ALIGNMENT, engine::DiskDirection};

const REFUSED: Errno = Errno::PERM;

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Whole,
    Fails,
    NeverTaken,
}

const ALL: [How; 3] = [How::Whole, How::Fails, How::NeverTaken];

fn op(tag: u64, requests: usize) -> Op<()> {
    let file = Arc::new(File::open("/dev/null").unwrap().into());
    Op { tag, file, direction: DiskDirection::FromDisk, at: 0, length: requests * ALIGNMENT, buffer: () }
}

fn split(requests: usize) -> impl Iterator<Item = Request> {
    (0..requests).map(|it| Request::new(it * ALIGNMENT, ALIGNMENT))
}

fn end(requests: &mut Requests<()>, slot: usize, how: How) -> Option<Answer<()>> {
    let answer = match how {
        How::Whole => Ok(ALIGNMENT),
        How::Fails => Err(Errno::IO),
        How::NeverTaken => return requests.refuse(slot, REFUSED),
    };
    match requests.answered(slot, answer) {
        Step::Ended(answer) => answer,
        Step::Again => panic!("that is all of it"),
    }
}

/// All orders of so many requests.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let insert = |order: Vec<usize>| {
        (0..count).map(move |at| {
            let mut order = order.clone();
            order.insert(at, count - 1);
            order
        })
    };
    orders(count - 1).into_iter().flat_map(insert).collect()
}

/// All combinations of ends for so many requests.
fn ends(count: usize) -> Vec<Vec<How>> {
    (0..count).fold(vec![Vec::new()], |all, _| {
        let with = |ends: Vec<How>| ALL.map(|how| [&ends[..], &[how]].concat());
        all.into_iter().flat_map(with).collect()
    })
}

/// In every case an operation is given back only after its last request has ended, and never with the answer of
/// another.
#[test]
fn an_operation_is_answered_after_its_last_request() {
    let mut seen = 0;
    for count in 1..=3 {
        for (ends, order) in ends(count).iter().flat_map(|it| orders(count).into_iter().map(move |o| (it, o)))
        {
            let mut requests = Requests::new(2, 3);
            let slots = requests.begin(op(1, count), split(count));
            let other = requests.begin(op(2, 1), split(1));
            let (last, before) = order.split_last().unwrap();
            for at in before {
                let early = end(&mut requests, slots[*at], ends[*at]);
                assert!(early.is_none(), "{ends:?} in the order {order:?}: some are still the kernel's");
                assert!(slots.iter().any(|slot| requests.get(*slot).is_some_and(|(op, _)| op.tag == 1)));
            }
            let answer = end(&mut requests, slots[*last], ends[*last]).expect("that was the last");
            let case = format!("{ends:?} in the order {order:?}");
            match answer {
                Answer::NotTaken(op, why) => {
                    assert!(ends.contains(&How::NeverTaken), "{case}");
                    assert_eq!((op.tag, why), (1, REFUSED), "{case}");
                }
                Answer::Done(done) => {
                    assert!(!ends.contains(&How::NeverTaken), "{case}");
                    let flaw = ends.contains(&How::Fails).then_some(IoFlaw::Failed(Errno::IO));
                    assert_eq!((done.tag, done.result), (1, flaw.map_or(Ok(()), Err)), "{case}");
                }
            }
            assert!(!requests.is_empty() && requests.get(other[0]).is_some(), "the other is under way");
            assert!(matches!(end(&mut requests, other[0], How::Whole), Some(Answer::Done(_))));
            assert!(requests.is_empty());
            seen += 1;
        }
    }
    assert_eq!(seen, 3 + 9 * 2 + 27 * 6);
}

/// A request whose rest the kernel refuses counts as refused. The accepted part is waited for.
#[test]
fn a_partly_done_request_counts_as_refused() {
    let mut requests = Requests::new(1, 2);
    let slots =
        requests.begin(op(1, 2), [Request::new(0, 2 * ALIGNMENT), Request::new(8192, 4096)].into_iter());
    assert!(matches!(requests.answered(slots[0], Ok(ALIGNMENT)), Step::Again));
    assert!(requests.refuse(slots[0], REFUSED).is_none(), "the other is still the kernel's");
    let answered = requests.answered(slots[1], Ok(ALIGNMENT));
    assert!(matches!(answered, Step::Ended(Some(Answer::NotTaken(_, REFUSED)))));
}

/// The flaw at the lowest offset is reported, whichever came first in time.
#[test]
fn the_flaw_at_the_lowest_offset_is_reported() {
    for order in orders(3) {
        let mut requests = Requests::new(1, 3);
        let slots = requests.begin(op(1, 3), split(3));
        let answers = [Ok(ALIGNMENT), Ok(100), Err(Errno::IO)];
        let mut reported = None;
        for at in &order {
            if let Step::Ended(Some(Answer::Done(done))) = requests.answered(slots[*at], answers[*at]) {
                reported = Some(done.result);
            }
        }
        assert_eq!(reported, Some(Err(IoFlaw::Short(ALIGNMENT + 100))), "{order:?}");
    }
}
