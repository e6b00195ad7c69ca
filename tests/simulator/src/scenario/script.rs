//! The scripts of client processes.

/// How a process behaves. Every process does everything now and then; the weights differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Allocates, seals, attaches and frees.
    Steady,
    /// Allocates until it is refused, and frees late.
    Greedy,
    /// Allocates several times what exists, keeps it, and uses one allocation after the other.
    Turning,
    /// Sleeps long, then makes many calls at once.
    Bursty,
    /// Ends in the middle of things.
    Crashing,
    /// Frees nothing, and keeps descriptors of what it unmapped.
    Leaking,
    /// Answers nothing for a while.
    Stopped,
    /// Breaks the protocol.
    Lying,
    /// Detaches what it owns and attaches it again. Only some worlds have it.
    Returning,
}

/// How often a process chooses each act, relative to the others.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    pub allocate: u64,
    pub free: u64,
    pub detach: u64,
    pub seal: u64,
    pub attach: u64,
    pub repeat: u64,
    pub ask: u64,
    pub unmap: u64,
    pub reopen: u64,
    pub leave: u64,
}

impl Script {
    pub const ALL: [Self; 9] = [
        Self::Steady,
        Self::Greedy,
        Self::Turning,
        Self::Turning,
        Self::Bursty,
        Self::Crashing,
        Self::Leaking,
        Self::Stopped,
        Self::Lying,
    ];

    pub const fn weights(self) -> Weights {
        let usual = Weights {
            allocate: 24,
            free: 16,
            detach: 8,
            seal: 14,
            attach: 14,
            repeat: 8,
            ask: 6,
            unmap: 3,
            reopen: 1,
            leave: 1,
        };
        match self {
            Self::Steady | Self::Bursty | Self::Stopped | Self::Lying => usual,
            Self::Greedy => Weights { allocate: 50, free: 10, ..usual },
            Self::Turning => Weights { allocate: 40, free: 3, detach: 2, seal: 4, ..usual },
            Self::Crashing => Weights { leave: 4, ..usual },
            Self::Leaking => Weights { free: 2, detach: 12, ..usual },
            Self::Returning => {
                Weights { free: 3, detach: 30, seal: 3, attach: 40, repeat: 2, ask: 2, unmap: 12, ..usual }
            }
        }
    }

    /// By which factor a process of this kind exceeds the usual rate of its own kind of trouble.
    pub const fn factor(self, of: Self) -> u64 {
        if matches!(
            (self, of),
            (Self::Crashing, Self::Crashing)
                | (Self::Leaking, Self::Leaking)
                | (Self::Stopped, Self::Stopped)
                | (Self::Lying, Self::Lying)
        ) {
            6
        } else {
            1
        }
    }
}
