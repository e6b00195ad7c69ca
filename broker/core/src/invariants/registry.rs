//! The registry of invariants: id, statement, and where each is checked.
//!
//! `make invariants-md` generates `docs/reference/invariants.md` from it. Code, tests and logs name an invariant by its id.

/// One row of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invariant {
    pub id: &'static str,
    pub statement: &'static str,
    pub checked_by: CheckedBy,
}

/// Which code detects a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedBy {
    /// Recomputed from the tables by [`crate::Broker::check`], in the file of that name in `invariants/`.
    Recomputed { file: &'static str },
    /// Detected by a handler of the core, in production too.
    Handler { file: &'static str },
    /// Derived by the simulator from events and commands alone, in that file of `tests/simulator/src/oracle/`.
    Oracle { file: &'static str },
}

macro_rules! registry {
    ($($name:ident = $id:literal, $checked:ident $file:literal, $statement:literal;)*) => {
        $(#[doc = $statement] pub const $name: &str = $id;)*

        /// Every invariant.
        pub const REGISTRY: &[Invariant] = &[
            $(Invariant { id: $id, statement: $statement, checked_by: CheckedBy::$checked { file: $file } },)*
        ];
    };
}

registry! {
    LEDGER_BALANCES = "INV-LEDGER-1", Recomputed "ledger_balances.rs",
        "Each account equals the extents and reservations charged to it, per tenant, device and tier.";
    LEDGER_SUMS = "INV-LEDGER-2", Recomputed "ledger_sums.rs",
        "The sums of a place (charged, committed, guaranteed) equal the sums over its accounts.";
    LEDGER_ORACLE = "INV-LEDGER-3", Oracle "accounting/ledger.rs",
        "Every tenant is charged what the events imply: from the reservation until the bytes are acknowledged or gone.";
    LIMIT = "INV-LEDGER-4", Oracle "accounting/admission.rs",
        "No admission takes a tenant above its limit, and no request is refused for a limit that it does not reach.";
    ADMISSION = "INV-LEDGER-5", Oracle "accounting/admission.rs",
        "No admission and no quota makes the sum of the larger of guarantee and charge exceed the capacity.";
    STORED = "INV-LEDGER-6", Oracle "accounting/stored.rs",
        "A write of quotas makes one accepted change of the earlier content, keeps rows of absent devices, and has the ids of the last requests.";
    MANAGED = "INV-LEDGER-7", Oracle "accounting/managed.rs",
        "Managed memory is charged to the tenant of its session until it is freed or the session ends; it is never attached, sealed or shown as resident.";
    MANAGED_ORDERS = "INV-LEDGER-8", Oracle "accounting/managed_orders.rs",
        "Managed memory is ordered to its device only within its tenant's limit. It is shown as ordered where its client executed the last order, and no order names freed memory.";
    EXTENTS = "INV-EXTENT-1", Recomputed "extent_backing.rs",
        "Every extent that is not cached backs one part of an existing allocation, and every such part has one extent.";
    EXTENT_RELEASED = "INV-EXTENT-2", Recomputed "extent_released.rs",
        "No session maps a released extent, and the driver does not read it.";
    EXTENT_USE = "INV-EXTENT-3", Oracle "accounting/extents.rs",
        "An extent is created once and released once, and not released while a session may map it or the driver reads it.";
    EXTENT_TENANT = "INV-EXTENT-4", Oracle "accounting/extents.rs",
        "An exported extent has one tenant for life, and backs one part until it is cached and reused inside that tenant.";
    CACHED = "INV-EXTENT-5", Recomputed "cached.rs",
        "A cached extent backs no part, was sent to its tenant alone, is in the index, and is released in time.";
    CACHE_REUSE = "INV-EXTENT-6", Oracle "accounting/cached.rs",
        "An extent is reused only inside its tenant, after every session that was sent it let go, and only for requests that accept old content.";
    FIRST_CONTENT = "INV-EXTENT-7", Oracle "moves/first_content.rs",
        "Memory begins as zeros, or as old bytes of its own tenant where the client accepts these; no session sees bytes of another tenant.";
    MAPPERS = "INV-MAP-1", Recomputed "mapper_sets.rs",
        "The mappers of parts and the mappings of sessions agree, and name only sessions that exist.";
    UNSEALED = "INV-MAP-2", Recomputed "unsealed.rs",
        "Until a movable allocation is sealed, only its owner's session maps it.";
    MAP_SENT = "INV-MAP-3", Oracle "mappings/map_frames.rs",
        "A part is sent only to a session that may have it and does not map it, and never for writing once it is sealed.";
    RUNNING_SUMS = "INV-MAP-4", Recomputed "running_sums.rs",
        "Running sums (bytes mapped, parts queued, waiters and so on) equal what a full recount finds.";
    SENT = "INV-MAP-5", Oracle "mappings/delivery.rs",
        "A connected session that answers is sent all of its own memory and all that it attached.";
    SLOTS = "INV-SLOT-1", Recomputed "slots.rs",
        "Every part that a session with pins has is in a slot of its own, and no other slot is taken.";
    SLOT_USE = "INV-SLOT-2", Oracle "mappings/slots.rs",
        "A slot serves one part until its word has been collected, and only then another.";
    PINS = "INV-PIN-1", Recomputed "pins.rs",
        "A pin call waits only for parts that will be mapped, and a part that it has stays mapped until the call ends.";
    PINNED = "INV-PIN-2", Oracle "pins/pinned.rs",
        "No part of an accepted pin call is evicted before the call has ended.";
    PIN_ANSWERS = "INV-PIN-3", Oracle "pins/answers.rs",
        "Every pin call is answered once: when all its parts are mapped, or with a refusal that can apply to it.";
    FENCES = "INV-PIN-4", Oracle "pins/fences.rs",
        "No pin call that arrives after a fence is answered while the fence lasts, and no session maps a revoked part.";
    STALLS = "INV-PIN-5", Oracle "pins/stalls.rs, pins/aborts.rs",
        "Pin calls that block each other do not wait for ever: the youngest is aborted, and no call that has not stalled.";
    FDS = "INV-FDS-1", Recomputed "descriptors.rs",
        "Every descriptor in flight belongs to a session that exists, and the budgets add up.";
    FDS_SENT = "INV-FDS-2", Oracle "mappings/descriptors.rs",
        "Descriptors go only to open channels, in one unanswered packet per session, within the budgets.";
    FDS_TURNS = "INV-FDS-3", Oracle "mappings/turns.rs",
        "Sessions that wait for descriptor budget are served in the order in which they began to, except behind their own tenant's budget.";
    SESSION_ANSWERS = "INV-SESSION-1", Oracle "sessions/lies.rs",
        "A session whose answer does not fit is quarantined at once.";
    SESSION_TIME = "INV-SESSION-2", Oracle "sessions/deadlines.rs",
        "A session that does not answer a map in time loses its channel.";
    KILLS = "INV-SESSION-3", Oracle "sessions/kills.rs",
        "The daemon ends a process only if an operator asked for it, or if its session was silent for longer than the configuration allows.";
    LIFETIMES = "INV-SESSION-4", Oracle "sessions/lifetimes.rs",
        "Session memory ends with its session, and unsealed memory ends with its writer.";
    ANSWERED = "INV-SESSION-5", Oracle "sessions/answers.rs",
        "A session is silent once it has not unmapped in time what it was told to, and live again once it has unmapped all of it.";
    IN_SERIES = "INV-SESSION-6", Oracle "sessions/silences.rs",
        "Once a session was silent, no room is awaited from one session in doubt after the other, nor from one in doubt where one that answered since would do.";
    SEALED = "INV-SEAL-1", Oracle "requests/sealing.rs",
        "Memory is hashed while no session maps it, and its digest is of the bytes that were read.";
    NAMES = "INV-NAME-1", Recomputed "names.rs",
        "A name belongs to one allocation, which carries it and is not freed.";
    VISIBLE = "INV-NAME-2", Oracle "requests/visibility.rs",
        "An allocation that a tenant may not know does not exist for it, and one that it may know is shown as it is.";
    UNIQUE = "INV-NAME-3", Oracle "requests/names.rs",
        "A name that an allocation has leads to it, and is given to a second one only if that one is sealed and replaces the first, which is sealed too.";
    FREES = "INV-NAME-4", Oracle "requests/frees.rs",
        "An allocation is freed only at the request of a client or an operator, with its session or its unreadable file, or when another one replaces it.";
    OPS = "INV-OP-1", Recomputed "waits.rs",
        "Every operation that waits is waiting for something that will happen.";
    TIMERS = "INV-OP-2", Recomputed "timers.rs",
        "Every deadline has a timer.";
    CALLS = "INV-CALL-1", Oracle "requests/calls.rs",
        "Every call is answered once: with what it asked for, or with a refusal that can apply to it.";
    REPEATS = "INV-CALL-2", Oracle "requests/repeats.rs",
        "A repeated request changes nothing and gets the first answer; the same id with other content is refused.";
    CALLERS = "INV-CALL-3", Oracle "requests/callers.rs",
        "A call is served only for the process of its session, while that session is connected.";
    BOUNDS = "INV-CALL-4", Oracle "node/bounds.rs",
        "Every request that is served is within its bounds: batches, readers, allocations, parts, extents, sessions.";
    MIGRATIONS = "INV-MOVE-1", Recomputed "migrations.rs",
        "While a part is copied to move it, no session maps it and both ends exist; a part away from its device is mapped by no session.";
    CONTENT = "INV-MOVE-2", Oracle "moves/content.rs",
        "A part that a session maps or pins has the bytes that were last written to it, or the session is told that they were dropped.";
    COPIES = "INV-MOVE-3", Oracle "moves/copies.rs",
        "A copy begins in the part's extent, with neither end mapped (or, for a write-back, not written), and neither end is released before it ends.";
    LINE_ORDER = "INV-MOVE-4", Oracle "line/waiting.rs, line/batches.rs, line/passing.rs",
        "A waiter of the line waits only while a device that it needs is short. Room goes to the waiter that arrived first, except within a guarantee or past a tenant at its limit.";
    BACKINGS = "INV-MOVE-5", Recomputed "backings.rs",
        "A part's backing is its own, and every extent whose room a waiter counts on leaves its device.";
    EVICTED = "INV-MOVE-6", Oracle "moves/evictions.rs",
        "A part that is evicted for another waiter's room is pinned by no session, and was above its tenant's guarantee.";
    EFFORT = "INV-EFFORT-1", Oracle "moves/effort.rs",
        "No more parts leave for pressure than its target needs, and none for waiters that have room without it.";
    OPERATOR_HOLDS = "INV-MOVE-7", Oracle "moves/operator_holds.rs",
        "A part under an operator hold stays on its device until the operator lets it go or it is freed.";
    WRITTEN_BACK = "INV-MOVE-8", Recomputed "write_backs.rs",
        "A part that is written back lies on its device, and is copied to its own backing.";
    LINE_SCANNED = "INV-MOVE-9", Recomputed "line.rs",
        "For every scanned waiter, all victims that it needs are leaving, or no choice of victims would be enough.";
    EVICTION_ORDER = "INV-MOVE-10", Recomputed "eviction_order.rs",
        "The eviction policy orders every part that may leave its device, each once, and remembers no part of an allocation that is gone. Forbidden advice changes nothing of its order.";
    ADVISED_ORDER = "INV-MOVE-11", Oracle "moves/advised.rs",
        "Of the parts of a tenant, one leaves for a waiter only if no other that could leave ranks lower by the advice that counts. Parts of working sets leave by their turns instead.";
    CLASS_ORDER = "INV-MOVE-12", Oracle "moves/classes.rs",
        "No memory of a higher class of tenants leaves for pressure or a prefetch while memory of a lower class that may leave stays.";
    PREFETCH_ORDER = "INV-PREFETCH-1", Oracle "prefetch/order.rs",
        "No prefetch request begins while a client waits for room on its device, or before the one whose turn is first and that could begin. No part of a begun one is copied while a ready part with an earlier deadline waits, of a tenant of the same or a higher class.";
    PREFETCH_TOLD = "INV-PREFETCH-2", Oracle "prefetch/told.rs",
        "Every client is told of each request how far it is: ready only once all parts are on their device, late only after the deadline, dropped if one left unused.";
    PREFETCH_VICTIMS = "INV-PREFETCH-3", Oracle "prefetch/victims.rs",
        "Only memory that is worth less leaves for a prefetch request, and nothing that another one brought and no session has used.";
    PREFETCH_HELD = "INV-PREFETCH-4", Oracle "prefetch/told.rs",
        "A request that was cancelled, used up or whose session is gone holds nothing, and no session has more requests than allowed.";
    SEQUENCE_WINDOW = "INV-SEQUENCE-1", Oracle "prefetch/sequences.rs",
        "The daemon has a request for each step of a sequence's window, with the parts of that step, and for no other; its client knows the window.";
    SEQUENCE_ORDER = "INV-SEQUENCE-2", Oracle "prefetch/sequences.rs",
        "Of a tenant's parts those that its sequences need last leave first, and those that they need next leave last. Parts of working sets leave by their turns instead.";
    SEQUENCE_HELD = "INV-SEQUENCE-3", Oracle "prefetch/sequences.rs",
        "A sequence ends when its client, an operator or its session ends it, its client is told why, and no request outlives it.";
    PREFETCH_PAUSED = "INV-PREFETCH-5", Oracle "prefetch/paused.rs",
        "No prefetch of a background tenant begins at elevated pressure of its device, and none of a utility tenant at high pressure.";
    PREFETCH_BEGINS = "INV-PREFETCH-7", Oracle "prefetch/begins.rs",
        "A request that certainly can begin is not left queued: it has begun before the daemon has tried queued requests twice.";
    TURNS = "INV-TURN-1", Recomputed "turns.rs",
        "Every turn is of a working set that exists, and has a pin call of the daemon's own from its admission on.";
    TURN_GRANTED = "INV-TURN-2", Oracle "turns/granted.rs",
        "A turn is granted once all parts of its set are mapped, or refused for a reason that can apply to it. A working set is taken or refused at once.";
    TURN_OWNERS = "INV-TURN-3", Oracle "turns/admitted.rs",
        "No turn is admitted beside others whose sets leave no room for its own on the device.";
    TURN_ORDER = "INV-TURN-4", Oracle "turns/admitted.rs",
        "Of the turns that wait, one of the highest class is admitted, of the tenant that held turns for the least time by its weight, the oldest of that tenant. Only turns that a limit of their tenant holds back are passed.";
    TURN_HELD = "INV-TURN-5", Oracle "turns/held.rs",
        "A turn lasts until its client yields, or its set or its session ends. Its client is asked to yield by an operator, or once its quantum is over and that makes room for another turn or for the line. It is killed only if it does not yield to another.";
    TURN_VICTIMS = "INV-TURN-6", Oracle "turns/victims.rs",
        "Of the parts of working sets of a class of tenants, one leaves for a waiter only if none of a set with a later turn could leave.";
    SPECULATION = "INV-PREFETCH-6", Oracle "prefetch/speculation.rs",
        "Parts brought unasked go on in the order of a session's pin calls for that allocation, the nearest first, or are of the set whose turn is next. They take only room that no client asks for, and the former end where too many are wasted.";
    PLACEMENT = "INV-PLACE-2", Oracle "mappings/placement.rs",
        "Where the sum is known, a part moves to its device if the benefit is above the factor times the cost, and is read in host memory if not. Its terms follow from the copies so far. A part is read there only as long as the sum applies.";
    IN_PLACE = "INV-PLACE-1", Oracle "mappings/in_place.rs",
        "A part that is accessed in place is mapped in host memory where it lies, and no pin fetches it.";
    FILES = "INV-FILE-1", Recomputed "files.rs",
        "No copy writes to a file, and a part that lies in a file is charged to no tenant.";
    LOADED = "INV-FILE-2", Oracle "moves/files.rs",
        "A loaded allocation is sealed, read whole and hashed, piece by piece of its file, and leaves its device without a copy.";
    LINK_ORDER = "INV-LINK-1", Oracle "links/shares.rs",
        "No prefetch passes demand in its lane, unless it has waited a second in which 16 demand chunks passed it, or none did.";
    LINK_SHARES = "INV-LINK-2", Oracle "links/shares.rs",
        "A class that waits gets its share of what its lane starts, as do lanes that share a link; a lent share is returned when its class wants it.";
    LINK_AWAITED = "INV-LINK-3", Oracle "links/awaited.rs",
        "A copy that a client waits for runs as demand, ordered so or raised at once, and no other copy does.";
    PRESSURE = "INV-PRESSURE-1", Oracle "pressure/levels.rs",
        "The pressure of every place follows from its charge, its capacity and the levels, and every session that asked for reports gets them.";
    PRESSURE_EVICTIONS = "INV-PRESSURE-2", Oracle "pressure/levels.rs",
        "A part that is evicted because of pressure leaves a place whose pressure was high, and was cold.";
    PRESSURE_RELIEF = "INV-PRESSURE-3", Oracle "pressure/relief.rs",
        "While pressure stays high in a place, its cached extents are released and its cold parts are evicted.";
    SETTINGS = "INV-SETTINGS-1", Oracle "pressure/settings.rs",
        "The settings are those of the start with every accepted change applied whole, and no change makes a tier larger than it was at the start.";
    DEVICES = "INV-CALL-5", Oracle "node/devices.rs",
        "Memory lies on the device that the request named, and goes only to sessions that see that device.";
    TRANSITIONS = "INV-STATE-1", Handler "allocation/allocate.rs, mapping/frames.rs, mapping/step.rs, moves/migration_end.rs, moves/write_back.rs, node/session.rs",
        "Allocations, sessions, mappings, migrations and write-backs change state only along their tables.";
    IDS = "INV-ID-1", Oracle "node/ids.rs",
        "Ids are never reused, not even after a restart.";
    DRAINING = "INV-DRAIN-2", Oracle "node/draining.rs",
        "A draining node accepts no session, no new memory and no attach.";
    DRAINS = "INV-DRAIN-1", Oracle "node/drained.rs",
        "Without faults everything drains: no charge, extent, session, allocation, descriptor or call is left.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_id_is_unique_and_its_files_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for row in REGISTRY {
            assert_eq!(REGISTRY.iter().filter(|other| other.id == row.id).count(), 1, "{}", row.id);
            let (folder, files) = match row.checked_by {
                CheckedBy::Recomputed { file } => (root.join("src/invariants"), file),
                CheckedBy::Handler { file } => (root.join("src/handler"), file),
                CheckedBy::Oracle { file } => (root.join("../../tests/simulator/src/oracle"), file),
            };
            for file in files.split(", ") {
                assert!(folder.join(file).is_file(), "{}: {file}", row.id);
            }
        }
    }
}
