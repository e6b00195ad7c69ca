//! Over a link that notes what it is asked, and whose chunks have ended when they are asked for the second time, or at once
//! those of what is quick.

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

const CHUNK: u64 = <Noted as Link>::CHUNK;
const UNDER_WAY_MAX: usize = <Noted as Link>::UNDER_WAY_MAX;

/// A work's name, and the chunk at whose beginning something happens.
type Work = (&'static str, Option<(u64, Event)>);

#[derive(Clone, Copy, Debug)]
enum Event {
    CannotBegin,
    Fails,
    Cancelled(CopyId),
    /// Another, which the lane is told of.
    Cancels(CopyId),
    Hastens(CopyId),
}

#[derive(Debug, Default)]
struct Notes {
    begun: Vec<(&'static str, u64)>,
    under_way: usize,
    most_under_way: usize,
    /// When each was begun.
    others_under_way: Vec<usize>,
    told: Vec<(u64, Result<(), CopyError>)>,
}

struct Noted {
    notes: Rc<RefCell<Notes>>,
    table: Arc<Table>,
    queue: RefCell<Option<Sender<Order<Work>>>>,
}

struct Chunk {
    asked: u32,
    fails: bool,
}

fn broken<T>() -> Result<T, CopyError> {
    Err(DriverError::Failed("broken".to_owned()).into())
}

impl Link for Noted {
    type Work = Work;
    type Chunk = Chunk;

    fn begin(&mut self, (name, event): &Work, at: u64, _: u64) -> Result<Chunk, CopyError> {
        let mut notes = self.notes.borrow_mut();
        notes.begun.push((name, at / CHUNK));
        let event = event.and_then(|(of, event)| (of * CHUNK == at).then_some(event));
        match event {
            Some(Event::CannotBegin) => return broken(),
            Some(Event::Cancelled(copy)) => assert!(self.table.cancel(copy)),
            Some(Event::Cancels(copy)) => {
                assert!(self.table.cancel(copy));
                // The last that anybody sends.
                self.queue.take().unwrap().send(Order::Cancelled(copy)).unwrap();
            }
            Some(Event::Hastens(copy)) => {
                assert!(self.table.hasten(copy));
                assert!(!self.table.hasten(copy), "it was");
                self.queue.take().unwrap().send(Order::Hastened(copy)).unwrap();
            }
            Some(Event::Fails) | None => {}
        }
        let others = notes.under_way;
        notes.others_under_way.push(others);
        notes.under_way += 1;
        notes.most_under_way = notes.most_under_way.max(notes.under_way);
        Ok(Chunk { asked: u32::from(*name == "quick"), fails: matches!(event, Some(Event::Fails)) })
    }

    fn has_ended(&mut self, chunk: &mut Chunk) -> Result<bool, CopyError> {
        chunk.asked += 1;
        if chunk.asked < 2 {
            return Ok(false);
        }
        self.notes.borrow_mut().under_way -= 1;
        if chunk.fails { broken() } else { Ok(true) }
    }

    fn patience(&self, _: &Chunk, _: bool) -> Duration {
        Duration::ZERO
    }
}

/// Runs these, numbered from 1, each of so many chunks; those of `cancelled` are before they begin.
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
        let asked = table.ask(CopyId::from_raw(raw), Bytes::new(chunks * CHUNK), *class);
        let entry = asked.entry.unwrap();
        queue.send(Order::Copy(Job { copy: asked.copy, size: asked.size, work: *work, entry })).unwrap();
    }
    assert!(cancelled.iter().all(|raw| table.cancel(CopyId::from_raw(*raw))));
    let is_told = |event: &Option<_>| matches!(event, Some((_, Event::Cancels(_) | Event::Hastens(_))));
    let tells = works.iter().any(|((_, event), ..)| is_told(event));
    let queue = RefCell::new(tells.then_some(queue));
    let link = Noted { notes: Rc::clone(&notes), table: Arc::clone(&table), queue };
    let links = Arc::new(Links::new([LaneId::WithinHost].into_iter(), &[]));
    links.share_by(shares);
    let links = links.crossed_by(LaneId::WithinHost);
    run(link, links, &orders, |completion| {
        let Completion::Copied { copy, result } = completion else { panic!("{completion:?}") };
        assert_eq!(table.copied(copy), None, "it is out of the table before it is told");
        notes.borrow_mut().told.push((copy.get(), result));
    });
    notes.take()
}

