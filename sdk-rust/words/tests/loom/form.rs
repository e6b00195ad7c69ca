//! The wrong forms of the protocol: each is one change to the right one, planted where the model asks for it.

use std::sync::atomic::Ordering;

use crate::step::Step;

/// The mistake of this run's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The mapping that a write pin waited for is granted as if it were for reading.
    BringInWithoutWritten,
    /// A part that is mapped again starts with a word of its own, not with the one that it left behind.
    RestoreForgetsWritten,
    /// A write-back reads the pins, and clears WRITTEN afterwards.
    WriteBackInTwoSteps,
    /// A failed write-back leaves the backing marked clean as before.
    OldShadowKept,
    /// A reader of sealed memory is asked whether it wrote.
    ReadersWrittenBelieved,
    /// The daemon concludes from the word that no session maps the part, while a `map` is on its way.
    AbsentTakenForUnmapped,
    /// A slow move is undone in the word, though the frame is on its way. The worker is the right one.
    RollBackAfterFrame,
    /// The same, with a worker that tolerates it: it answers every frame, so that the daemon need not know which one
    /// counted. The daemon believes every answer, since it cannot tell them apart.
    RollBackWithTwoAnswers,
    /// An answer after the deadline is thrown away.
    LateAnswerIgnored,
    /// Every call that waited when the frame arrived gets a pin, still waiting or not.
    PinsForWhoLeft,
    /// An unpin is a subtraction.
    UnpinBySubtraction,
    /// An unpin reads the pins, and stores one less afterwards.
    UnpinInTwoSteps,
    /// A step with this ordering. With AcqRel it is the right protocol, executed by the model.
    Ordered(Step, Ordering),
}
