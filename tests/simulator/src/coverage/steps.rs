//! Steps beside the core's transitions that worlds must take; otherwise runs would prove nothing about them.

use broker_core::Pressure;

/// One step of any kind.
#[derive(Clone, Debug)]
pub struct Step {
    pub(super) table: &'static str,
    pub(super) cell: String,
    pub(super) key: (u8, u8, u8),
}

macro_rules! steps {
    ($($(#[$doc:meta])* $kind:ident = $table:literal, $key:literal { $($(#[$of:meta])* $step:ident,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum $kind {
                $($(#[$of])* $step,)*
            }

            impl From<$kind> for Step {
                fn from(step: $kind) -> Self {
                    Self { table: $table, cell: format!("{step:?}"), key: ($key, step as u8, 0) }
                }
            }
        )*

        /// All steps of all kinds.
        pub(super) fn all() -> Vec<Step> {
            let mut all: Vec<Step> = vec![$($($kind::$step.into(),)*)*];
            all.extend(LevelStep::all().map(Step::from));
            all
        }
    };
}

// Smaller keys are those of transitions.
steps! {
    /// Steps of loaded allocations.
    FileStep = "file", 5 {
        /// It was read and is sealed.
        Loaded,
        /// A part was copied out of the file.
        Read,
        /// Its file has changed.
        Lost,
        /// A part left its device without a copy.
        Left,
    }

    /// Steps of turns.
    TurnStep = "turn", 13 {
        /// It was granted after it had waited for another one.
        HandedOver,
        /// Its client was asked to yield.
        Asked,
    }

    /// Steps of parts that are accessed in place.
    InPlaceStep = "place", 6 {
        /// A client mapped it in host memory.
        Mapped,
        /// A client wrote it there.
        Written,
        /// It left host memory after a client had mapped it there.
        Left,
    }

    /// Steps of parts that lie on disk, or should.
    DiskStep = "disk", 7 {
        /// There was no room: other programs have all that is left.
        Full,
        /// A copy took longer than one between a device and the host.
        Slow,
        /// A copy in a lane took longer.
        SlowLane,
        /// A copy ended early.
        Short,
        /// A copy failed in another way.
        Failed,
        /// A copy read other content than was written.
        Damaged,
    }

    /// Settings that operators changed while the daemon ran.
    SettingStep = "settings", 8 {
        /// Bounds of the pressure levels, or what goes with them.
        Levels,
        /// Sizes of tiers.
        Sizes,
        /// Shares of links, where copies go by lanes.
        Shares,
    }

    /// Requests that were repeated when no older one had to be recognised.
    RepeatStep = "repeats", 10 {
        /// The oldest of a session.
        OldestOfSession,
        /// The oldest of an operator.
        OldestOfOperator,
    }

    /// Steps of owners without pins.
    OwnerStep = "owner", 11 {
        /// It mapped a part again that had left its device since.
        Returned,
    }

    /// Steps of the line.
    LineStep = "line", 12 {
        /// A device had more waiters than the core makes room for at a time.
        BeyondLookahead,
    }
}

/// The pressure level of a place changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelStep {
    pub from: Pressure,
    pub to: Pressure,
}

impl LevelStep {
    fn all() -> impl Iterator<Item = Self> {
        let to = |from| Pressure::ALL.into_iter().map(move |to| Self { from, to });
        Pressure::ALL.into_iter().flat_map(to).filter(|step| step.from != step.to)
    }
}

impl From<LevelStep> for Step {
    fn from(LevelStep { from, to }: LevelStep) -> Self {
        Self { table: "level", cell: format!("{from:?} to {to:?}"), key: (9, from as u8, to as u8) }
    }
}
