//! Facts: the changes that handlers and tables report to the follow-ups.

use vramd_types::{AllocationId, DeviceIndex, SessionId};

use crate::{
    command::RevokedPart,
    event::PartRef,
    ledger::Place,
    prefetch::PrefetchId,
    tenancy::{OpId, PinId},
};

/// Something that an event has changed. `handler/follow_up.rs` has the table of the work that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    // Calls, mappings and revocations.
    /// A pin call began, which needs this part.
    CallBegan(PinId, PartRef),
    /// Calls that miss the part may have it now: it has arrived, or its revocation has ended.
    PartAvailable(PartRef),
    /// A call has waited long enough to be checked for a stall.
    StallCheckDue(PinId),
    /// A session's mapping of the part has changed.
    MappingChanged(SessionId, PartRef),
    /// A session was evicted from the part, and has to be told.
    MappingEvicted(SessionId, RevokedPart),
    /// Parts are queued for the session.
    PartsQueued(SessionId),
    /// Something that the part's revocation waits for may have happened.
    RevocationEased(PartRef),
    /// No session is known to pin a part that has to be unmapped in place.
    InPlaceUnpinned(PartRef),

    /// A revocation has ended, and left a report.
    RevocationEnded,
    /// A migration has ended, and left a report.
    MoveEnded,
    /// The driver no longer writes a part of a freed allocation.
    FreedPartStill(AllocationId),

    // Room, and what may leave for it.
    /// The balance of a place has changed.
    BalanceChanged(Place),
    /// Below the device a tenant may be admitted to more than before.
    RoomBelow(DeviceIndex),
    /// A device has room that its driver returned, or that was handed over.
    RoomFreed,
    /// Room was taken although there are waiters. It may have been made for one.
    RoomTaken,
    /// A part or an extent can leave its device, or no longer can.
    VictimsChanged,
    /// A part without backing has backing now, so it can leave.
    BackingGained,
    /// An allocation is in another state, while there are waiters: its parts may be victims, or no longer.
    AllocationAdvanced,
    /// An extent is cached, so it can be released for a waiter.
    ExtentCached,
    /// A reservation was cancelled: its extent could not be created.
    CreationFailed,
    /// An extent was released and its memory is still in use elsewhere, so it is no room.
    ExtentUnreturned,
    /// Memory that was unreturned has come back.
    ExtentReturned,
    /// A part that was leaving stays on its device.
    LeavingStopped,
    /// A victim could not start to leave, and another has to be found.
    VictimRefused,
    /// An extent that was leaving has left, or stays.
    LeavingResolved,
    /// The driver had no memory, although the ledger has room.
    DriverRanOut(DeviceIndex),
    /// A survey has shown what a device has.
    Surveyed,
    /// The level of a place is lower than before.
    PressureFell,
    /// Work for the pressure of a place can go on.
    PressureDue(Place),

    // The line.
    /// A waiter that the last scan covered, or would have, enters or leaves.
    ScannedWaiterChanged,
    /// A waiter beyond the last scan enters. It may be within its guarantee.
    WaiterEntered,
    /// A batch enters the line.
    BatchEntered,
    /// A batch leaves the line without room.
    BatchRefused,
    /// An operator has cancelled a wait.
    WaitCancelled,
    /// Pin calls of a session end that sends nothing further, while there are waiters.
    CallsEnded,
    /// A part in the line may be wanted by no session any longer.
    WaiterUnwanted(PartRef),
    /// Cached extents that a waiter counted on were taken by another, or given up for another reason.
    CachedTaken,
    /// A part began to leave for a waiter, and another waiter counts on a session in doubt.
    EvictedInDoubt,
    /// A waiter that the driver failed may be tried again.
    RetryAllowed,
    /// A waiter that nothing helps begins to let others pass.
    WaiterLetsPass,

    // Prefetch requests.
    /// A request was queued, or one that was queued has ended.
    PrefetchQueued,
    /// A request has begun, or one of its parts has arrived.
    PrefetchAdvanced(PrefetchId),
    /// The allocation of a part that a request names is freed.
    PrefetchedPartFreed(PartRef),
    /// A request has ended, or a move for one.
    PrefetchEnded,
    /// Parts may leave that could not when queued requests were tried.
    PrefetchRetryDue,

    /// A turn was requested, granted, refused or ended, a deadline of one has come, or a working set may be smaller.
    TurnsDue,
    /// A turn waits, and parts of its set may come to free room.
    NextTurnWaits,

    /// The order of a session's pins shows what it will pin next.
    ForecastMade,

    // Rules.
    /// A change of a quota has the room that it waited for, or does not get it.
    QuotaReady(OpId),
    /// A guarantee is being stored, or a limit has changed: what the line may use is different.
    QuotaStaged,
    /// A change of a quota is over.
    QuotaChanged,
    /// The class or the weight of a tenant has changed.
    StandingChanged,
    /// The settings have changed.
    SettingsChanged,
    /// A drain began or ended.
    DrainChanged,
}

/// Facts in the order in which they came about.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    facts: Vec<Fact>,
    /// How many of them were taken. At the last one the list begins anew.
    taken: usize,
}

impl Facts {
    /// Adds a fact, unless it repeats the last one.
    pub(crate) fn push(&mut self, fact: Fact) {
        if self.facts.last() != Some(&fact) {
            self.facts.push(fact);
        }
    }

    /// Adds a fact, unless it is there. For lists that stay short.
    pub(crate) fn push_new(&mut self, fact: Fact) {
        if !self.facts.iter().skip(self.taken).any(|there| *there == fact) {
            self.facts.push(fact);
        }
    }

    /// Takes the first fact.
    pub(crate) fn take(&mut self) -> Option<Fact> {
        let fact = self.facts.get(self.taken).copied()?;
        self.taken = self.taken.saturating_add(1);
        if self.taken == self.facts.len() {
            self.facts.clear();
            self.taken = 0;
        }
        Some(fact)
    }

    /// Drops a fact that the caller has dealt with.
    pub(crate) fn forget(&mut self, fact: Fact) {
        self.facts.drain(..self.taken);
        self.taken = 0;
        self.facts.retain(|other| *other != fact);
    }
}
