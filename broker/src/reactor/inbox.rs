//! The queue into the reactor, and its bounds.
//!
//! The queue itself has no bound, since a lost completion or a lost end of a channel would leave bytes charged for
//! ever. Its sources are bounded: requests and reads by the limits here, channels because each waits until one event is
//! handled, and completions by the number of submissions.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use broker_core::{Broker, CallId, Event, Refusal, Reply};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::shared_broker::{BrokerReader, SharedBroker};

tokio::task_local! {
    /// The last request that the present gRPC call has submitted; 0 before the first. When the call's time is over, its
    /// answer says what that request waited for.
    pub(crate) static SUBMITTED: Arc<AtomicU64>;
}

/// The answer to a call.
pub type Outcome = Result<Reply, Refusal>;

/// Bounds of what may wait in the reactor's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLimits {
    /// Requests of clients without an answer. The inbox refuses further ones.
    pub client_requests_max: usize,
    /// Requests of operators without an answer. They have a bound of their own, so that they get through when clients
    /// have used theirs.
    pub operator_requests_max: usize,
    /// Reads in the queue. Further reads wait before it.
    pub reads_max: usize,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self { client_requests_max: 1024, operator_requests_max: 64, reads_max: 256 }
    }
}

/// Creates both ends of the queue.
pub fn inbox(limits: InboxLimits) -> (Inbox, Queue) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let shared = Shared {
        sender,
        calls: AtomicU64::new(1),
        clients: Permits::new(limits.client_requests_max),
        operators: Permits::new(limits.operator_requests_max),
        reads: Permits::new(limits.reads_max),
        reader: BrokerReader::default(),
    };
    let reader = shared.reader.clone();
    (Inbox { shared: Arc::new(shared) }, Queue { receiver, reader })
}

/// The sending end of the queue, for every task. Clones are the same inbox.
#[derive(Clone, Debug)]
pub struct Inbox {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sender: mpsc::UnboundedSender<Message>,
    calls: AtomicU64,
    clients: Permits,
    operators: Permits,
    reads: Permits,
    reader: BrokerReader,
}

/// The permits of one kind of message.
#[derive(Debug)]
struct Permits {
    permits: Arc<Semaphore>,
    limit: usize,
}

impl Inbox {
    /// Queues an event. It is never lost while the reactor runs.
    pub fn event(&self, event: Event) {
        self.send(Message::Event(event));
    }

    /// Queues a completion of the driver.
    pub fn completion(&self, completion: broker_driver::Completion) {
        self.send(Message::Driver(completion));
    }

    /// Queues a client's request. The receiver gets one answer, or is closed when the reactor has ended. `held` is kept
    /// until the answer, even if the caller leaves before.
    pub fn request(
        &self,
        held: impl Send + Sync + 'static,
        make: impl FnOnce(CallId) -> Event,
    ) -> Result<oneshot::Receiver<Outcome>, Refusal> {
        self.submit(&self.shared.clients, Box::new(held), make)
    }

    /// Queues an operator's request.
    pub fn operator_request(
        &self,
        make: impl FnOnce(CallId) -> Event,
    ) -> Result<oneshot::Receiver<Outcome>, Refusal> {
        self.operator_request_holding((), make)
    }

    /// Queues an operator's request. `held` is kept until the answer, even if the caller leaves before.
    pub fn operator_request_holding(
        &self,
        held: impl Send + Sync + 'static,
        make: impl FnOnce(CallId) -> Event,
    ) -> Result<oneshot::Receiver<Outcome>, Refusal> {
        self.submit(&self.shared.operators, Box::new(held), make)
    }

    /// Reads the broker's state between two batches: at once, or in turn after the queued messages if the reactor works
    /// or waits for other readers. `None` when the reactor has ended.
    ///
    /// The whole node waits while the closure runs, so it must be small: a page of a list (at most 1,000 rows), one row
    /// for each tenant and device, or one allocation with its parts, which the tenant's limit bounds. One reader reads
    /// at once; the readers in the queue are counted.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Broker) -> T + Send + 'static,
    ) -> Option<T> {
        if self.shared.sender.is_closed() {
            return None;
        }
        match self.shared.reader.try_read(read) {
            Ok(seen) => Some(seen),
            Err(read) => self.read_in_turn(read).await,
        }
    }

    /// Returns once the reactor has handled all messages sent here before. `None` when the reactor has ended.
    pub async fn wait_until_handled(&self) -> Option<()> {
        self.read_in_turn(|_| ()).await
    }

    async fn read_in_turn<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Broker) -> T + Send + 'static,
    ) -> Option<T> {
        let permit = self.shared.reads.enter().await;
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Read(Box::new(move |broker| {
            // The caller may have left, and then needs no answer.
            let _ = sender.send(read(broker));
            drop(permit);
        })));
        receiver.await.ok()
    }

    /// Whether the reactor has ended.
    pub fn is_closed(&self) -> bool {
        self.shared.sender.is_closed()
    }

    /// Ends the reactor after the messages that are already in the queue.
    pub fn stop(&self) {
        self.send(Message::Stop);
    }

    fn submit(
        &self,
        permits: &Permits,
        held: Box<dyn Any + Send + Sync>,
        make: impl FnOnce(CallId) -> Event,
    ) -> Result<oneshot::Receiver<Outcome>, Refusal> {
        let permit = permits.try_enter().ok_or(Refusal::QueueFull { limit: permits.limit })?;
        let call = CallId(self.shared.calls.fetch_add(1, Ordering::Relaxed));
        // Outside a served call no task asks what it waits for.
        let _ = SUBMITTED.try_with(|submitted| submitted.store(call.0, Ordering::Relaxed));
        let (answer, receiver) = oneshot::channel();
        self.send(Message::Request { call, event: make(call), caller: Caller { answer, permit, held } });
        Ok(receiver)
    }

    fn send(&self, message: Message) {
        // Fails when the reactor has ended: the daemon is stopping, and waiting callers see that.
        let _ = self.shared.sender.send(message);
    }
}

