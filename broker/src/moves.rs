//! Lists the moves between tiers for operators: the progress of copies, and the moves that ended last.
//!
//! Only the driver knows how much of a copy is done. The core reports the end of a move once and forgets it, so the
//! last ones are kept here.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use broker_core::{Cause, Notice, PartRef, Tier, Time};
use broker_driver::{Driver, LinkFacts, Traffic};
use vramd_proto::v1::move_event::Change;
use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::reactor::{Clock, Copies};

/// The number of finished moves that are kept.
pub const ENDED_MAX: usize = 256;

/// Why a write-back is of no use.
pub(crate) const WRITTEN_SINCE: &str = "it was written meanwhile";

/// Clones are the same.
#[derive(Clone, Debug)]
pub struct Moves(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// A weak reference: connections have this, and those of clients that read nothing last until the process ends.
    driver: Weak<dyn Driver>,
    uuids: Vec<String>,
    links: Vec<LinkFacts>,
    clock: Clock,
    copies: Copies,
    /// The latest first.
    ended: Mutex<VecDeque<FinishedMove>>,
}

/// A move that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedMove {
    pub part: PartRef,
    pub tenant: Arc<str>,
    pub device: DeviceIndex,
    pub from: Tier,
    pub tier: Tier,
    pub bytes: Bytes,
    pub cause: Cause,
    pub outcome: Change,
    /// Why the move failed, or why the write-back is of no use.
    pub detail: String,
    pub began: Time,
    pub took: Duration,
}

impl Moves {
    /// `clock` is the broker's clock.
    pub fn new(driver: &Arc<dyn Driver>, clock: Clock, copies: Copies) -> Self {
        Self(Arc::new(Shared {
            driver: Arc::downgrade(driver),
            uuids: driver.devices().iter().map(|info| info.uuid.clone()).collect(),
            links: driver.links().to_vec(),
            clock,
            copies,
            ended: Mutex::default(),
        }))
    }

    /// Returns the bytes copied into an extent; `None` while no copy into it is in progress.
    pub(crate) fn copied(&self, extent: ExtentId) -> Option<Bytes> {
        self.0.driver.upgrade()?.copied_bytes(self.0.copies.copy_to_extent(extent)?)
    }

    pub(crate) fn uuid_of(&self, device: DeviceIndex) -> String {
        self.0.uuids.get(usize::from(device.0)).cloned().unwrap_or_default()
    }

    pub(crate) fn links(&self) -> &[LinkFacts] {
        &self.0.links
    }

    pub(crate) fn traffic(&self) -> Vec<Traffic> {
        self.0.driver.upgrade().map(|driver| driver.traffic()).unwrap_or_default()
    }

    /// Records the end of a move, if the notice reports one.
    pub(crate) fn record_ended(&self, notice: &Notice) {
        let (outcome, detail, (part, tenant, device, (from, tier), bytes, cause, began)) = match notice {
            Notice::Moved { part, tenant, device, from, tier, bytes, cause, began, .. } => {
                (Change::Moved, "", (part, tenant, device, (from, tier), bytes, cause, began))
            }
            Notice::WrittenBack { part, tenant, device, tier, bytes, began, clean } => {
                let detail = if *clean { "" } else { WRITTEN_SINCE };
                let tiers = (&Tier::Device, tier);
                (Change::WrittenBack, detail, (part, tenant, device, tiers, bytes, &Cause::WriteBack, began))
            }
            Notice::Dropped { part, tenant, device, tier, bytes, cause, began, .. } => {
                (Change::Dropped, "", (part, tenant, device, (&Tier::Device, tier), bytes, cause, began))
            }
            Notice::MoveFailed { part, tenant, device, from, tier, bytes, cause, began, problem } => {
                (Change::Failed, problem.as_str(), (part, tenant, device, (from, tier), bytes, cause, began))
            }
            Notice::MoveStopped { part, tenant, device, from, tier, bytes, cause, began } => {
                (Change::Stopped, "", (part, tenant, device, (from, tier), bytes, cause, began))
            }
            _ => return,
        };
        let now = self.0.clock.now();
        let took = Duration::from_micros(now.as_micros().saturating_sub(began.as_micros()));
        let mut ended = self.lock();
        ended.truncate(ENDED_MAX - 1);
        ended.push_front(FinishedMove {
            part: *part,
            tenant: Arc::clone(tenant),
            device: *device,
            from: *from,
            tier: *tier,
            bytes: *bytes,
            cause: *cause,
            outcome,
            detail: detail.to_owned(),
            began: *began,
            took,
        });
    }

