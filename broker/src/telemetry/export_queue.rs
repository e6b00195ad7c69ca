//! Queues spans and log records for the collector. No thread of the daemon waits for the collector: if it is absent or
//! slow, items that do not fit into a queue are dropped and counted, and the log reports it once.

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use opentelemetry_sdk::error::OTelSdkResult;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use super::counters::Counters;
use crate::config::Signal;

/// Maximum spans or log records in one queue.
const QUEUE_MAX: usize = 4096;
/// Maximum spans or log records in one message.
const BATCH_MAX: usize = 512;
/// How long a message waits for further items.
const BATCH_DELAY: Duration = Duration::from_millis(200);
/// How long the collector may take to answer. After that the message is lost.
pub(super) const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum time between two log lines about a slow collector.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// The writing end of a queue, for every thread.
#[derive(Clone, Debug)]
pub(super) struct Queue<T> {
    signal: Signal,
    sender: mpsc::Sender<T>,
    counters: Arc<Counters>,
}

/// The reading end of a queue.
#[derive(Debug)]
pub(super) struct QueueReader<T> {
    signal: Signal,
    receiver: mpsc::Receiver<T>,
    counters: Arc<Counters>,
}

pub(super) fn queue<T>(signal: Signal, counters: &Arc<Counters>) -> (Queue<T>, QueueReader<T>) {
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    (
        Queue { signal, sender, counters: Arc::clone(counters) },
        QueueReader { signal, receiver, counters: Arc::clone(counters) },
    )
}

impl<T> Queue<T> {
    /// Queues an item, or drops and counts it. Never waits.
    pub(super) fn put(&self, item: T) {
        if self.sender.try_send(item).is_err() {
            self.counters.count_dropped(self.signal, 1);
        }
    }
}

impl<T> QueueReader<T> {
    /// Sends until the stop, and then what is left in the queue.
    pub(super) async fn send(
        mut self,
        mut stop: watch::Receiver<bool>,
        export: impl AsyncFn(Vec<T>) -> OTelSdkResult,
    ) {
        let mut health = Health::new(self.signal);
        while let Some(batch) = self.batch(&mut stop).await {
            let items = batch.len();
            let sent = within_timeout(export(batch)).await;
            if sent.is_err() {
                self.counters.count_dropped(self.signal, items);
                self.counters.count_export_failure(self.signal);
            }
            health.report(&sent, self.dropped());
        }
    }

    /// Returns the next items, together with those that arrive soon after. `None` once there will be no more.
    async fn batch(&mut self, stop: &mut watch::Receiver<bool>) -> Option<Vec<T>> {
        let mut batch = Vec::new();
        tokio::select! {
            _ = self.receiver.recv_many(&mut batch, BATCH_MAX) => {}
            () = stopped(stop), if !self.receiver.is_closed() => self.receiver.close(),
        }
        let more = async {
            while batch.len() < BATCH_MAX && !self.receiver.is_closed() {
                let room = BATCH_MAX - batch.len();
                self.receiver.recv_many(&mut batch, room).await;
            }
        };
        tokio::select! {
            _ = timeout(BATCH_DELAY, more) => {}
            () = stopped(stop) => {}
        }
        while batch.len() < BATCH_MAX
            && let Ok(item) = self.receiver.try_recv()
        {
            batch.push(item);
        }
        (!batch.is_empty() || !self.receiver.is_closed()).then_some(batch)
    }

    fn dropped(&self) -> u64 {
        self.counters.all_dropped().find(|(of, _)| *of == self.signal).map_or(0, |(_, count)| count)
    }
}

/// Waits for an export, for at most [`EXPORT_TIMEOUT`].
pub(super) async fn within_timeout(export: impl Future<Output = OTelSdkResult>) -> Result<(), String> {
    match timeout(EXPORT_TIMEOUT, export).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(with_causes(&error)),
        Err(_) => Err(format!("no answer within {} s", EXPORT_TIMEOUT.as_secs())),
    }
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

