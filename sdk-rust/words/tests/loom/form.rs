//! The forms of the protocol that break: each is one change to the right one, planted where the model asks for it.

use std::sync::atomic::Ordering;

use crate::step::Step;

/// What is wrong with this run's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The mapping that a write pin waited for is granted as if it were for reading.
    BringInWithoutWritten,
    /// A part that is mapped again starts with a word of its own, not with the one that it left behind.
    RestoreForgetsWritten,
    /// A write-back looks for pins, and clears WRITTEN after that.
    WriteBackInTwoSteps,
    /// A write-back that fails leaves the shadow of before.
    OldShadowKept,
    /// A reader of sealed memory is asked whether it wrote.
    ReadersWrittenBelieved,
    /// The daemon reads from the word that nobody maps, while a `map` is on its way.
    AbsentTakenForUnmapped,
    /// A move that takes too long is undone in the word, though the frame is on its way. The worker is the right one.
    RollBackAfterFrame,
    /// The same, with a worker that bears it: it answers every frame, so that the daemon need not know which one counted.
    /// And a daemon that believes every answer, since it can't tell either.
    RollBackWithTwoAnswers,
    /// An answer that comes after the deadline is thrown away.
    LateAnswerIgnored,
    /// Who waited when the frame came gets a pin, waiting or not.
    PinsForWhoLeft,
    /// An unpin is a subtraction.
    UnpinBySubtraction,
    /// An unpin looks at the pins, and stores one less after that.
    UnpinInTwoSteps,
    /// A step with this ordering. With AcqRel it is the right protocol, in the model's hand.
    Ordered(Step, Ordering),
}
