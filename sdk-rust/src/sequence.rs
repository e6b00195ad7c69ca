//! Declared sequences: a program says once in which order it uses memory, and when it begins each step.
//!
//! Frames of the channel carry all of it, so beginning a step costs no call and waits for nothing.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use vramd_proto::{
    channel::{PARTS_PER_FRAME_MAX, SEQUENCE_PARTS_MAX, SEQUENCE_STEPS_MAX},
    v1::{self, sequence_progress::Step},
};
use vramd_types::{Bytes, Reason};

use crate::{
    channel::ChannelLock,
    error::{Error, Result},
    handles::handle::Handle,
    mapping::Until,
    pins::{Pinnable, private},
    process::fork::ProcessBound,
    session::{Session, call_style::CallStyle, check_process},
};

type Member<'a> = (private::Handle<'a>, Option<Range<u32>>);

/// The order in which a program will use memory: steps, each with the parts that it uses together.
///
/// All memory must be of one device. A sequence has at most 2,048 steps and as many ranges of parts; a step has 1 to
/// 1,024 parts, none of them twice.
///
/// ```no_run
/// # fn demo(client: &vramd_client::Client, layers: &[vramd_client::Sealed]) -> vramd_client::Result<()> {
/// use vramd_client::{Access, SequenceRequest};
///
/// let order = layers.iter().fold(SequenceRequest::new(), |order, layer| order.step().all(layer));
/// let sequence = client.declare_sequence(order)?;
/// loop {
///     for layer in layers {
///         sequence.begin_next()?;
///         let weights = layer.pin(Access::Read)?;
///         // Compute with the weights.
/// #       drop(weights);
///     }
/// #   break Ok(());
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct SequenceRequest<'a> {
    steps: Vec<Vec<Member<'a>>>,
    passes: u64,
}

impl<'a> SequenceRequest<'a> {
    /// A sequence without steps, that is gone through for ever.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the next step. Memory that is added afterwards belongs to it.
    #[must_use]
    pub fn step(mut self) -> Self {
        self.steps.push(Vec::new());
        self
    }

    /// Adds all parts of an allocation to the last step.
    #[must_use]
    pub fn all(self, of: &'a dyn Pinnable) -> Self {
        self.add((of.handle(), None))
    }

    /// Adds some parts of an allocation to the last step.
    #[must_use]
    pub fn parts(self, of: &'a dyn Pinnable, parts: Range<u32>) -> Self {
        self.add((of.handle(), Some(parts)))
    }

    /// How often the program goes through all steps. 0, the default, means for ever.
    #[must_use]
    pub fn passes(mut self, passes: u64) -> Self {
        self.passes = passes;
        self
    }

    fn add(mut self, member: Member<'a>) -> Self {
        match self.steps.last_mut() {
            Some(step) => step.push(member),
            None => self.steps.push(vec![member]),
        }
        self
    }

    fn into_frame(self, is_ours: impl Fn(&Handle) -> bool) -> Result<v1::Sequence> {
        let (mut steps, mut range_count, mut part_count) = (Vec::new(), 0, 0);
        for (number, members) in self.steps.into_iter().enumerate() {
            let mut ranges = Vec::new();
            let mut of_step = 0;
            for (private::Handle(handle), range) in members {
                let id = handle.info().id;
                if !is_ours(handle) {
                    return Err(invalid(&format!("{id} belongs to another session")));
                }
                let parts = handle.anchor().parts(range)?;
                let count = parts.end.saturating_sub(parts.start);
                if count > 0 {
                    let (allocation_id, first_part) = (id.get(), parts.start);
                    ranges.push(v1::PartRange { allocation_id, first_part, part_count: count });
                }
                of_step += usize::try_from(count).unwrap_or(usize::MAX);
            }
            if !(1..=PARTS_PER_FRAME_MAX).contains(&of_step) {
                let problem =
                    format!("step {number} has {of_step} parts; 1 to {PARTS_PER_FRAME_MAX} are allowed");
                return Err(invalid(&problem));
            }
            range_count += ranges.len();
            part_count += of_step;
            steps.push(v1::SequenceStep { ranges });
        }
        let count = steps.len();
        if !(1..=SEQUENCE_STEPS_MAX).contains(&count) {
            return Err(invalid(&format!("there are {count}; 1 to {SEQUENCE_STEPS_MAX} are allowed")));
        }
        if range_count > SEQUENCE_STEPS_MAX {
            let problem = format!("they have {range_count} ranges; at most {SEQUENCE_STEPS_MAX} are allowed");
            return Err(invalid(&problem));
        }
        if part_count > SEQUENCE_PARTS_MAX {
            let problem = format!("they have {part_count} parts; at most {SEQUENCE_PARTS_MAX} are allowed");
            return Err(invalid(&problem));
        }
        Ok(v1::Sequence { sequence_id: 0, steps, passes: self.passes })
    }
}

fn invalid(problem: &str) -> Error {
    Error::refused(Reason::RequestInvalid, &[("field", &"steps"), ("problem", &problem)])
}

