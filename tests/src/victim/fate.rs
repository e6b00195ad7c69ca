//! The fate of a victim: its life, and where and how that ends.

use clap::{Args, ValueEnum};

use crate::MIB_2;

/// A life. The steps before its own are done without dying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Script {
    /// Opens a session, allocates, maps and writes.
    Allocate,
    /// The same with more parts than one packet carries.
    Batch,
    Seal,
    /// Frees its memory, and unmaps it when it is asked to.
    Free,
    /// Maps memory that a survivor has sealed.
    Attach,
    Detach,
    /// Closes the channel and opens another session, which reports that the first one's memory is unmapped.
    Reconnect,
    /// Learns that the node is draining.
    Drain,
    /// Is ended by an operator.
    End,
    // The same through the SDK, which frees and detaches by unmapping first.
    SdkAllocate,
    SdkSeal,
    SdkAttach,
    SdkFree,
    SdkDetach,
    SdkReconnect,
    SdkDrain,
    SdkEnd,
    // The same where the daemon revokes mappings all the time.
    /// Pins what it uses while it uses it.
    SdkPin,
    SdkPinSeal,
    SdkPinDetach,
    // The same where memory moves all the time, and is short.
    /// Pins what it has, writes it, and unmaps what it is told to, again and again.
    Move,
    /// The same with memory that a survivor has sealed, which it reads.
    MoveAttach,
    SdkMove,
    SdkMoveAttach,
}

/// The activity of the daemon all the time during a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    Nothing,
    /// It revokes mappings.
    Revoking,
    /// It moves memory to the host and the disk, and back.
    Moving,
}

/// A completed step of the protocol. Later steps are not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// The channel is connected, and nothing is sent.
    Connected,
    HelloSent,
    Welcomed,
    /// The SDK is about to call.
    CallBegins,
    /// The call is sent, and the victim does not wait for its answer.
    CallSent,
    Answered,
    /// A packet can be read. In the SDK its content is unknown.
    PacketWaits,
    MapWaits,
    MapReceived,
    HalfMapped,
    Mapped,
    MapAnswered,
    /// The second packet of a batch.
    SecondWaits,
    SecondReceived,
    SecondMapped,
    SecondAnswered,
    Written,
    RevokeWaits,
    RevokeReceived,
    HalfUnmapped,
    Unmapped,
    HalfAnswered,
    UnmapAnswered,
    /// Unmapped without being asked, and not reported.
    LetGo,
    /// A pin call is sent.
    PinCalled,
    /// A part of the pin call moves to the device.
    Coming,
    PinAnswered,
    /// The victim has reported that it no longer needs its pins.
    PinEnded,
    /// A part that it has unmapped moves to the host, or to disk.
    Leaving,
    /// All its parts are below their device.
    Out,
    ChannelClosed,
    DrainWaits,
    DrainReceived,
    /// The daemon has told it that the session is over.
    EndHeard,
}

/// How a victim ends at its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Death {
    /// SIGKILL at the step.
    Kill,
    /// SIGKILL while it goes on.
    Race,
    /// SIGSTOP, and SIGKILL later.
    Stop,
    /// It closes its channel, or shuts it down, and lives on.
    Close,
    /// It can open no more descriptors, and goes on as far as it gets.
    NoFds,
}

/// The arguments of a victim.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Fate {
    #[arg(long)]
    pub script: Script,
    #[arg(long)]
    pub step: Step,
    #[arg(long)]
    pub death: Death,
    /// The number of the case, which names its session, its memory and its content.
    #[arg(long)]
    pub case: u64,
    /// How many parts it allocates. A batch has more.
    #[arg(long)]
    pub parts: u64,
    /// Whether its allocation is persistent.
    #[arg(long)]
    pub persistent: bool,
    /// Whether it shuts its channel down, and keeps the socket with its unread packets, instead of closing it.
    #[arg(long)]
    pub shuts_down: bool,
    /// In the SDK: whether its channel is closed only when packets in flight have arrived.
    #[arg(long)]
    pub late: bool,
    /// How many descriptors it can still open at its step, if it ends by a lack of them.
    #[arg(long)]
    pub spare_fds: u64,
    /// `tenant/name` of the allocation that it attaches.
    #[arg(long)]
    pub target: String,
}

