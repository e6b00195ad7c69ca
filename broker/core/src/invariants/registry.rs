//! The registry: every invariant by name, what it says, and where it is checked.
//!
//! `docs/INVARIANTS.md` is made of it. Code, tests and logs name an invariant by its id.

/// One row of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invariant {
    pub id: &'static str,
    pub says: &'static str,
    pub checked: Checked,
}

/// Who would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Recomputed from the tables by [`crate::Broker::check`], in the file of that name in `invariants/`.
    Recomputed { file: &'static str },
    /// Met by a handler of the core, in production too.
    Handler { file: &'static str },
    /// Worked out by the simulator from events and commands alone, in that file of `tests/simulator/src/oracle/`.
    Oracle { file: &'static str },
}

macro_rules! registry {
    ($($name:ident = $id:literal, $checked:ident $file:literal, $says:literal;)*) => {
        $(#[doc = $says] pub const $name: &str = $id;)*

        /// Every invariant.
        pub const REGISTRY: &[Invariant] = &[
            $(Invariant { id: $id, says: $says, checked: Checked::$checked { file: $file } },)*
        ];
    };
}

registry! {
    LEDGER_BALANCES = "INV-LEDGER-1", Recomputed "ledger_balances.rs",
        "accounts equal the extents and reservations that are charged to them, per tenant, device and tier";
    LEDGER_SUMS = "INV-LEDGER-2", Recomputed "ledger_sums.rs",
        "the sums of a device, of what is held, committed and guaranteed, equal the sums over its accounts";
    LEDGER_ORACLE = "INV-LEDGER-3", Oracle "accounting/ledger.rs",
        "every tenant is charged what the events say: from its reservation until the bytes are acknowledged or gone";
    LIMIT = "INV-LEDGER-4", Oracle "accounting/admission.rs",
        "no admission takes a tenant above its limit, and none is refused for a limit that is not reached";
    ADMISSION = "INV-LEDGER-5", Oracle "accounting/admission.rs",
        "no admission and no quota makes the sum of the larger of guarantee and held exceed the capacity";
    EXTENTS = "INV-EXTENT-1", Recomputed "extent_backing.rs",
        "every extent but a cached one backs one part of an allocation that is not gone, and every such part has one";
    EXTENT_RELEASED = "INV-EXTENT-2", Recomputed "extent_released.rs",
        "an extent that is released is mapped by nobody and read by nobody";
    EXTENT_USE = "INV-EXTENT-3", Oracle "accounting/extents.rs",
        "an extent is made once, released once, and neither while a session may map it nor while it is read";
    EXTENT_TENANT = "INV-EXTENT-4", Oracle "accounting/extents.rs",
        "an extent that was exported has one tenant for life, and backs one part until it is recycled inside its tenant";
    CACHED = "INV-EXTENT-5", Recomputed "cached.rs",
        "a cached extent backs nothing, was sent to its tenant alone, is in the index, and goes in time";
    RECYCLED = "INV-EXTENT-6", Oracle "accounting/cached.rs",
        "an extent is recycled inside its tenant, once all who were sent it let go, for who takes old content";
    MAPPERS = "INV-MAP-1", Recomputed "mapper_sets.rs",
        "mapper sets and what sessions map agree, and name only sessions that exist";
    UNSEALED = "INV-MAP-2", Recomputed "unsealed.rs",
        "until it is sealed a movable allocation is mapped by its owner's session only";
    MAP_SENT = "INV-MAP-3", Oracle "mappings/map_frames.rs",
        "a part is sent to a session that may have it and does not map it, and for writing to nobody once it is sealed";
    SUMS = "INV-MAP-4", Recomputed "sums.rs",
        "what is counted along the way of what a session maps and waits for says what looking would";
    SENT = "INV-MAP-5", Oracle "mappings/delivery.rs",
        "who is connected and answers is sent all of its own memory and of what it attached";
    SLOTS = "INV-SLOT-1", Recomputed "slots.rs",
        "every part that a session with pins holds has a slot of its own, and no other slot is taken";
    SLOT_USE = "INV-SLOT-2", Oracle "mappings/slots.rs",
        "a slot serves one part until its word was given up, and only then another";
    PINS = "INV-PIN-1", Recomputed "pins.rs",
        "a pin call waits for parts that will be mapped, and what it has stays mapped until it ends";
    PINNED = "INV-PIN-2", Oracle "pins/pinned.rs",
        "no part of a pin call that was taken is evicted before the call has ended";
    PIN_ANSWERS = "INV-PIN-3", Oracle "pins/answers.rs",
        "every pin call is answered once, when all its parts are mapped, or refused for a reason that it can have";
    FENCES = "INV-PIN-4", Oracle "pins/fences.rs",
        "no pin call that came after a fence is answered while that lasts, and what was revoked is mapped by nobody";
    STALLS = "INV-PIN-5", Oracle "pins/stalls.rs",
        "pin calls in each other's way do not wait for ever";
    FDS = "INV-FDS-1", Recomputed "descriptors.rs",
        "no descriptor is in flight but to a session that exists, and the budgets add up";
    FDS_SENT = "INV-FDS-2", Oracle "mappings/descriptors.rs",
        "descriptors go to open channels only, one unanswered packet a session, within the budgets";
    SESSION_LIES = "INV-SESSION-1", Oracle "sessions/lies.rs",
        "a session whose answer does not fit is quarantined at once";
    SESSION_TIME = "INV-SESSION-2", Oracle "sessions/deadlines.rs",
        "a session that does not answer a map in time loses its channel";
    KILLS = "INV-SESSION-3", Oracle "sessions/kills.rs",
        "no process is ended unless an operator asked for that, or it was silent for longer than the configuration bears";
    LIFETIMES = "INV-SESSION-4", Oracle "sessions/lifetimes.rs",
        "session memory ends with its session, and unsealed memory with its writer";
    SEALED = "INV-SEAL-1", Oracle "requests/sealing.rs",
        "memory is hashed when nobody maps it, and its digest is of what was read";
    NAMES = "INV-NAME-1", Recomputed "names.rs",
        "a name belongs to one allocation, which bears it and is not freed";
    VISIBLE = "INV-NAME-2", Oracle "requests/visibility.rs",
        "an allocation that a tenant may not know of does not exist for it, and one that it may is shown as it is";
    UNIQUE = "INV-NAME-3", Oracle "requests/names.rs",
        "whoever is given a name bears it: it is given to a second one only to replace the first";
    OPS = "INV-OP-1", Recomputed "waits.rs",
        "everything that waits is waited for by something that will happen";
    TIMERS = "INV-OP-2", Recomputed "timers.rs",
        "whatever has a deadline has a timer for it";
    CALLS = "INV-CALL-1", Oracle "requests/calls.rs",
        "every call is answered once, with what was asked for, or refused for a reason that it can have";
    REPEATS = "INV-CALL-2", Oracle "requests/repeats.rs",
        "a repeated request does nothing and is answered as the first; its id with other content is refused";
    CALLERS = "INV-CALL-3", Oracle "requests/callers.rs",
        "a call is served only for the process of its session, while that is connected";
    BOUNDS = "INV-CALL-4", Oracle "node/bounds.rs",
        "what is served is within its bounds: batches, readers, allocations, parts, extents, sessions";
    MIGRATIONS = "INV-MOVE-1", Recomputed "migrations.rs",
        "what is copied to move is mapped by nobody and both its ends are there; what is not on its device is mapped by nobody";
    CONTENT = "INV-MOVE-2", Oracle "moves/content.rs",
        "what a session maps or pins holds what was last written there, wherever it has been meanwhile, or it is told that this was given up";
    COPIES = "INV-MOVE-3", Oracle "moves/copies.rs",
        "a copy begins in the part's extent while nobody maps either end, or nobody writes what is written back, and neither is released before it has ended";
    DEMANDS = "INV-MOVE-4", Oracle "line/waiting.rs",
        "who wants a part that is elsewhere waits only while there is no room for it, and it comes for whoever asked first";
    BACKED = "INV-MOVE-5", Recomputed "backings.rs",
        "what a part has below its device is its own, and what is awaited back from a device leaves it";
    EVICTED = "INV-MOVE-6", Oracle "moves/evictions.rs",
        "what leaves a device because somebody else needs the room is pinned by nobody, and was above its tenant's guarantee";
    HELD = "INV-MOVE-7", Oracle "moves/operator_holds.rs",
        "what an operator holds on its device does not leave it until it is let go or freed";
    WRITTEN_BACK = "INV-MOVE-8", Recomputed "write_backs.rs",
        "what is written back lies on its device, and is copied to what it has below";
    LINE = "INV-MOVE-9", Recomputed "line.rs",
        "for those of the line who were looked at all leaves that is to leave, or it would not be enough";
    IN_PLACE = "INV-PLACE-1", Oracle "mappings/in_place.rs",
        "what is to be accessed in place is mapped in the host's memory where it lies there, and nobody has it come";
    FILES = "INV-FILE-1", Recomputed "files.rs",
        "nothing is copied to a file, and what lies in one costs nothing";
    LOADED = "INV-FILE-2", Oracle "moves/files.rs",
        "what is loaded is sealed, read whole and hashed, piece by piece of its file, and leaves its device for that without a copy";
    LINK_ORDER = "INV-LINK-1", Oracle "links/shares.rs",
        "no prefetch goes before demand in its lane, unless it has stood for a second in which 16 chunks passed it, or none";
    LINK_SHARES = "INV-LINK-2", Oracle "links/shares.rs",
        "a class that waits has its share of what its lane begins, and lanes that share a link; what was lent is given back when somebody wants it";
    LINK_AWAITED = "INV-LINK-3", Oracle "links/awaited.rs",
        "what somebody waits for is copied as demand: it is ordered so, or hastened at once";
    PRESSURE = "INV-PRESSURE-1", Oracle "pressure/levels.rs",
        "the pressure of every place is what is held of its capacity and the steps say, and who wants to hear of it is told";
    PRESSED = "INV-PRESSURE-2", Oracle "pressure/levels.rs",
        "what leaves because of pressure left a place where it was high, and nobody had used it for long";
    RELIEVED = "INV-PRESSURE-3", Oracle "pressure/relief.rs",
        "where pressure is high and stays so, what is cached is given up, and what nobody has used for long leaves";
    SETTINGS = "INV-SETTINGS-1", Oracle "pressure/settings.rs",
        "the settings are those of the start with every change that was taken, each of these whole; and none makes a tier larger than it was";
    DEVICES = "INV-CALL-5", Oracle "node/devices.rs",
        "memory lies on the device that was asked for, and goes to sessions that see it";
    TRANSITIONS = "INV-STATE-1", Handler "allocation/allocate.rs, mapping/frames.rs, mapping/step.rs, moves/migrate.rs, moves/write_back.rs, node/session.rs",
        "allocations, sessions, mappings, migrations and write-backs move only along their tables";
    IDS = "INV-ID-1", Oracle "node/ids.rs",
        "ids are never reused, over restarts too";
    DRAINING = "INV-DRAIN-2", Oracle "node/draining.rs",
        "a node that is being taken out of service takes no session, no new memory and no attach";
    DRAINS = "INV-DRAIN-1", Oracle "node/drained.rs",
        "without faults everything drains: no charge, extent, session, allocation, descriptor or call is left";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn ids_stand_once_and_their_files_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for row in REGISTRY {
            assert_eq!(REGISTRY.iter().filter(|other| other.id == row.id).count(), 1, "{}", row.id);
            let (folder, files) = match row.checked {
                Checked::Recomputed { file } => (root.join("src/invariants"), file),
                Checked::Handler { file } => (root.join("src/handler"), file),
                Checked::Oracle { file } => (root.join("../../tests/simulator/src/oracle"), file),
            };
            for file in files.split(", ") {
                assert!(folder.join(file).is_file(), "{}: {file}", row.id);
            }
        }
    }
}