#[test]
fn a_few_chunks_are_under_way_over_the_end_of_a_copy_and_copies_end_in_order() {
    let notes = run_all(&[(("a", None), 4), (("b", None), 4), (("c", None), 0), (("d", None), 4)], &[]);
    let chunks = |name| (0..4).map(move |chunk| (name, chunk));
    assert_eq!(notes.begun, chunks("a").chain(chunks("b")).chain(chunks("d")).collect::<Vec<_>>());
    assert_eq!(notes.most_under_way, UNDER_WAY_MAX);
    assert_eq!(notes.told, [(3, Ok(())), (1, Ok(())), (2, Ok(())), (4, Ok(()))], "the third is empty");
}

#[test]
fn what_is_hastened_waits_for_what_is_under_way_alone() {
    let hastens = Event::Hastens(CopyId::from_raw(3));
    let works = [(("a", Some((1, hastens))), 20), (("b", None), 20), (("c", None), 4)];
    let notes = run_classes(&works.map(|(work, chunks)| (work, chunks, CopyClass::WriteBack)), &[]);
    let place = notes.begun.iter().position(|(name, _)| *name == "c").unwrap();
    assert!((2..=BACKGROUND_UNDER_WAY_MAX).contains(&place), "{:?}", notes.begun);
    let of_c = notes.begun[place..place + 5].iter().filter(|(name, _)| *name == "c").count();
    assert_eq!(of_c, 4, "beside the share of what nobody waits for: {:?}", notes.begun);
    assert_eq!(notes.told, [(3, Ok(())), (1, Ok(())), (2, Ok(()))]);
}

#[test]
fn what_nobody_waits_for_has_a_small_share_and_less_of_it_is_under_way() {
    let works = [
        (("a", None), 3, CopyClass::WriteBack),
        (("b", None), 30, CopyClass::Demand),
        (("c", None), 10, CopyClass::Demand),
    ];
    let notes = run_classes(&works, &[]);
    let background: Vec<usize> =
        notes.begun.iter().enumerate().filter(|(_, (name, _))| *name == "a").map(|(at, _)| at).collect();
    // A fifth of the bytes, of chunks that are half as large.
    assert_eq!(background.len(), 6, "{background:?}");
    assert!(background[0] >= 2 && background[5] < 24, "{background:?}");
    let alone = run_classes(&[(("a", None), 20, CopyClass::WriteBack)], &[]);
    assert_eq!(alone.most_under_way, BACKGROUND_UNDER_WAY_MAX);
}

/// Of a class that waits as long as another, in percent of the bytes that were begun while both wait.
fn percent(shares: (u32, u32, u32), other: CopyClass, class: CopyClass) -> usize {
    let shares = Shares::new(shares.0, shares.1, shares.2).unwrap();
    let works = [(("other", None), 200, other), (("it", None), 200, class)];
    let notes = run_by(shares, &works, &[]);
    let length = |name: &str| if name == "other" && other == CopyClass::Demand { 2 } else { 1 };
    let last = ["other", "it"].map(|name| notes.begun.iter().rposition(|(it, _)| *it == name).unwrap());
    let both = &notes.begun[..last[0].min(last[1])];
    let had: usize = both.iter().filter(|(name, _)| *name == "it").count();
    had * 100 / both.iter().map(|(name, _)| length(name)).sum::<usize>()
}