impl Script {
    /// The steps at which it can end, in the order of its life.
    pub fn steps(self) -> &'static [Step] {
        #[allow(clippy::enum_glob_use, reason = "the table is read by its columns")]
        use Step::*;
        match self {
            Self::Allocate => &[
                Connected,
                HelloSent,
                Welcomed,
                CallSent,
                Answered,
                MapWaits,
                MapReceived,
                HalfMapped,
                Mapped,
                MapAnswered,
                Written,
            ],
            Self::Batch => &[
                CallSent,
                Answered,
                MapReceived,
                HalfMapped,
                Mapped,
                MapAnswered,
                SecondWaits,
                SecondReceived,
                SecondMapped,
                SecondAnswered,
            ],
            Self::Seal => &[
                CallSent,
                RevokeWaits,
                RevokeReceived,
                HalfUnmapped,
                Unmapped,
                HalfAnswered,
                UnmapAnswered,
                Answered,
                MapWaits,
                MapReceived,
                HalfMapped,
                Mapped,
                MapAnswered,
            ],
            Self::Free | Self::Detach => &[
                CallSent,
                RevokeWaits,
                RevokeReceived,
                HalfUnmapped,
                Unmapped,
                HalfAnswered,
                UnmapAnswered,
                Answered,
            ],
            Self::Attach => &[CallSent, Answered, MapWaits, MapReceived, HalfMapped, Mapped, MapAnswered],
            Self::Reconnect => {
                &[ChannelClosed, Unmapped, Connected, HelloSent, Welcomed, Answered, MapAnswered]
            }
            Self::Drain => &[DrainWaits, DrainReceived],
            Self::End => {
                &[RevokeWaits, RevokeReceived, HalfUnmapped, Unmapped, HalfAnswered, UnmapAnswered, EndHeard]
            }
            Self::SdkAllocate => &[
                Connected,
                HelloSent,
                Welcomed,
                CallBegins,
                PacketWaits,
                MapReceived,
                Mapped,
                MapAnswered,
                Answered,
                Written,
            ],
            Self::SdkSeal => &[
                CallBegins,
                PacketWaits,
                RevokeReceived,
                Unmapped,
                UnmapAnswered,
                Answered,
                MapReceived,
                Mapped,
                MapAnswered,
            ],
            Self::SdkAttach => &[CallBegins, PacketWaits, MapReceived, Mapped, MapAnswered, Answered],
            Self::SdkFree | Self::SdkDetach => &[LetGo, UnmapAnswered, CallBegins, Answered],
            Self::SdkReconnect => &[Connected, HelloSent, Welcomed, Mapped],
            Self::SdkDrain => &[PacketWaits, DrainReceived],
            Self::SdkEnd => &[PacketWaits, RevokeReceived, Unmapped, UnmapAnswered, EndHeard],
            Self::SdkPin | Self::SdkMove => &[
                PinCalled,
                PacketWaits,
                MapReceived,
                Mapped,
                MapAnswered,
                PinAnswered,
                RevokeReceived,
                Unmapped,
                UnmapAnswered,
            ],
            Self::SdkPinSeal => &[CallBegins, Answered, MapReceived, Mapped, MapAnswered],
            Self::SdkPinDetach => &[CallBegins, Answered],
            Self::Move => &[
                PinCalled,
                Coming,
                PacketWaits,
                MapReceived,
                HalfMapped,
                Mapped,
                MapAnswered,
                PinAnswered,
                PinEnded,
                RevokeReceived,
                HalfUnmapped,
                Unmapped,
                HalfAnswered,
                UnmapAnswered,
                Leaving,
                Out,
            ],
            Self::MoveAttach => {
                &[MapReceived, HalfMapped, MapAnswered, PinAnswered, PinEnded, RevokeReceived, HalfUnmapped]
            }
            Self::SdkMoveAttach => &[MapReceived, Mapped, PinAnswered, RevokeReceived, Unmapped],
        }
    }

    /// The setting in which its steps are certain to happen.
    pub fn setting(self) -> Setting {
        match self {
            Self::SdkPin | Self::SdkPinSeal | Self::SdkPinDetach => Setting::Revoking,
            Self::Move | Self::MoveAttach | Self::SdkMove | Self::SdkMoveAttach => Setting::Moving,
            _ => Setting::Nothing,
        }
    }

    pub fn is_of_sdk(self) -> bool {
        matches!(
            self,
            Self::SdkAllocate
                | Self::SdkSeal
                | Self::SdkAttach
                | Self::SdkFree
                | Self::SdkDetach
                | Self::SdkReconnect
                | Self::SdkDrain
                | Self::SdkEnd
                | Self::SdkPin
                | Self::SdkPinSeal
                | Self::SdkPinDetach
                | Self::SdkMove
                | Self::SdkMoveAttach
        )
    }
}

impl Fate {
    /// The requested size, which is no multiple of the part size.
    pub fn size(&self) -> u64 {
        self.parts * MIB_2 - 1
    }

    pub fn client_name(&self) -> String {
        format!("case-{}", self.case)
    }

    /// The fate as arguments of a command line.
    pub fn arguments(&self) -> Vec<String> {
        let named = |value: Option<clap::builder::PossibleValue>| {
            value.expect("no value is hidden").get_name().to_owned()
        };
        let mut arguments = vec![
            format!("--script={}", named(self.script.to_possible_value())),
            format!("--step={}", named(self.step.to_possible_value())),
            format!("--death={}", named(self.death.to_possible_value())),
            format!("--case={}", self.case),
            format!("--parts={}", self.parts),
            format!("--spare-fds={}", self.spare_fds),
            format!("--target={}", self.target),
        ];
        arguments.extend(self.persistent.then(|| "--persistent".to_owned()));
        arguments.extend(self.shuts_down.then(|| "--shuts-down".to_owned()));
        arguments.extend(self.late.then(|| "--late".to_owned()));
        arguments
    }
}

/// The content that the victim of that case writes.
pub fn content(case: u64, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(size).expect("a test's content fits in memory")];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&case.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}