/// Returns when the stop is requested, or its sender is gone.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// The state of sending one signal, as the log has reported it.
#[derive(Debug)]
pub(super) struct Health {
    signal: Signal,
    failing: bool,
    dropped: u64,
    last_complaint: Option<Instant>,
}

impl Health {
    pub(super) fn new(signal: Signal) -> Self {
        Self { signal, failing: false, dropped: 0, last_complaint: None }
    }

    /// Logs when sending begins to fail and when it works again, and seldom in between. `dropped` counts from the
    /// start.
    pub(super) fn report(&mut self, sent: &Result<(), String>, dropped: u64) {
        let signal = self.signal.name();
        let lost = dropped.saturating_sub(std::mem::replace(&mut self.dropped, dropped));
        match sent {
            Err(problem) if !self.failing => {
                self.failing = true;
                tracing::warn!(signal, problem, "sending to the collector fails; lost items are counted");
            }
            Err(_) => {}
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!(signal, dropped, "sending to the collector works again");
            }
            Ok(())
                if lost > 0
                    && self.last_complaint.is_none_or(|last| last.elapsed() >= COMPLAINT_INTERVAL) =>
            {
                self.last_complaint = Some(Instant::now());
                tracing::warn!(signal, dropped, "the collector is too slow; lost items are counted");
            }
            Ok(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use opentelemetry_sdk::error::OTelSdkError;

    use super::*;

    fn dropped(counters: &Counters) -> u64 {
        counters.all_dropped().map(|(_, count)| count).sum()
    }

    #[test]
    fn items_that_do_not_fit_are_dropped_and_counted() {
        let counters = Arc::new(Counters::default());
        let (queue, _waiting) = queue(Signal::Traces, &counters);
        for item in 0..QUEUE_MAX + 10 {
            queue.put(item);
        }
        assert_eq!(dropped(&counters), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn items_are_sent_in_order_and_the_rest_at_the_stop() {
        let counters = Arc::new(Counters::default());
        let (queue, waiting) = queue(Signal::Logs, &counters);
        let (stop, stopped) = watch::channel(false);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sent = Arc::clone(&seen);
        let sending = tokio::spawn(waiting.send(stopped, async move |batch: Vec<usize>| {
            assert!(batch.len() <= BATCH_MAX);
            sent.lock().unwrap().extend(batch);
            Ok(())
        }));
        for item in 0..2000 {
            queue.put(item);
        }
        tokio::time::sleep(BATCH_DELAY * 10).await;
        assert_eq!(seen.lock().unwrap().len(), 2000);
        for item in 2000..2003 {
            queue.put(item);
        }
        stop.send_replace(true);
        sending.await.unwrap();
        assert!(seen.lock().unwrap().iter().copied().eq(0..2003));
        assert_eq!(dropped(&counters), 0);
        queue.put(0);
        assert_eq!(dropped(&counters), 1, "after the stop nothing is sent");
    }

    #[tokio::test(start_paused = true)]
    async fn items_that_the_collector_does_not_take_are_counted() {
        let counters = Arc::new(Counters::default());
        let (queue, waiting) = queue(Signal::Traces, &counters);
        let (stop, stopped) = watch::channel(false);
        let sending = tokio::spawn(waiting.send(stopped, async |batch: Vec<u8>| match batch.len() {
            1 => Err(OTelSdkError::InternalFailure("no".to_owned())),
            _ => std::future::pending().await,
        }));
        queue.put(0);
        tokio::time::sleep(BATCH_DELAY * 2).await;
        assert_eq!(dropped(&counters), 1);
        queue.put(0);
        queue.put(0);
        tokio::time::sleep(BATCH_DELAY * 2 + EXPORT_TIMEOUT).await;
        assert_eq!(dropped(&counters), 3, "one that never answers loses the message too");
        let failures = counters.all_failures().filter(|(_, count)| *count > 0);
        assert_eq!(failures.collect::<Vec<_>>(), [(Signal::Traces, 2)]);
        stop.send_replace(true);
        sending.await.unwrap();
    }
}
