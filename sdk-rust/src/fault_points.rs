//! Points of a session at which a test may end it: between any two steps of the protocol, where no program can.
//!
//! Only with the feature `fault-points`, for this repository's own tests. Without it a point compiles to nothing.

/// Marks a point that a session reaches.
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

    /// A point that a session has reached.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FaultPoint {
        /// The channel is connected; nothing has been sent.
        Connected,
        /// The hello is sent; nothing has been read.
        HelloSent,
        Welcomed,
        /// A call is about to be sent.
        CallBegins,
        /// A call is answered; the caller does not know yet.
        Answered,
        /// A packet can be read and has not been.
        PacketWaits,
        /// A `Map` is read; its descriptors are open and not mapped.
        MapReceived,
        /// The descriptors are mapped and closed; the daemon has not been told.
        Mapped,
        MapAnswered,
        /// A `Revoke` is read; nothing is unmapped yet.
        RevokeReceived,
        /// It is unmapped; the daemon has not been told.
        Unmapped,
        UnmapAnswered,
        /// The program has unmapped it itself; the daemon has not been told.
        LetGo,
        /// A call for pins is sent.
        PinCalled,
        /// The call for pins is answered; its caller does not know yet.
        PinAnswered,
        DrainReceived,
        /// The channel has ended.
        EndHeard,
    }

    /// Registers a hook that runs at every point of every session of this process, on the session's own thread. Only
    /// the first hook counts.
    pub fn on_fault_point(hook: impl Fn(FaultPoint) + Send + Sync + 'static) {
        // A second hook is ignored; a test process has one test.
        let _ = HOOK.set(Box::new(hook));
    }

    pub(crate) fn reach(point: FaultPoint) {
        if let Some(hook) = HOOK.get() {
            hook(point);
        }
    }
}
