//! Two clients change places: one's memory leaves the device while the other's arrives.

use std::{cell::RefCell, mem, thread, time::Duration};

use anyhow::Result;
use vramd_proto::v1::Tier;
use vramd_tests::is_root;

use super::bare::Bare;
use crate::bench::{
    measure::Measure,
    scene::{Answer, Holder, OTHER_UID, Scene, TENANT},
};

/// 93 and 88 % of the speed of plain copies in both directions at once.
const INSIDE: f64 = 1.0 / 0.93;
const ACROSS: f64 = 1.0 / 0.88;

pub(super) struct Exchange {
    resident: Holder,
    absent: Holder,
}

pub(super) fn inside(scene: &Scene, bare: &mut dyn Bare) -> Result<Answer> {
    let measure = measure(scene, bare, INSIDE, None)?;
    Ok(Answer::ratio("duplex", &measure, 2 * scene.bytes()))
}

/// Runs with clients of two tenants.
pub(super) fn across(scene: &Scene, bare: &mut dyn Bare) -> Result<Answer> {
    if !is_root() {
        return Ok(Answer::absent("duplex_across", "only root can have a client of another user"));
    }
    let measure = measure(scene, bare, ACROSS, Some(OTHER_UID))?;
    Ok(Answer::ratio("duplex_across", &measure, 2 * scene.bytes()))
}

/// Runs with a limit of one client's memory and two parts: arriving parts wait for the room of leaving ones. The client pins its memory,
/// since an operator's command does not wait for room.
pub(super) fn within_limit(scene: &Scene, bare: &mut dyn Bare) -> Result<Answer> {
    let mut exchange = Exchange::ready(scene, None)?;
    let limit = scene.bytes() + 2 * scene.part;
    scene.daemon.set_quota(TENANT, "0", &limit.to_string());
    let bare = RefCell::new(bare);
    let ours = || {
        exchange.resident.fill()?;
        let took = exchange.swap_by_pin(scene)?;
        calm_down(scene, *bare.borrow_mut())?;
        Ok((took, vec![]))
    };
    let measure = Measure::take(INSIDE, scene.pairs, ours, || bare.borrow_mut().copy(true, true));
    // The limit is restored in any case, for the questions after this one.
    scene.daemon.set_quota(TENANT, "0", "100%");
    let measure = measure?;
    exchange.end()?;
    Ok(Answer::ratio("duplex_within_limit", &measure, 2 * scene.bytes()))
}

fn measure(scene: &Scene, bare: &mut dyn Bare, target: f64, uid: Option<u32>) -> Result<Measure> {
    let mut exchange = Exchange::ready(scene, uid)?;
    let bare = RefCell::new(bare);
    let ours = || {
        exchange.resident.fill()?;
        let took = exchange.swap(scene)?;
        exchange.resident.check()?;
        calm_down(scene, *bare.borrow_mut())?;
        Ok((took, vec![]))
    };
    let measure = Measure::take(target, scene.pairs, ours, || bare.borrow_mut().copy(true, true))?;
    exchange.end()?;
    Ok(measure)
}

/// Leaves the device to the bare side as ours found it. The driver clears released memory, which slows every copy beside it. This waits for
/// the visible part of that, and an untimed copy absorbs the rest.
fn calm_down(scene: &Scene, bare: &mut dyn Bare) -> Result<()> {
    scene.operator.wait_until_charged(scene.bytes())?;
    bare.copy(true, true).map(drop)
}

impl Exchange {
    /// Starts two clients, one with its memory on the device. The other runs as that user, with its memory in the host.
    pub(super) fn ready(scene: &Scene, uid: Option<u32>) -> Result<Self> {
        let mut exchange = Self { resident: Holder::start(scene, None)?, absent: Holder::start(scene, uid)? };
        exchange.resident.fill()?;
        exchange.absent.fill()?;
        scene.operator.move_all(exchange.absent.memory(), Tier::Host)?;
        Ok(exchange)
    }

    pub(super) fn swap(&mut self, scene: &Scene) -> Result<Duration> {
        let took = scene.operator.exchange(self.resident.memory(), self.absent.memory())?;
        mem::swap(&mut self.resident, &mut self.absent);
        Ok(took)
    }

    /// Changes places by a pin of the absent memory. Both calls begin at once, and the later end counts.
    fn swap_by_pin(&mut self, scene: &Scene) -> Result<Duration> {
        scene.operator.wait_until_idle()?;
        let Self { resident, absent } = self;
        let (left, pinned) = thread::scope(|scope| {
            let pinned = scope.spawn(|| absent.check());
            let left = scene.operator.move_out_for_waiter(resident.memory());
            (left, pinned.join().expect("a client does not panic"))
        });
        mem::swap(&mut self.resident, &mut self.absent);
        Ok(left?.max(pinned?))
    }

    /// Checks all memory of both clients once more.
    pub(super) fn end(mut self) -> Result<()> {
        self.resident.check()?;
        self.absent.check()?;
        self.resident.leave();
        self.absent.leave();
        Ok(())
    }
}
