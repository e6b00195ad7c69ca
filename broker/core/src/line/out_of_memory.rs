//! Waiters for which the driver had no memory although the ledger had room: when each is tried again.
//!
//! ```text
//!  the driver fails ──► OnRelease ── memory of the device is released ─────────────────────► Now
//!                          │ nothing leaves, and a survey has reported
//!                          ├── the ledger has no room, or a part has tries left ───────────► Now
//!                          ├── a batch has time ──► OnSurvey ── a release, or a survey ────► Now
//!                          ╰── otherwise it is given up
//!  a batch failed too often ──► Resting ── the next round of surveys begins ──► OnSurvey
//! ```
//!
//! So nothing is tried as fast as the driver can fail.

use vramd_types::DeviceIndex;

use super::{Line, Waiter};

/// How often a batch is tried before it rests until the next survey of all devices. Undoing it also frees
/// memory, so it could go on as fast as the driver can fail. A part for which nothing leaves is tried as often.
pub(crate) const TRIES_MAX: u32 = 4;

/// The state of a waiter for which the driver had no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfMemory {
    device: DeviceIndex,
    /// The number of the survey that will show which program holds the memory.
    survey: u64,
    /// How often it was retried without a release in between.
    vain_tries: u32,
    retry: Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    /// Retry after a release of memory on the device.
    OnRelease,
    /// Retry after a release or after the next survey: nothing is leaving the device.
    OnSurvey,
    /// Retry after the next round of surveys, whatever leaves: it was tried often enough.
    Resting,
    /// Retry now.
    Now,
}

/// News that may let waiters be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryNews {
    /// Memory of the device went back to the driver.
    Returned(DeviceIndex),
    /// The device was surveyed.
    Surveyed(DeviceIndex),
    /// A round of surveys is about to begin.
    SurveysBegin,
}

/// The decision about a waiter for which nothing leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is tried again, or waits for room as any other.
    Retry,
    /// It waits for the next survey.
    Wait,
    /// Nothing is left that would help it.
    GiveUp,
}

impl Line {
    /// Records that the driver had no memory for the waiter. It is not retried until something changes. One that
    /// was tried often enough *rests* until the next round of surveys.
    pub(crate) fn suspend(
        &mut self,
        waiter: Waiter,
        (device, survey): (DeviceIndex, u64),
        vain_tries: u32,
        rests: bool,
    ) {
        let retry = if rests { Retry::Resting } else { Retry::OnRelease };
        self.out_of_memory.insert(waiter, OutOfMemory { device, survey, vain_tries, retry });
    }

    /// Lets waiters be tried again. Returns whether there were any.
    pub(crate) fn learn(&mut self, news: MemoryNews) -> bool {
        let (from, device, to): (&[Retry], _, _) = match news {
            MemoryNews::Returned(device) => (&[Retry::OnRelease, Retry::OnSurvey], Some(device), Retry::Now),
            MemoryNews::Surveyed(device) => {
                self.deferred.clear();
                (&[Retry::OnSurvey], Some(device), Retry::Now)
            }
            MemoryNews::SurveysBegin => (&[Retry::Resting], None, Retry::OnSurvey),
        };
        let meant = self.out_of_memory.values_mut();
        let meant = meant.filter(|it| device.is_none_or(|at| at == it.device) && from.contains(&it.retry));
        meant.map(|it| it.retry = to).count() > 0
    }

    /// Decides on a waiter once nothing leaves its device and a survey has reported. Without room in the ledger it
    /// waits as any other. Otherwise a part is tried a few times in vain, and a batch waits for the next survey as
    /// long as it has time.
    pub(crate) fn judge(&mut self, waiter: Waiter, has_room: bool, has_time: bool) -> Verdict {
        let state = self.out_of_memory.get_mut(&waiter);
        if !has_room {
            state.into_iter().for_each(|it| it.retry = Retry::Now);
            return Verdict::Retry;
        }
        // An earlier decision may have taken it out of the line.
        let Some(it) = state else { return Verdict::GiveUp };
        match waiter {
            Waiter::Part(_) => {
                it.vain_tries = it.vain_tries.saturating_add(1);
                if it.vain_tries < TRIES_MAX {
                    it.retry = Retry::Now;
                    return Verdict::Retry;
                }
                Verdict::GiveUp
            }
            Waiter::Batch(_) if has_time => {
                it.retry = Retry::OnSurvey;
                Verdict::Wait
            }
            Waiter::Batch(_) => Verdict::GiveUp,
        }
    }

    /// How often the waiter was retried without a release in between.
    pub(crate) fn vain_tries(&self, waiter: Waiter) -> u32 {
        self.out_of_memory.get(&waiter).map_or(0, |it| it.vain_tries)
    }

    /// Whether the waiter must not be retried yet, since nothing has changed for it.
    pub(crate) fn is_suspended(&self, waiter: Waiter) -> bool {
        self.out_of_memory.get(&waiter).is_some_and(|it| it.retry != Retry::Now)
    }

    /// The device on which the driver had no memory for it, if any.
    pub(crate) fn out_of_memory_device(&self, waiter: Waiter) -> Option<DeviceIndex> {
        self.out_of_memory.get(&waiter).map(|it| it.device)
    }

    /// Waiters that wait for a release on a device, with the number of the survey that will show which
    /// program holds the memory.
    pub(crate) fn awaiting_release(&self) -> Vec<(Waiter, DeviceIndex, u64)> {
        let barred = self.out_of_memory.iter().filter(|(_, it)| it.retry == Retry::OnRelease);
        barred.map(|(waiter, it)| (*waiter, it.device, it.survey)).collect()
    }

    pub(crate) fn has_out_of_memory(&self) -> bool {
        !self.out_of_memory.is_empty()
    }

    /// Whether it waits only for a survey, so that other waiters may take the room.
    pub(crate) fn waits_only_for_survey(&self, waiter: Waiter) -> bool {
        self.out_of_memory.get(&waiter).is_some_and(|it| matches!(it.retry, Retry::OnSurvey | Retry::Resting))
    }
}