/// How the daemon keeps a sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceState {
    /// The daemon works so far ahead of the step that the program is in.
    Running(SequenceWindow),
    /// The program has ended it, or an operator.
    Ended { by_operator: bool },
    /// The daemon could not take it, or the session lost memory of it.
    Refused(Error),
}

/// The steps that the daemon has on the device, or on their way to it, ahead of their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceWindow {
    pub steps: u32,
    /// All parts of these steps together.
    pub bytes: Bytes,
    /// More room for the tenant would let the daemon work further ahead, as copies need.
    pub is_shortened: bool,
    /// Bytes of a pass that stay on the device from one pass to the next. The others are copied in each pass.
    pub kept: Bytes,
}

impl From<Step> for SequenceState {
    fn from(step: Step) -> Self {
        match step {
            Step::Window(v1::SequenceWindow { steps, bytes, shortened, kept_bytes }) => {
                let (bytes, kept) = (Bytes::new(bytes), Bytes::new(kept_bytes));
                Self::Running(SequenceWindow { steps, bytes, is_shortened: shortened, kept })
            }
            Step::Refused(refused) => Self::Refused(refused.into()),
            Step::Ended(it) => Self::Ended { by_operator: it.by_operator },
        }
    }
}

/// A sequence that the daemon has taken. Dropping it ends it.
///
/// It is a promise for speed: the program pins as always, and a pin in another order is slower and not wrong.
#[derive(Debug)]
pub struct Sequence {
    session: ProcessBound<Session>,
    number: u64,
    next: AtomicU64,
}

impl Sequence {
    /// The number that operators see beside its requests: `vramctl prefetch list`.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Begins the next step, and returns its number over all passes, from 0. The program has ended the earlier steps and
    /// pins their parts no longer. It waits for nothing.
    pub fn begin_next(&self) -> Result<u64> {
        check_process(&self.session)?;
        let channel = self.session.link().lock_channel();
        let step = self.next.fetch_add(1, Ordering::Relaxed);
        self.send_begun(channel, step).map(|()| step)
    }

    /// Begins a step out of turn, by its number over all passes. It must be greater than all that were begun before;
    /// those between are left out.
    pub fn begin(&self, step: u64) -> Result<()> {
        check_process(&self.session)?;
        let channel = self.session.link().lock_channel();
        let next = self.next.load(Ordering::Relaxed);
        if step < next {
            let problem = format!("step {step} is begun, and the next one is {next}");
            return Err(Error::refused(Reason::RequestInvalid, &[("field", &"step"), ("problem", &problem)]));
        }
        self.next.store(step.saturating_add(1), Ordering::Relaxed);
        self.send_begun(channel, step)
    }

    /// Returns how the daemon keeps it. It makes no call.
    pub fn state(&self) -> Result<SequenceState> {
        check_process(&self.session)?;
        self.session.table().sequence_state(self.number)?.ok_or_else(Error::deadline)
    }

    /// Ends it, as dropping it does.
    pub fn end(self) {}

    /// Frames of one sequence go out in their order, under the lock of the channel.
    fn send_begun(&self, channel: ChannelLock<'_>, step: u64) -> Result<()> {
        if let Some(ending) = self.session.table().ending() {
            return Err(ending.error());
        }
        let sent = channel.send_sequence_step(v1::SequenceStepBegun { sequence_id: self.number, step });
        drop(channel);
        sent.map_err(|error| self.session.lost(&error))
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        if self.session.is_own_process() {
            self.session.table().forget_sequence(self.number);
            let ended = v1::SequenceEnded { sequence_id: self.number };
            self.session.send_end(|channel| channel.send_sequence_ended(ended));
        }
    }
}

/// Declares a sequence, and waits for the daemon's answer to it.
pub(crate) async fn declare(
    style: CallStyle,
    session: &ProcessBound<Session>,
    request: SequenceRequest<'_>,
) -> Result<Sequence> {
    check_process(session)?;
    if !session.takes_sequences() {
        return Err(Error::refused(Reason::KindUnsupported, &[("kind", &"sequences")]));
    }
    let frame = request.into_frame(|handle| handle.is_of(session))?;
    let number = session.send_sequence(frame)?;
    let declared = Sequence { session: session.clone(), number, next: AtomicU64::new(0) };
    style.wait(session, Until::Declared { number }, session.deadline()).await?;
    match declared.state()? {
        SequenceState::Refused(error) => Err(error),
        _ => Ok(declared),
    }
}

impl Session {
    /// Sends a sequence. Sequences reach the daemon in the order of their numbers.
    fn send_sequence(&self, mut frame: v1::Sequence) -> Result<u64> {
        let channel = self.link().lock_channel();
        let number = self.table().open_sequence()?;
        frame.sequence_id = number;
        let sent = channel.send_sequence(frame);
        drop(channel);
        sent.map(|()| number).map_err(|error| self.lost(&error))
    }
}
