//! What worlds must meet besides the transitions of the core's tables: without it they would prove nothing of it.

use broker_core::Pressure;

/// One of any kind.
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

        /// Each of each kind.
        pub(super) fn all() -> Vec<Step> {
            let mut all: Vec<Step> = vec![$($($kind::$step.into(),)*)*];
            all.extend(LevelStep::all().map(Step::from));
            all
        }
    };
}

// The keys of transitions are those before.
steps! {
    /// What becomes of what is loaded.
    FileStep = "file", 5 {
        /// It was read, and is sealed.
        Loaded,
        /// A part of it was copied out of its file.
        Read,
        /// Its file has changed.
        Lost,
        /// A part of it has left its device without a copy.
        Left,
    }

    /// What becomes of what is accessed in place.
    InPlaceStep = "place", 6 {
        /// A client mapped it in the host's memory.
        Mapped,
        /// And wrote it there.
        Written,
        /// It left the host's memory after somebody had mapped it there.
        Left,
    }

    /// What becomes of what lies on disk, or should.
    DiskStep = "disk", 7 {
        /// There was no room for it: others have all that is left.
        Full,
        /// A copy took longer than one between a device and the host.
        Slow,
        /// A lane did.
        SlowLane,
        /// A copy ended before its end.
        Short,
        /// A copy failed in another way.
        Failed,
        /// What was read is not what was written.
        Damaged,
    }

    /// What operators changed while the daemon ran.
    SettingStep = "settings", 8 {
        /// Where levels of pressure begin, or what goes with them.
        Levels,
        /// How large tiers are.
        Sizes,
        /// The shares of links, where copies go by some.
        Shares,
    }
}

/// A device, or a tier below it, is more or less full than before.
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