impl Permits {
    fn new(limit: usize) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Self { permits: Arc::new(Semaphore::new(limit)), limit }
    }

    fn try_enter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Waits for a permit. These semaphores are never closed, so `None` does not occur.
    async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).acquire_owned().await.ok()
    }
}

/// The receiver of a request's answer, with the request's permit.
#[derive(Debug)]
pub(crate) struct Caller {
    answer: oneshot::Sender<Outcome>,
    permit: OwnedSemaphorePermit,
    held: Box<dyn Any + Send + Sync>,
}

impl Caller {
    /// Answers the call. A caller that has left is answered too.
    pub(crate) fn answer(self, outcome: Outcome) {
        let _ = self.answer.send(outcome);
        drop((self.permit, self.held));
    }
}

type Read = Box<dyn FnOnce(&Broker) + Send>;

pub(crate) enum Message {
    Event(Event),
    Driver(broker_driver::Completion),
    Request { call: CallId, event: Event, caller: Caller },
    Read(Read),
    Stop,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(event) => f.debug_tuple("Event").field(event).finish(),
            Self::Driver(completion) => f.debug_tuple("Driver").field(completion).finish(),
            Self::Request { call, event, .. } => f.debug_tuple("Request").field(call).field(event).finish(),
            Self::Read(_) => f.write_str("Read"),
            Self::Stop => f.write_str("Stop"),
        }
    }
}

/// The reactor's end of the queue.
#[derive(Debug)]
pub struct Queue {
    receiver: mpsc::UnboundedReceiver<Message>,
    reader: BrokerReader,
}

impl Queue {
    /// Lets the inbox read this broker.
    pub(super) fn share_broker(&self, broker: &SharedBroker) {
        self.reader.set(broker);
    }

    pub(crate) async fn next(&mut self) -> Option<Message> {
        self.receiver.recv().await
    }

    /// Takes a message that is already in the queue.
    pub(crate) fn ready(&mut self) -> Option<Message> {
        self.receiver.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> (Inbox, Queue) {
        inbox(InboxLimits { client_requests_max: 2, operator_requests_max: 1, reads_max: 1 })
    }

    #[tokio::test]
    async fn a_full_inbox_refuses_until_a_request_is_answered() {
        let (inbox, mut queue) = small();
        let first = inbox.request((), |_| Event::Tick).unwrap();
        let _second = inbox.request((), |_| Event::Tick).unwrap();
        assert_eq!(inbox.request((), |_| Event::Tick).unwrap_err(), Refusal::QueueFull { limit: 2 });
        let _operator = inbox.operator_request(|_| Event::Tick).unwrap();

        let Some(Message::Request { caller, .. }) = queue.next().await else { panic!("a request") };
        caller.answer(Ok(Reply::QuotaDeleted));
        assert!(matches!(first.await, Ok(Ok(Reply::QuotaDeleted))));
        inbox.request((), |_| Event::Tick).unwrap();
    }

    #[tokio::test]
    async fn a_caller_that_left_still_holds_its_place_until_it_is_answered() {
        let (inbox, mut queue) = small();
        drop(inbox.operator_request(|_| Event::Tick).unwrap());
        assert!(inbox.operator_request(|_| Event::Tick).is_err());
        let Some(Message::Request { caller, .. }) = queue.next().await else { panic!("a request") };
        caller.answer(Err(Refusal::Draining));
        inbox.operator_request(|_| Event::Tick).unwrap();
    }

    #[tokio::test]
    async fn calls_are_numbered_apart() {
        let (inbox, mut queue) = small();
        let _answers = [inbox.request((), |_| Event::Tick), inbox.request((), |_| Event::Tick)];
        let Some(Message::Request { call: first, .. }) = queue.next().await else { panic!("a request") };
        let Some(Message::Request { call: second, .. }) = queue.next().await else { panic!("a request") };
        assert_ne!(first, second);
    }

    #[tokio::test]
    async fn reads_wait_while_too_many_are_queued() {
        let (inbox, mut queue) = small();
        let mut first = std::pin::pin!(inbox.wait_until_handled());
        let mut second = std::pin::pin!(inbox.wait_until_handled());
        std::future::poll_fn(|context| {
            assert!(first.as_mut().poll(context).is_pending());
            assert!(second.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        assert!(matches!(queue.ready(), Some(Message::Read(_))));
        assert!(queue.ready().is_none(), "the second is not in the queue before the first is done");
    }

    #[tokio::test]
    async fn a_gone_reactor_is_noticed() {
        let (inbox, queue) = small();
        drop(queue);
        assert!(inbox.request((), |_| Event::Tick).unwrap().await.is_err());
        assert_eq!(inbox.read(|_| 1).await, None);
    }
}
