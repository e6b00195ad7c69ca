//! Parts on their way between tiers, as operators see them: how far a copy has come, and what ended lately.
//!
//! The driver alone knows how far a copy is. That a part has ended its way the core tells once and forgets, so the last of
//! them are kept here. When and why it set out is not told with it: that is read from the core after each turn of the
//! reactor that had memory made for a move. The price is a look at all that moves then, once a turn and not once a move.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use broker_core::{Cause, MoveView, Notice, PartRef, Tier, Time};
use broker_driver::Driver;
use vramd_proto::v1::move_event::Change;
use vramd_types::{Bytes, CopyId, DeviceIndex, ExtentId};

use crate::reactor::Clock;

/// Of those that ended, the latest are kept.
pub const ENDED_MAX: usize = 256;

/// Clones are the same.
#[derive(Clone, Debug)]
pub struct Moves(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    driver: Arc<dyn Driver>,
    clock: Clock,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    begun: BTreeMap<PartRef, (Time, Cause)>,
    /// The latest first.
    ended: VecDeque<Ended>,
}

/// A move that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub part: PartRef,
    pub tenant: Arc<str>,
    pub device: DeviceIndex,
    pub tier: Tier,
    pub bytes: Bytes,
    pub cause: Option<Cause>,
    pub outcome: Change,
    /// Why it failed.
    pub detail: String,
    pub began: Time,
    pub took: Duration,
}

/// An extent is copied into once in its life, so its id serves for the copy's too.
pub(crate) fn copy_into(extent: ExtentId) -> CopyId {
    CopyId::from_raw(extent.get())
}

impl Moves {
    /// `clock` is the broker's.
    pub fn new(driver: Arc<dyn Driver>, clock: Clock) -> Self {
        Self(Arc::new(Shared { driver, clock, book: Mutex::default() }))
    }

    /// How much has arrived in an extent; `None` while nothing is being copied there.
    pub(crate) fn copied(&self, extent: ExtentId) -> Option<Bytes> {
        self.0.driver.copied_bytes(copy_into(extent))
    }

    pub(crate) fn uuid_of(&self, device: DeviceIndex) -> String {
        let info = self.0.driver.devices().get(usize::from(device.0));
        info.map(|info| info.uuid.clone()).unwrap_or_default()
    }

    /// All that move now.
    pub(crate) fn seen(&self, moving: &[MoveView]) {
        self.book().begun = moving.iter().map(|it| (it.part, (it.since, it.cause))).collect();
    }

    /// Keeps it, if it is the end of a move.
    pub(crate) fn told(&self, notice: &Notice) {
        let (outcome, detail, (part, tenant, device, tier, bytes)) = match notice {
            Notice::Moved { part, tenant, device, tier, bytes } => {
                (Change::Moved, "", (part, tenant, device, tier, bytes))
            }
            Notice::MoveFailed { part, tenant, device, tier, bytes, problem } => {
                (Change::Failed, problem.as_str(), (part, tenant, device, tier, bytes))
            }
            Notice::MoveStopped { part, tenant, device, tier, bytes } => {
                (Change::Stopped, "", (part, tenant, device, tier, bytes))
            }
            _ => return,
        };
        let now = self.0.clock.now();
        let mut book = self.book();
        let (began, cause) = book.begun.remove(part).map_or((now, None), |(at, why)| (at, Some(why)));
        let took = Duration::from_micros(now.as_micros().saturating_sub(began.as_micros()));
        book.ended.truncate(ENDED_MAX - 1);
        book.ended.push_front(Ended {
            part: *part,
            tenant: Arc::clone(tenant),
            device: *device,
            tier: *tier,
            bytes: *bytes,
            cause,
            outcome,
            detail: detail.to_owned(),
            began,
            took,
        });
    }

    /// The last that ended, the latest first; of one tenant, or of all.
    pub(crate) fn ended(&self, tenant: Option<&str>) -> Vec<Ended> {
        let book = self.book();
        let of = |ended: &&Ended| tenant.is_none_or(|tenant| *ended.tenant == *tenant);
        book.ended.iter().filter(of).cloned().collect()
    }

