//! Lines on their way to stderr. A thread of its own writes them, from a bounded queue, so that nothing waits for a
//! reader that does not read. Lines beyond the queue are dropped and counted.
//!
//! The thread of `tracing-appender` does the same, and reports to stderr when it cannot end in time. If stderr is not
//! read, that report would wait for ever, and with it the stop of the daemon.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

use super::counters::Counters;

/// Maximum lines that wait to be written.
const LINES_MAX: usize = 8_192;

/// A line, or the wish to know when all lines before it are written.
enum Message {
    Line(Box<[u8]>),
    Flush(Sender<()>),
}

/// Queues lines. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Lines {
    queue: SyncSender<Message>,
    counters: Arc<Counters>,
}

impl Lines {
    /// Starts the thread that writes to `out`.
    pub(super) fn start(out: impl Write + Send + 'static, counters: Arc<Counters>) -> io::Result<Self> {
        let (queue, waiting) = sync_channel(LINES_MAX);
        thread::Builder::new().name("vramd-log".to_owned()).spawn(move || write_all(out, &waiting))?;
        Ok(Self { queue, counters })
    }

    /// Waits until all lines so far are written, or until the time is over.
    pub fn flush_within(&self, limit: Duration) {
        let (written, all_written) = channel();
        if self.queue.try_send(Message::Flush(written)).is_ok() {
            // An error means that the time is over, or that stderr is closed.
            let _ = all_written.recv_timeout(limit);
        }
    }
}

/// One event is one write.
impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Message::Line(line.into())).is_err() {
            self.counters.count_lost_line();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

fn write_all(mut out: impl Write, waiting: &Receiver<Message>) {
    while let Ok(message) = waiting.recv() {
        match message {
            // A reader that has gone may be followed by another, on the same terminal or file.
            Message::Line(line) => _ = out.write_all(&line),
            Message::Flush(written) => _ = written.send(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn lines_beyond_the_queue_are_dropped_and_counted() {
        // The other end is not read, so the thread soon waits in a write.
        let (out, unread) = UnixStream::pair().unwrap();
        let counters = Arc::new(Counters::default());
        let mut lines = Lines::start(out, Arc::clone(&counters)).unwrap();
        let line = [b'x'; 1024];
        for _ in 0..2 * LINES_MAX {
            assert_eq!(lines.write(&line).unwrap(), line.len());
        }
        assert!(counters.lost_lines() > 0);
        lines.flush_within(Duration::from_millis(1));
        drop(unread);
    }

    #[test]
    fn flushed_lines_are_written_in_order() {
        let (out, mut read) = UnixStream::pair().unwrap();
        let mut lines = Lines::start(out, Arc::default()).unwrap();
        lines.write_all(b"one\n").unwrap();
        lines.write_all(b"two\n").unwrap();
        lines.flush_within(Duration::from_secs(60));
        let mut text = [0; 8];
        io::Read::read_exact(&mut read, &mut text).unwrap();
        assert_eq!(&text, b"one\ntwo\n");
    }
}
