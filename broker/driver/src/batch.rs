//! Work that is done piece by piece and told together.
//!
//! A completion wakes whoever waits for it, and a wake costs about as much as making an extent. So what a thread finds
//! in its queue it does first, up to a bound, and tells afterwards.

use std::{iter, sync::mpsc::Receiver};

use crate::Completion;

/// Most pieces of work, told by us or by somebody else, before what is done is told: half a millisecond of creating
/// extents.
const TOLD_TOGETHER_MAX: usize = 16;

/// Until nobody can send any more. What `work` has no completion for is told by somebody else.
pub(crate) fn run<T>(
    queue: &Receiver<T>,
    mut work: impl FnMut(T) -> Option<Completion>,
    tell: impl Fn(Completion),
) {
    while let Ok(first) = queue.recv() {
        let mut done = Vec::with_capacity(TOLD_TOGETHER_MAX);
        let ready = iter::once(first).chain(queue.try_iter());
        done.extend(ready.take(TOLD_TOGETHER_MAX).filter_map(&mut work));
        done.into_iter().for_each(&tell);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, sync::mpsc::channel};

    use vramd_types::ExtentId;

    use super::*;

    #[test]
    fn what_waits_is_told_together_and_in_order_and_nothing_waits_for_more() {
        let (sender, queue) = channel();
        (0..40).for_each(|raw| sender.send(raw).unwrap());
        drop(sender);
        let log = RefCell::new(Vec::new());
        let work = |raw: u64| {
            log.borrow_mut().push(("work", raw));
            (raw % 4 != 3).then(|| Completion::Returned { extent: ExtentId::from_raw(raw) })
        };
        run(&queue, work, |completion| {
            let Completion::Returned { extent } = completion else { panic!("{completion:?}") };
            log.borrow_mut().push(("told", extent.get()));
        });
        let of =
            |kind| log.borrow().iter().filter(|(is, _)| *is == kind).map(|(_, raw)| *raw).collect::<Vec<_>>();
        assert_eq!(of("work"), (0..40).collect::<Vec<_>>());
        assert_eq!(of("told"), (0..40).filter(|raw| *raw % 4 != 3).collect::<Vec<_>>());
        let first_told = log.borrow().iter().position(|(is, _)| *is == "told");
        assert_eq!(first_told, Some(TOLD_TOGETHER_MAX), "work without a completion counts too");
    }
}
