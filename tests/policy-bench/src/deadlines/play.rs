//! Plays requests with the core itself: two tenants, one device, virtual time.
//!
//! All parts lie in host memory, and the device has room for all of them, so only the link is short. The shell carries
//! one copy after the other, in the order in which the core asks for them, as the drivers do within one class. Nothing
//! else takes time. A client whose request is ready, in time or late, pins its parts and frees them.

use std::{collections::VecDeque, time::Duration};

use broker_core::{
    CallId, ClientFrame, ClientRequest, Config, Event, Limits, PartRef, PrefetchSpec, PrefetchState, Time,
};
use core_bench::{
    client::{self, Client},
    meter::Pace,
    shell::{self, HeldCopy, Shell},
};
use vramd_types::{AllocationId, Bytes, PartIndex};

use super::requests::{Request, copy_micros};

/// Room for the parts of all requests, on the device and below it.
const ROOM: Bytes = Bytes::new(1 << 50);

/// Which requests are ready in time, as their clients are told. The requests are in the order of their arrival.
pub(super) fn met(requests: &[Request]) -> Vec<bool> {
    let mut player = Player::new(requests);
    player.run();
    player.in_time.into_iter().map(|told| told.expect("each client was told")).collect()
}

struct Player<'a> {
    requests: &'a [Request],
    shell: Shell,
    clients: [Client; 2],
    /// The memory that each request names.
    memory: Vec<AllocationId>,
    last_call: u64,
    /// The time from which arrivals count.
    start: Time,
    /// How many requests have arrived.
    arrived: usize,
    /// The copy that the link carries, and when it ends.
    carried: Option<(HeldCopy, Time)>,
    /// Whether each request was ready in time, once it is ready, and how many are not ready yet.
    in_time: Vec<Option<bool>>,
    left: usize,
}

impl<'a> Player<'a> {
    /// Puts the memory of all requests below the device.
    fn new(requests: &'a [Request]) -> Self {
        let mut shell = Shell::with(config(), Pace::Untimed);
        let clients = [0, 1].map(|tenant| Client::open(&mut shell, tenant));
        let (mut last_call, mut memory) = (0, Vec::new());
        for Request { tenant, parts, part_size, .. } in requests {
            let spec = client::spec(Bytes::new(parts * part_size.get()), *part_size);
            let id = clients[*tenant].allocate(&mut shell, CallId(last_call + 1), spec);
            client::evict(&mut shell, CallId(last_call + 2), id);
            shell.replies.clear();
            memory.push(id);
            last_call += 2;
        }
        shell.copies = Some(VecDeque::new());
        let (start, left) = (shell.now(), requests.len());
        let in_time = vec![None; left];
        Self { requests, shell, clients, memory, last_call, start, arrived: 0, carried: None, in_time, left }
    }

    fn run(&mut self) {
        while self.left > 0 {
            let next = self.requests.get(self.arrived);
            let arrives = next.map(|next| self.start.after(Duration::from_micros(next.arrives)));
            let ends = self.carried.map(|(_, ends)| ends);
            let due = self.shell.broker.next_deadline();
            let now = [arrives, ends, due].into_iter().flatten().min().expect("a request is not ready");
            let passed = now.since(self.shell.now()).as_micros();
            self.shell.advance(u64::try_from(passed).expect("a short time"));
            self.shell.drain();
            if let Some((copy, _)) = self.carried.take_if(|(_, ends)| *ends <= now) {
                self.shell.end_copy(copy);
                self.shell.drain();
            }
            if arrives.is_some_and(|arrives| arrives <= now) {
                self.request_next();
            }
            self.use_ready();
            self.carry();
        }
    }

    /// The next request arrives.
    fn request_next(&mut self) {
        let (at, Request { tenant, within, .. }) = (self.arrived, self.requests[self.arrived]);
        self.arrived += 1;
        let within = Some(Duration::from_micros(within));
        let spec = PrefetchSpec { parts: self.parts(at), whole: true, within, priority: 0 };
        let number = u64::try_from(self.arrived).expect("64 bits");
        self.send(self.clients[tenant], ClientFrame::Prefetch { number, spec });
    }

    fn parts(&self, at: usize) -> Vec<PartRef> {
        let parts = (0..self.requests[at].parts).map(|part| PartIndex(u32::try_from(part).expect("few")));
        parts.map(|part| PartRef { allocation: self.memory[at], part }).collect()
    }

    fn send(&mut self, client: Client, frame: ClientFrame) {
        self.shell.send(Event::Frame { channel: client.channel, frame });
        self.shell.drain();
    }

    /// Clients use what is ready.
    fn use_ready(&mut self) {
        for (_, number, state) in std::mem::take(&mut self.shell.prefetches) {
            let at = usize::try_from(number - 1).expect("64 bits");
            let is_late = match state {
                PrefetchState::Deferred(_) | PrefetchState::Accepted { .. } => continue,
                PrefetchState::Ready { left_out: 0, is_late } => is_late,
                other => panic!("request {number} has room and is told {other:?}"),
            };
            assert_eq!(self.in_time[at].replace(!is_late), None, "request {number} is ready twice");
            self.left -= 1;
            self.last_call += 1;
            let (client, call) = (self.clients[self.requests[at].tenant], self.last_call);
            self.send(client, ClientFrame::Pin { call, parts: self.parts(at), write: false, wait: None });
            assert_eq!(self.shell.pinned.pop(), Some((client.channel, call)), "its parts are there");
            self.send(client, ClientFrame::PinEnded { call });
            let free = ClientRequest::FreeBatch(vec![self.memory[at]]);
            client.request(&mut self.shell, CallId(call), free);
            self.shell.replies.clear();
        }
    }

    /// The link begins the next copy, if it carries none.
    fn carry(&mut self) {
        if self.carried.is_none()
            && let Some(copy) = self.shell.copies.as_mut().and_then(VecDeque::pop_front)
        {
            let ends = self.shell.now().after(Duration::from_micros(copy_micros(copy.bytes)));
            self.carried = Some((copy, ends));
        }
    }
}

/// One device, with the daemon's default limits.
fn config() -> Config {
    let mut config = Config { limits: Limits::default(), ..shell::config() };
    config.devices.truncate(1);
    for device in &mut config.devices {
        (device.total, device.share, device.host) = (ROOM, ROOM, ROOM);
        device.context_bytes = Bytes::ZERO;
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `parts` of 64 MiB with this deadline, in microseconds.
    fn request(arrives: u64, parts: u64, within: u64) -> Request {
        Request { tenant: 0, parts, part_size: Bytes::mib(64), arrives, within }
    }

    #[test]
    fn request_alone_is_ready_when_its_copies_end() {
        let needed = request(0, 3, 0).micros();
        assert_eq!(met(&[request(0, 3, needed)]), [true]);
        assert_eq!(met(&[request(0, 3, needed - 1)]), [false]);
    }

    #[test]
    fn earlier_deadline_goes_first_and_every_request_ends() {
        let needed = request(0, 8, 0).micros();
        let busy = request(0, 8, needed);
        let (late, early) = (request(1, 8, 9 * needed), request(2, 8, 2 * needed));
        assert_eq!(met(&[busy, late, early]), [true; 3]);
        // One that cannot be in time lets the other one pass, and comes late.
        assert_eq!(met(&[busy, request(1, 8, needed), early]), [true, false, true]);
    }
}