    /// Lists the finished moves of one tenant or of all, the latest first.
    pub(crate) fn ended(&self, tenant: Option<&str>) -> Vec<FinishedMove> {
        let of = |ended: &&FinishedMove| tenant.is_none_or(|tenant| *ended.tenant == *tenant);
        self.lock().iter().filter(of).cloned().collect()
    }

    /// Locks the list. The reactor and the callers that list keep the lock only briefly.
    fn lock(&self) -> MutexGuard<'_, VecDeque<FinishedMove>> {
        self.0.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::OnceLock;

    use broker_driver::{DeviceInfo, ExtentKind, Submission};
    use vramd_types::{AllocationId, CopyId, HostNode, PartIndex};

    use super::*;

    /// A driver that has copied one MiB of every copy.
    #[derive(Debug)]
    struct OneMiB(Vec<DeviceInfo>);

    impl Driver for OneMiB {
        fn name(&self) -> &'static str {
            "one-mib"
        }

        fn devices(&self) -> &[DeviceInfo] {
            &self.0
        }

        fn supports(&self, _: ExtentKind) -> bool {
            false
        }

        fn host_node(&self, _: DeviceIndex) -> HostNode {
            HostNode(0)
        }

        fn copied_bytes(&self, copy: CopyId) -> Option<Bytes> {
            (copy.get() == 1).then_some(Bytes::mib(1))
        }

        fn submit(&self, submission: Submission) {
            panic!("unexpected {submission:?}");
        }
    }

    fn driver() -> Arc<dyn Driver> {
        let (uuid, name) = ("GPU-0".to_owned(), String::new());
        Arc::new(OneMiB(vec![DeviceInfo { uuid, name, total: Bytes::mib(4), context: Bytes::ZERO }]))
    }

    fn of(driver: &Arc<dyn Driver>) -> Moves {
        let copies = Copies::default();
        assert_eq!(copies.begin(ExtentId::from_raw(5)).get(), 1);
        Moves::new(driver, Clock::start(), copies)
    }

    /// Moves of one device, `GPU-0`, with one copy in progress, into extent 5.
    pub(crate) fn moves() -> Moves {
        static DRIVER: OnceLock<Arc<dyn Driver>> = OnceLock::new();
        of(DRIVER.get_or_init(driver))
    }

    #[tokio::test]
    async fn moves_do_not_keep_the_driver_alive() {
        let driver = driver();
        let moves = of(&driver);
        assert_eq!(moves.copied(ExtentId::from_raw(5)), Some(Bytes::mib(1)));
        drop(driver);
        assert_eq!(moves.copied(ExtentId::from_raw(5)), None);
        assert_eq!((moves.uuid_of(DeviceIndex(0)).as_str(), moves.traffic()), ("GPU-0", vec![]));
    }

    fn part(part: u32) -> PartRef {
        PartRef { allocation: AllocationId::from_shown(7), part: PartIndex(part) }
    }

    pub(crate) fn stopped(index: u32, tenant: &str) -> Notice {
        let (device, tier, bytes) = (DeviceIndex(0), Tier::Host, Bytes::mib(2));
        let (cause, began) = (Cause::Operator, Time::START);
        let from = Tier::Device;
        Notice::MoveStopped {
            part: part(index),
            tenant: tenant.into(),
            device,
            from,
            tier,
            bytes,
            cause,
            began,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_finished_move_has_its_cause_outcome_and_duration() {
        let moves = moves();
        tokio::time::advance(Duration::from_millis(30)).await;
        moves.record_ended(&stopped(1, "a"));
        moves.record_ended(&Notice::Draining { draining: true });
        let ended = moves.ended(None);
        let [one] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!((one.cause, one.outcome), (Cause::Operator, Change::Stopped));
        assert_eq!((one.began, one.took), (Time::START, Duration::from_millis(30)));
    }

    #[tokio::test]
    async fn the_latest_moves_are_kept_and_listed_first() {
        let moves = moves();
        for index in 0..300 {
            moves.record_ended(&stopped(index, if index % 2 == 0 { "a" } else { "b" }));
        }
        let parts: Vec<_> = moves.ended(None).iter().map(|ended| ended.part.part.0).collect();
        assert_eq!(parts, (44..300).rev().collect::<Vec<_>>());
        assert_eq!(moves.ended(Some("b")).len(), 128);
        assert_eq!(moves.ended(Some("c")), []);
    }

    #[tokio::test]
    async fn the_driver_reports_how_much_was_copied() {
        let moves = moves();
        assert_eq!(moves.copied(ExtentId::from_raw(5)), Some(Bytes::mib(1)));
        assert_eq!(moves.copied(ExtentId::from_raw(6)), None);
        assert_eq!(
            (moves.uuid_of(DeviceIndex(0)).as_str(), moves.uuid_of(DeviceIndex(1)).as_str()),
            ("GPU-0", "")
        );
    }
}
