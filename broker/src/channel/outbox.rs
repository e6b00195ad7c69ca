//! The bounded queue of frames to send on one channel. A client that does not read loses its channel, and never costs
//! the daemon unbounded memory.
//!
//! Of pressure notes only the last of a place counts. They wait beside the frames, one for each place, and are sent
//! when no frame is left. So notes delay nothing, fill nothing, and never end a channel.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use broker_core::Tier;
use tokio::{sync::Notify, time::Instant};
use vramd_types::DeviceIndex;

use super::OutFrame;

/// Maximum frames that wait. The daemon sends a packet with descriptors only once the one before is acknowledged, so
/// the frames that pile up are small: revokes and notes.
const FRAMES_MAX: usize = 4096;
const BYTES_MAX: usize = 4 << 20;

/// How long a closing channel waits for its client to read the queued frames.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Outbox {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    frames: VecDeque<OutFrame>,
    /// The bytes of all frames, without notes.
    bytes: usize,
    notes: BTreeMap<(DeviceIndex, Tier), OutFrame>,
    /// Whether the writing task has a frame that it has not sent yet.
    sending: bool,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// Ends after the queued frames, or at this time.
    Closing(Instant),
    /// Ends at once, whatever is queued.
    Now,
}

/// The outbox is full, so its channel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Outbox {
    pub(super) fn new() -> Self {
        let (frames, notes) = (VecDeque::new(), BTreeMap::new());
        let state = State { frames, bytes: 0, notes, sending: false, end: End::Open };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Sends a frame with `send` if no frame waits before it and `send` succeeds at once, which is usual and spares a
    /// change of tasks. Otherwise queues it. After the end the frame is dropped.
    pub(super) fn push(&self, frame: OutFrame, send: impl FnOnce(&OutFrame) -> bool) -> Result<(), Full> {
        let mut state = self.state();
        if state.end != End::Open {
            return Ok(());
        }
        let is_last = frame.note_of.is_none_or(|place| !state.notes.contains_key(&place));
        if state.frames.is_empty() && !state.sending && is_last && send(&frame) {
            return Ok(());
        }
        if let Some(place) = frame.note_of {
            state.notes.insert(place, frame);
            self.changed.notify_one();
            return Ok(());
        }
        if state.frames.len() == FRAMES_MAX || state.bytes + frame.bytes.len() > BYTES_MAX {
            drop(state);
            self.abort();
            return Err(Full);
        }
        state.bytes += frame.bytes.len();
        state.frames.push_back(frame);
        self.changed.notify_one();
        Ok(())
    }

    /// Accepts no further frames. The queued frames are sent if the client reads them soon; notes are dropped.
    pub(super) fn close(&self) {
        let mut state = self.state();
        if state.end == End::Open {
            state.notes.clear();
            state.end = End::Closing(Instant::now() + CLOSE_TIMEOUT);
            self.changed.notify_one();
        }
    }

    /// Drops the queued frames, and their descriptors with them.
    pub(super) fn abort(&self) {
        let mut state = self.state();
        state.end = End::Now;
        state.bytes = 0;
        state.notes.clear();
        let dropped = std::mem::take(&mut state.frames);
        drop(state);
        drop(dropped);
        self.changed.notify_one();
    }

    /// Waits for the next frame to send. `None` at the end. Only the writing task calls it.
    pub(super) async fn next(&self) -> Option<OutFrame> {
        loop {
            {
                let mut state = self.state();
                state.sending = false;
                if let Some(frame) = state.frames.pop_front() {
                    state.bytes -= frame.bytes.len();
                    state.sending = true;
                    return Some(frame);
                }
                if let Some((_, note)) = state.notes.pop_first() {
                    state.sending = true;
                    return Some(note);
                }
                if state.end != End::Open {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Returns when the writing task must give up a frame that the client does not read.
    pub(super) async fn overdue(&self) {
        loop {
            let end = self.state().end;
            match end {
                End::Now => return,
                End::Closing(at) => return tokio::time::sleep_until(at).await,
                End::Open => self.changed.notified().await,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while the lock is taken, and a half-done change is valid: fields are only replaced.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: usize) -> OutFrame {
        OutFrame { bytes: vec![0; bytes], exports: vec![], note_of: None }
    }

    fn note(device: u16, bytes: usize) -> OutFrame {
        OutFrame { note_of: Some((DeviceIndex(device), Tier::Device)), ..frame(bytes) }
    }

    async fn next(outbox: &Outbox) -> Option<usize> {
        outbox.next().await.map(|frame| frame.bytes.len())
    }

    #[tokio::test]
    async fn only_the_newest_note_of_a_place_waits_behind_all_frames() {
        let outbox = Outbox::new();
        outbox.push(note(1, 1), |_| false).unwrap();
        outbox.push(note(0, 2), |_| false).unwrap();
        outbox.push(frame(3), |_| false).unwrap();
        outbox.push(note(1, 4), |_| panic!("out of order")).unwrap();
        let order = [next(&outbox).await, next(&outbox).await, next(&outbox).await];
        assert_eq!(order, [Some(3), Some(2), Some(4)]);
        outbox.push(note(1, 5), |_| panic!("the last may not have been sent yet")).unwrap();
        assert_eq!(next(&outbox).await, Some(5));
    }

    #[tokio::test]
    async fn a_note_that_can_be_sent_at_once_is_unless_an_older_one_waits() {
        let outbox = Outbox::new();
        outbox.push(note(0, 1), |_| true).unwrap();
        outbox.push(note(0, 2), |_| false).unwrap();
        outbox.push(note(0, 3), |_| panic!("the older would come after it")).unwrap();
        outbox.push(note(1, 4), |_| true).unwrap();
        assert_eq!(next(&outbox).await, Some(3));
    }

    #[tokio::test]
    async fn notes_never_fill_an_outbox_and_end_with_it() {
        let outbox = Outbox::new();
        for _ in 0..FRAMES_MAX {
            outbox.push(frame(1), |_| false).unwrap();
        }
        for bytes in 0..2 * FRAMES_MAX {
            outbox.push(note(0, bytes), |_| false).unwrap();
        }
        outbox.close();
        for _ in 0..FRAMES_MAX {
            assert_eq!(next(&outbox).await, Some(1));
        }
        assert_eq!(next(&outbox).await, None);
    }

    #[tokio::test]
    async fn closing_sends_what_is_queued_and_takes_no_more() {
        let outbox = Outbox::new();
        outbox.push(frame(1), |_| false).unwrap();
        outbox.close();
        outbox.push(frame(2), |_| false).unwrap();
        assert_eq!(outbox.next().await.map(|frame| frame.bytes.len()), Some(1));
        assert!(outbox.next().await.is_none());
    }

    #[tokio::test]
    async fn a_full_outbox_ends_the_channel() {
        for (size, fits) in [(1, FRAMES_MAX), (64 << 10, BYTES_MAX / (64 << 10))] {
            let outbox = Outbox::new();
            for _ in 0..fits {
                outbox.push(frame(size), |_| false).unwrap();
            }
            assert_eq!(outbox.push(frame(size), |_| false), Err(Full));
            assert!(outbox.next().await.is_none());
            outbox.overdue().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_closing_outbox_gives_up_after_its_timeout() {
        let outbox = Outbox::new();
        let before = Instant::now();
        outbox.close();
        outbox.overdue().await;
        assert_eq!(before.elapsed(), CLOSE_TIMEOUT);
    }

    #[tokio::test]
    async fn a_frame_is_sent_at_once_unless_another_waits() {
        let outbox = Outbox::new();
        outbox.push(frame(1), |_| true).unwrap();
        outbox.push(frame(2), |_| false).unwrap();
        outbox.push(frame(3), |_| panic!("out of order")).unwrap();
        assert_eq!(outbox.next().await.map(|frame| frame.bytes.len()), Some(2));
        assert_eq!(outbox.next().await.map(|frame| frame.bytes.len()), Some(3));
        outbox.push(frame(4), |_| panic!("the third may not have been sent yet")).unwrap();
        assert_eq!(outbox.next().await.map(|frame| frame.bytes.len()), Some(4));
    }
}