    /// The reactor and who lists: neither has it for long.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use broker_core::MigrationState;
    use broker_driver::{DeviceInfo, ExtentKind, Submission};
    use vramd_types::{AllocationId, HostNode, PartIndex};

    use super::*;

    /// Of every copy one MiB has arrived.
    #[derive(Debug)]
    struct OneMiB(Vec<DeviceInfo>);

    impl Driver for OneMiB {
        fn name(&self) -> &'static str {
            "one-mib"
        }

        fn devices(&self) -> &[DeviceInfo] {
            &self.0
        }

        fn makes(&self, _: ExtentKind) -> bool {
            false
        }

        fn host_node(&self, _: DeviceIndex) -> HostNode {
            HostNode(0)
        }

        fn copied_bytes(&self, copy: CopyId) -> Option<Bytes> {
            (copy.get() == 5).then_some(Bytes::mib(1))
        }

        fn submit(&self, submission: Submission) {
            panic!("nobody asks for {submission:?}");
        }
    }

    /// Of one device, `GPU-0`, where copy 5 alone is under way.
    pub(crate) fn moves() -> Moves {
        let (uuid, name) = ("GPU-0".to_owned(), String::new());
        let info = DeviceInfo { uuid, name, total: Bytes::mib(4), context: Bytes::ZERO };
        Moves::new(Arc::new(OneMiB(vec![info])), Clock::start())
    }

    fn part(part: u32) -> PartRef {
        PartRef { allocation: AllocationId::from_raw(7), part: PartIndex(part) }
    }

    fn moving(part: PartRef) -> MoveView {
        MoveView {
            part,
            tenant: "a".to_owned(),
            device: "GPU-0".to_owned(),
            to: Tier::Host,
            bytes: Bytes::mib(2),
            cause: Cause::Operator,
            state: MigrationState::Copying,
            since: Time::START,
            extent: ExtentId::from_raw(5),
        }
    }

    pub(crate) fn stopped(index: u32, tenant: &str) -> Notice {
        let (device, tier, bytes) = (DeviceIndex(0), Tier::Host, Bytes::mib(2));
        Notice::MoveStopped { part: part(index), tenant: tenant.into(), device, tier, bytes }
    }

    #[tokio::test(start_paused = true)]
    async fn what_ended_says_why_it_began_and_how_long_it_took() {
        let moves = moves();
        moves.seen(&[moving(part(1)), moving(part(2))]);
        tokio::time::advance(Duration::from_millis(30)).await;
        moves.told(&stopped(1, "a"));
        moves.told(&Notice::Draining { draining: true });
        let ended = moves.ended(None);
        let [one] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!((one.cause, one.outcome), (Some(Cause::Operator), Change::Stopped));
        assert_eq!((one.began, one.took), (Time::START, Duration::from_millis(30)));
        // It sets out once more, and nobody has seen when.
        moves.told(&stopped(1, "a"));
        assert_eq!((moves.ended(None)[0].cause, moves.ended(None)[0].took), (None, Duration::ZERO));
    }

    #[tokio::test]
    async fn the_latest_are_kept_and_told_first() {
        let moves = moves();
        for index in 0..300 {
            moves.told(&stopped(index, if index % 2 == 0 { "a" } else { "b" }));
        }
        let parts: Vec<_> = moves.ended(None).iter().map(|ended| ended.part.part.0).collect();
        assert_eq!(parts, (44..300).rev().collect::<Vec<_>>());
        assert_eq!(moves.ended(Some("b")).len(), 128);
        assert_eq!(moves.ended(Some("c")), []);
    }

    #[tokio::test]
    async fn the_driver_says_how_far_a_copy_is() {
        let moves = moves();
        assert_eq!(moves.copied(ExtentId::from_raw(5)), Some(Bytes::mib(1)));
        assert_eq!(moves.copied(ExtentId::from_raw(6)), None);
        assert_eq!(
            (moves.uuid_of(DeviceIndex(0)).as_str(), moves.uuid_of(DeviceIndex(1)).as_str()),
            ("GPU-0", "")
        );
    }
}
