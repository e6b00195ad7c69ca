//! Points of a session at which a test may end it: between any two steps of the protocol, where no program can.
//!
//! Only with the feature `fault-points`, which is for this repository's own tests. Without it a point is no code at
//! all.

/// Marks the point that a session has come to.
macro_rules! fault_point {
    ($point:ident) => {
        #[cfg(feature = "fault-points")]
        $crate::fault_points::reach($crate::fault_points::FaultPoint::$point);
    };
}

#[cfg(feature = "fault-points")]
pub(crate) use self::hook::reach;
#[cfg(feature = "fault-points")]
pub use self::hook::{FaultPoint, on_fault_point};

#[cfg(feature = "fault-points")]
mod hook {
    use std::sync::OnceLock;

    static HOOK: OnceLock<Box<dyn Fn(FaultPoint) + Send + Sync>> = OnceLock::new();

    /// Where a session is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FaultPoint {
        /// The channel is connected, and nothing is sent.
        Connected,
        /// The hello is sent, and nothing is read.
        HelloSent,
        Welcomed,
        /// A call is about to be sent.
        CallBegins,
        /// A call is answered, and the caller does not know yet.
        Answered,
        /// A packet can be read, and is not.
        PacketWaits,
        /// A `Map` is read; its descriptors are open and not mapped.
        MapReceived,
        /// They are mapped and closed, and the daemon is not told.
        Mapped,
        MapAnswered,
        /// A `Revoke` is read, and nothing is unmapped.
        RevokeReceived,
        /// It is unmapped, and the daemon is not told.
        Unmapped,
        UnmapAnswered,
        /// Unmapped of the program's own will, and the daemon is not told.
        LetGo,
        /// A call for pins is sent.
        PinCalled,
        /// It is answered, and its caller does not know yet.
        PinAnswered,
        DrainReceived,
        /// The channel has ended.
        EndHeard,
    }

    /// What to do at every point of every session of this process, on the thread that comes to it. The first counts.
    pub fn on_fault_point(hook: impl Fn(FaultPoint) + Send + Sync + 'static) {
        // A second one is not heard of; there is one test in a process.
        let _ = HOOK.set(Box::new(hook));
    }

    pub(crate) fn reach(point: FaultPoint) {
        if let Some(hook) = HOOK.get() {
            hook(point);
        }
    }
}