#[test]
fn a_share_is_had_whatever_is_under_way() {
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
fn what_nobody_waits_for_is_under_way_in_few_chunks_whatever_it_lacks() {
    let works = [(("a", None), 20, CopyClass::Prefetch), (("b", None), 20, CopyClass::WriteBack)];
    let notes = run_by(Shares::new(0, 50, 50).unwrap(), &works, &[]);
    assert_eq!(notes.most_under_way, BACKGROUND_UNDER_WAY_MAX);
}

/// However many have ended meanwhile.
#[test]
fn each_that_has_ended_makes_room_for_another_before_the_next_is_asked_for() {
    let notes = run_all(&[(("quick", None), 40)], &[]);
    let (first, others) = notes.others_under_way.split_at(UNDER_WAY_MAX);
    assert_eq!(first, (0..UNDER_WAY_MAX).collect::<Vec<_>>());
    assert_eq!(others, vec![UNDER_WAY_MAX - 1; 40 - UNDER_WAY_MAX]);
    assert_eq!(notes.told, [(1, Ok(()))]);
}

#[test]
fn what_failed_goes_no_further_and_is_told_once_all_of_it_has_ended() {
    let works =
        [(("a", Some((2, Event::CannotBegin))), 20), (("b", Some((0, Event::Fails))), 20), (("c", None), 1)];
    let notes = run_all(&works, &[]);
    let of = |name| notes.begun.iter().filter(|(of, _)| *of == name).count();
    assert_eq!(of("a"), 3);
    assert!(of("b") <= 2 * UNDER_WAY_MAX, "{}", of("b"));
    assert_eq!(notes.under_way, 0);
    let failed = broken;
    assert_eq!(notes.told, [(1, failed()), (2, failed()), (3, Ok(()))]);
}

#[test]
fn what_is_cancelled_before_it_begins_waits_for_nobody() {
    let notes = run_all(&[(("a", None), 20), (("b", None), 20), (("c", None), 1)], &[2]);
    assert!(notes.begun.iter().all(|(name, _)| *name != "b"));
    assert_eq!(notes.told, [(2, Err(CopyError::Cancelled)), (1, Ok(())), (3, Ok(()))]);
}

#[test]
fn what_is_cancelled_while_it_waits_waits_for_nobody() {
    let other = Event::Cancels(CopyId::from_raw(2));
    let notes = run_all(&[(("a", Some((3, other))), 20), (("b", None), 20), (("c", None), 1)], &[]);
    assert!(notes.begun.iter().all(|(name, _)| *name != "b"));
    assert_eq!(notes.told, [(2, Err(CopyError::Cancelled)), (1, Ok(())), (3, Ok(()))]);
}

#[test]
fn what_is_cancelled_under_way_begins_nothing_more() {
    let own = Event::Cancelled(CopyId::from_raw(1));
    let notes = run_all(&[(("a", Some((3, own))), 20), (("b", None), 1)], &[]);
    assert_eq!(notes.begun, [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0)]);
    assert_eq!(notes.told, [(1, Err(CopyError::Cancelled)), (2, Ok(()))]);
}

#[test]
fn what_is_cancelled_once_all_of_it_has_begun_is_done() {
    let notes = run_all(&[(("a", Some((3, Event::Cancelled(CopyId::from_raw(1))))), 4)], &[]);
    assert_eq!(notes.told, [(1, Ok(()))]);
}

#[test]
fn an_id_is_free_again_once_it_was_told() {
    let table = Arc::new(Table::default());
    let ask = || table.ask(CopyId::from_raw(1), Bytes::mib(2), CopyClass::Demand).entry;
    let first = ask().unwrap();
    first.add(7);
    assert_eq!(table.copied(CopyId::from_raw(1)), Some(Bytes::new(7)));
    assert!(ask().is_err());
    assert_eq!(table.copied(CopyId::from_raw(1)), Some(Bytes::new(7)), "who was refused changes nothing");
    drop(first);
    assert!(ask().is_ok());
}
