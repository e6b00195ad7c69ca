//! Over a mover that notes its calls. Its chunks end at the second poll; those of a quick copy at the first.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
};

use vramd_types::Shares;

use super::*;
use crate::{
    DriverError,
    copies::{LaneId, Links, Table},
};

const CHUNK: u64 = <Noted as Mover>::CHUNK;
const IN_FLIGHT_MAX: usize = <Noted as Mover>::IN_FLIGHT_MAX;

/// The name of a copy, and the chunk at whose beginning an event happens.
type Work = (&'static str, Option<(u64, Event)>);

#[derive(Clone, Copy, Debug)]
enum Event {
    CannotBegin,
    Fails,
    Cancelled(CopyId),
    /// Cancels another copy, and sends the lane the order.
    Cancels(CopyId),
    Hastens(CopyId),
}

#[derive(Debug, Default)]
struct Notes {
    active: Vec<(&'static str, u64)>,
    in_flight: usize,
    in_flight_max: usize,
    /// How many others were in flight when each chunk began.
    others_in_flight: Vec<usize>,
    reported: Vec<(u64, Result<(), CopyError>)>,
}

struct Noted {
    notes: Rc<RefCell<Notes>>,
    table: Arc<Table>,
    queue: RefCell<Option<Sender<Order<Work>>>>,
}

struct Chunk {
    requested: u32,
    fails: bool,
}

fn broken<T>() -> Result<T, CopyError> {
    Err(DriverError::Failed("broken".to_owned()).into())
}

impl Mover for Noted {
    type Work = Work;
    type Chunk = Chunk;

    fn begin(&mut self, (name, event): &Work, at: u64, _: u64) -> Result<Chunk, CopyError> {
        let mut notes = self.notes.borrow_mut();
        notes.active.push((name, at / CHUNK));
        let event = event.and_then(|(of, event)| (of * CHUNK == at).then_some(event));
        match event {
            Some(Event::CannotBegin) => return broken(),
            Some(Event::Cancelled(copy)) => assert!(self.table.cancel(copy)),
            Some(Event::Cancels(copy)) => {
                assert!(self.table.cancel(copy));
                // The last order.
                self.queue.take().unwrap().send(Order::Cancelled(copy)).unwrap();
            }
            Some(Event::Hastens(copy)) => {
                assert!(self.table.hasten(copy));
                assert!(!self.table.hasten(copy), "it was");
                self.queue.take().unwrap().send(Order::Hastened(copy)).unwrap();
            }
            Some(Event::Fails) | None => {}
        }
        let others = notes.in_flight;
        notes.others_in_flight.push(others);
        notes.in_flight += 1;
        notes.in_flight_max = notes.in_flight_max.max(notes.in_flight);
        Ok(Chunk { requested: u32::from(*name == "quick"), fails: matches!(event, Some(Event::Fails)) })
    }

    fn poll(&mut self, chunk: &mut Chunk) -> Result<bool, CopyError> {
        chunk.requested += 1;
        if chunk.requested < 2 {
            return Ok(false);
        }
        self.notes.borrow_mut().in_flight -= 1;
        if chunk.fails { broken() } else { Ok(true) }
    }

    fn poll_after(&self, _: &Chunk, _: bool) -> Duration {
        Duration::ZERO
    }
}

/// Runs these copies, numbered from 1, of so many chunks each. The `cancelled` ones are cancelled before they
/// begin.
fn run_all(works: &[(Work, u64)], cancelled: &[u64]) -> Notes {
    let works: Vec<_> = works.iter().map(|(work, chunks)| (*work, *chunks, CopyClass::Demand)).collect();
    run_classes(&works, cancelled)
}

fn run_classes(works: &[(Work, u64, CopyClass)], cancelled: &[u64]) -> Notes {
    run_by(Shares::default(), works, cancelled)
}

fn run_by(shares: Shares, works: &[(Work, u64, CopyClass)], cancelled: &[u64]) -> Notes {
    let (notes, table) = (Rc::new(RefCell::new(Notes::default())), Arc::new(Table::default()));
    let (queue, orders) = channel();
    for (raw, (work, chunks, class)) in (1..).zip(works) {
        let requested = table.register(CopyId::from_raw(raw), Bytes::new(chunks * CHUNK), *class);
        let entry = requested.entry.unwrap();
        queue
            .send(Order::Copy(Job { copy: requested.copy, size: requested.size, work: *work, entry }))
            .unwrap();
    }
    assert!(cancelled.iter().all(|raw| table.cancel(CopyId::from_raw(*raw))));
    let is_told = |event: &Option<_>| matches!(event, Some((_, Event::Cancels(_) | Event::Hastens(_))));
    let reports = works.iter().any(|((_, event), ..)| is_told(event));
    let queue = RefCell::new(reports.then_some(queue));
    let mover = Noted { notes: Rc::clone(&notes), table: Arc::clone(&table), queue };
    let links = Arc::new(Links::new([LaneId::WithinHost].into_iter(), &[]));
    links.set_shares(shares);
    let links = links.links_of(LaneId::WithinHost);
    run(mover, links, &orders, |completion| {
        let Completion::Copied { copy, result } = completion else { panic!("{completion:?}") };
        assert_eq!(table.copied(copy), None, "it leaves the table before it is reported");
        notes.borrow_mut().reported.push((copy.get(), result));
    });
    notes.take()
}

#[test]
fn chunks_of_two_copies_are_in_flight_and_copies_end_in_order() {
    let notes = run_all(&[(("a", None), 4), (("b", None), 4), (("c", None), 0), (("d", None), 4)], &[]);
    let chunks = |name| (0..4).map(move |chunk| (name, chunk));
    assert_eq!(notes.active, chunks("a").chain(chunks("b")).chain(chunks("d")).collect::<Vec<_>>());
    assert_eq!(notes.in_flight_max, IN_FLIGHT_MAX);
    assert_eq!(notes.reported, [(3, Ok(())), (1, Ok(())), (2, Ok(())), (4, Ok(()))], "the third is empty");
}

#[test]
fn a_hastened_copy_waits_only_for_chunks_in_flight() {
    let hastens = Event::Hastens(CopyId::from_raw(3));
    let works = [(("a", Some((1, hastens))), 20), (("b", None), 20), (("c", None), 4)];
    let notes = run_classes(&works.map(|(work, chunks)| (work, chunks, CopyClass::WriteBack)), &[]);
    let place = notes.active.iter().position(|(name, _)| *name == "c").unwrap();
    assert!((2..=BACKGROUND_IN_FLIGHT_MAX).contains(&place), "{:?}", notes.active);
    let of_c = notes.active[place..place + 5].iter().filter(|(name, _)| *name == "c").count();
    assert_eq!(of_c, 4, "beside the share of background copies: {:?}", notes.active);
    assert_eq!(notes.reported, [(3, Ok(())), (1, Ok(())), (2, Ok(()))]);
}

#[test]
fn a_background_copy_has_its_share_and_few_chunks_in_flight() {
    let works = [
        (("a", None), 3, CopyClass::WriteBack),
        (("b", None), 30, CopyClass::Demand),
        (("c", None), 10, CopyClass::Demand),
    ];
    let notes = run_classes(&works, &[]);
    let background: Vec<usize> =
        notes.active.iter().enumerate().filter(|(_, (name, _))| *name == "a").map(|(at, _)| at).collect();
    // A fifth of the bytes, in chunks half as large.
    assert_eq!(background.len(), 6, "{background:?}");
    assert!(background[0] >= 2 && background[5] < 24, "{background:?}");
    let alone = run_classes(&[(("a", None), 20, CopyClass::WriteBack)], &[]);
    assert_eq!(alone.in_flight_max, BACKGROUND_IN_FLIGHT_MAX);
}

/// The share of a class beside another that waits as long, in percent of the bytes begun while both wait.
fn percent(shares: (u32, u32, u32), other: CopyClass, class: CopyClass) -> usize {
    let shares = Shares::new(shares.0, shares.1, shares.2).unwrap();
    let works = [(("other", None), 200, other), (("it", None), 200, class)];
    let notes = run_by(shares, &works, &[]);
    let length = |name: &str| if name == "other" && other == CopyClass::Demand { 2 } else { 1 };
    let last = ["other", "it"].map(|name| notes.active.iter().rposition(|(it, _)| *it == name).unwrap());
    let both = &notes.active[..last[0].min(last[1])];
    let had: usize = both.iter().filter(|(name, _)| *name == "it").count();
    had * 100 / both.iter().map(|(name, _)| length(name)).sum::<usize>()
}

#[test]
fn a_class_gets_its_share_with_chunks_in_flight() {
    for (shares, other, least) in [
        ((30, 50, 20), CopyClass::Demand, 20),
        ((50, 0, 50), CopyClass::Demand, 50),
        ((10, 20, 70), CopyClass::Demand, 70),
        ((30, 50, 20), CopyClass::Prefetch, 20),
        ((0, 50, 50), CopyClass::Prefetch, 50),
        ((10, 20, 70), CopyClass::Prefetch, 70),
    ] {
        let had = percent(shares, other, CopyClass::WriteBack);
        assert!(had + 3 >= least && had <= least + 3, "{had} percent beside {other:?} by {shares:?}");
    }
}

#[test]
fn background_chunks_in_flight_are_few_even_if_a_share_is_owed() {
    let works = [(("a", None), 20, CopyClass::Prefetch), (("b", None), 20, CopyClass::WriteBack)];
    let notes = run_by(Shares::new(0, 50, 50).unwrap(), &works, &[]);
    assert_eq!(notes.in_flight_max, BACKGROUND_IN_FLIGHT_MAX);
}

/// However many chunks have ended meanwhile.
#[test]
fn each_ended_chunk_is_replaced_before_the_next_is_polled() {
    let notes = run_all(&[(("quick", None), 40)], &[]);
    let (first, others) = notes.others_in_flight.split_at(IN_FLIGHT_MAX);
    assert_eq!(first, (0..IN_FLIGHT_MAX).collect::<Vec<_>>());
    assert_eq!(others, vec![IN_FLIGHT_MAX - 1; 40 - IN_FLIGHT_MAX]);
    assert_eq!(notes.reported, [(1, Ok(()))]);
}

#[test]
fn a_failed_copy_begins_nothing_more_and_is_reported_once_it_ended() {
    let works =
        [(("a", Some((2, Event::CannotBegin))), 20), (("b", Some((0, Event::Fails))), 20), (("c", None), 1)];
    let notes = run_all(&works, &[]);
    let of = |name| notes.active.iter().filter(|(of, _)| *of == name).count();
    assert_eq!(of("a"), 3);
    assert!(of("b") <= 2 * IN_FLIGHT_MAX, "{}", of("b"));
    assert_eq!(notes.in_flight, 0);
    let failed = broken;
    assert_eq!(notes.reported, [(1, failed()), (2, failed()), (3, Ok(()))]);
}

#[test]
fn a_copy_cancelled_before_it_is_queued_is_answered_at_once() {
    let notes = run_all(&[(("a", None), 20), (("b", None), 20), (("c", None), 1)], &[2]);
    assert!(notes.active.iter().all(|(name, _)| *name != "b"));
    assert_eq!(notes.reported, [(2, Err(CopyError::Cancelled)), (1, Ok(())), (3, Ok(()))]);
}

#[test]
fn a_copy_cancelled_in_the_queue_is_answered_at_once() {
    let other = Event::Cancels(CopyId::from_raw(2));
    let notes = run_all(&[(("a", Some((3, other))), 20), (("b", None), 20), (("c", None), 1)], &[]);
    assert!(notes.active.iter().all(|(name, _)| *name != "b"));
    assert_eq!(notes.reported, [(2, Err(CopyError::Cancelled)), (1, Ok(())), (3, Ok(()))]);
}

#[test]
fn a_copy_cancelled_in_flight_begins_no_more_chunks() {
    let own = Event::Cancelled(CopyId::from_raw(1));
    let notes = run_all(&[(("a", Some((3, own))), 20), (("b", None), 1)], &[]);
    assert_eq!(notes.active, [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0)]);
    assert_eq!(notes.reported, [(1, Err(CopyError::Cancelled)), (2, Ok(()))]);
}

#[test]
fn a_copy_cancelled_once_all_chunks_have_begun_is_done() {
    let notes = run_all(&[(("a", Some((3, Event::Cancelled(CopyId::from_raw(1))))), 4)], &[]);
    assert_eq!(notes.reported, [(1, Ok(()))]);
}

#[test]
fn a_copy_id_is_free_again_once_it_is_reported() {
    let table = Arc::new(Table::default());
    let ask = || table.register(CopyId::from_raw(1), Bytes::mib(2), CopyClass::Demand).entry;
    let first = ask().unwrap();
    first.add(7);
    assert_eq!(table.copied(CopyId::from_raw(1)), Some(Bytes::new(7)));
    assert!(ask().is_err());
    assert_eq!(
        table.copied(CopyId::from_raw(1)),
        Some(Bytes::new(7)),
        "a refused registration changes nothing"
    );
    drop(first);
    assert!(ask().is_ok());
}
