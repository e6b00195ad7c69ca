//! The kinds of follow-up work, in the order in which they are done.

use vramd_types::{AllocationId, DeviceIndex, SessionId};

use crate::{
    command::RevokedPart,
    event::PartRef,
    ledger::Place,
    prefetch::PrefetchId,
    tenancy::{OpId, PinId, PinnedPart},
};

/// A piece of follow-up work. Earlier variants come first, and within one variant the smaller value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// Go on after revocations that have ended, before anything else sees the part.
    AfterRevocations,
    /// Go on after moves that have ended, as if the move had done it itself.
    AfterMoves,
    /// Release the parts of a freed allocation that nothing uses any longer.
    ReleaseFreed(AllocationId),
    /// Check one part of a pin call. The needs of calls decide all else.
    CheckCall(PinnedPart),
    /// Admit turns, and ask owners to yield. An admitted one makes a pin call, whose parts are checked first.
    AdvanceTurns,
    /// Check a revocation. It may end, and so give the line a part that left.
    CheckRevocation(PartRef),
    /// Go on with a change of a quota. Its limits hold for the scan.
    ResumeQuota(OpId),
    /// Take a part out of the line that no session wants any longer, before a scan makes room for it.
    CheckWaiter(PartRef),
    /// Evict what makes up for memory that other programs took.
    CoverShortfall(DeviceIndex),
    /// Reserve backing for parts without it. They can then leave in the scan.
    ReserveLateBackings(DeviceIndex),
    /// Scan the line as far as the daemon makes room.
    FullScan,
    /// Scan the line as far as there is room. A full scan that comes first does this too.
    FrontScan,
    /// End prefetch requests for a part that their session no longer has.
    CheckPrefetches(PartRef),
    /// Tell the client of a prefetch request that all its parts are there, if so.
    CompletePrefetch(PrefetchId),
    /// Begin queued prefetch requests. Every waiter in the line has gone first.
    BeginPrefetches,
    /// Bring what sessions will probably pin next, and the set whose turn is next. Every request has gone first.
    Speculate,
    /// Update the level of a place, now that its bytes are settled.
    UpdatePressure(Place),
    /// Do what the pressure of a place asks for.
    RelievePressure(Place),
    /// Unmap a part in place that is no longer advised.
    UnmapInPlace(PartRef),
    /// Tell a session to unmap parts, all in few frames: the number orders them as they were evicted.
    SendRevoke(SessionId, u64, RevokedPart),
    /// Send a session its next packet.
    SendParts(SessionId),
    /// Check whether a pin call has stalled. All else must be known.
    CheckStall(PinId),
}
