//! Channels: opening, sending in order, and the ways in which they end.

use broker_core::{CallId, ChannelId, DaemonFrame, Event, Hello, Kind, PartRef, Refusal, Reply};
use vramd_types::SessionId;

use super::{
    World,
    driver::soon,
    process::{Channel, Known, Process, THREADS, UID},
    queue::Action,
    words::Words,
};
use crate::scenario::GANG_PID;

/// Number of recent allocations that guessing processes may pick from.
const RECENT_MAX: usize = 48;

impl World {
    /// Starts a process at a seat.
    pub(super) fn spawn(&mut self, seat: usize) {
        self.last_pid += 1;
        let pid = self.last_pid;
        let threads = self.scenario.crowds.map_or(THREADS, |crowds| crowds.threads);
        let is_of_gang = self.scenario.gang.is_some_and(|gang| gang.has(seat));
        let shown_pid = if is_of_gang { GANG_PID } else { pid };
        self.processes.insert(pid, Process::new(pid, shown_pid, seat, threads));
        self.seats[seat] = Some(pid);
        self.open_channel(pid, Vec::new());
    }

    /// Opens a channel and sends hello. `unmapped` are earlier sessions that the process claims to have
    /// unmapped.
    pub(super) fn open_channel(&mut self, pid: u32, unmapped: Vec<SessionId>) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        self.last_channel += 1;
        let channel = ChannelId(self.last_channel);
        process.channel = Some(channel);
        let seat = &self.scenario.seats[process.seat];
        let hello = Hello {
            tenant: seat.tenant.to_owned(),
            pid: process.shown_pid,
            uid: UID,
            client_name: format!("{:?}", seat.script),
            devices: seat.devices.clone(),
            unmapped_sessions: unmapped,
            pins: seat.pins,
            managed_orders: true,
            pressure: seat.hears_pressure,
        };
        self.channels.insert(channel, Channel::new(pid));
        self.send_up(channel, Event::Hello { channel, hello });
    }

    /// Queues an event of a client's channel: events of one channel arrive in order.
    pub(super) fn send_up(&mut self, id: ChannelId, event: Event) {
        let usual = soon(&mut self.links, self.now, 5, 120);
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let when = usual.max(channel.last_arrival.after(std::time::Duration::from_micros(1)));
        channel.last_arrival = when;
        self.queue.schedule(when, self.life, Action::Arrive(event));
    }

    /// Passes an event to the broker, except the end of a process that the broker no longer watches.
    pub(super) fn arrive_event(&mut self, event: Event) {
        if let Event::ProcessEnded { channel } = &event
            && self.channels.get(channel).is_none_or(|channel| !channel.watched)
        {
            return;
        }
        self.handle_event(event);
    }

    pub(super) fn deliver_frame(&mut self, id: ChannelId, frame: DaemonFrame) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if !channel.client_open || !channel.broker_open {
            return;
        }
        if let DaemonFrame::Revoke { parts, .. } = &frame
            && let Some(words) = &mut channel.words
            && !words.set_revoke(parts)
        {
            return self.report_impossible_word(id);
        }
        if let (DaemonFrame::Map(parts), Some(words)) = (&frame, &mut channel.words) {
            parts.iter().for_each(|part| words.track_map(part));
        }
        if let DaemonFrame::Welcome { slots, session, .. } = &frame {
            channel.words = Words::new(*slots, *session);
        }
        if let DaemonFrame::Map(parts) = &frame
            && let Some(process) = self.processes.get_mut(&channel.pid)
        {
            // The descriptors are in the socket already, so the process holds their extents.
            parts.iter().for_each(|part| process.add_reference(part.extent));
        }
        channel.inbox.push_back(frame);
        self.wake_worker(id);
    }

    pub(super) fn wake_worker(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if !channel.working && !channel.inbox.is_empty() {
            channel.working = true;
            let when = soon(&mut self.links, self.now, 5, 150);
            self.queue.schedule(when, 0, Action::Work(id));
        }
    }

    pub(super) fn close_by_broker(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.broker_open = false;
            self.send_up(id, Event::ChannelEnded { channel: id });
        }
    }

    /// Closes the channel from the client's side: frames in its socket are lost.
    pub(super) fn close_by_client(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if !std::mem::take(&mut channel.client_open) {
            return;
        }
        let unread: Vec<_> = channel.inbox.drain(..).collect();
        if let Some(process) = self.processes.get_mut(&channel.pid) {
            for part in unread.iter().flat_map(|frame| match frame {
                DaemonFrame::Map(parts) => &**parts,
                _ => &[],
            }) {
                process.drop_reference(part.extent);
            }
        }
        self.send_up(id, Event::ChannelEnded { channel: id });
    }

    /// Ends a process, and with it all that it holds.
    pub(super) fn die(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        self.seats.iter_mut().filter(|seat| **seat == Some(pid)).for_each(|seat| *seat = None);
        self.story.add_line(self.now, || format!("process {pid} of seat {} ends", process.seat));
        let of_process = self.channels.iter().filter(|(_, channel)| channel.pid == pid);
        let ids: Vec<_> = of_process.map(|(id, _)| *id).collect();
        for id in ids {
            // The broker hears of the end of the channel and of the process in either order, or of the latter
            // alone.
            let end = Event::ProcessEnded { channel: id };
            match self.links.roll(3) {
                0 => {
                    self.close_by_client(id);
                    self.send_up(id, end);
                }
                1 => {
                    self.send_up(id, end);
                    self.close_by_client(id);
                }
                _ => self.send_up(id, end),
            }
            if let Some(channel) = self.channels.get_mut(&id) {
                channel.client_open = false;
                channel.inbox.clear();
                channel.mapped.clear();
            }
        }
    }

    pub(super) fn resume(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.stopped = false;
            let of_process = self.channels.iter().filter(|(_, channel)| channel.pid == pid);
            let ids: Vec<_> = of_process.map(|(id, _)| *id).collect();
            ids.into_iter().for_each(|id| self.wake_worker(id));
        }
    }

    /// Lets the caller learn from the answer.
    pub(super) fn handle_reply(&mut self, call: CallId, outcome: Result<Reply, Refusal>) {
        let caller = self.calls.remove(&call).flatten();
        match &outcome {
            Ok(Reply::Allocated(views)) => self.recent.extend(views.iter().map(|view| view.id)),
            Ok(Reply::Sealed(view)) => self.learn_loaded(view),
            _ => {}
        }
        while self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
        let attached_unheld = self.attaching_unpinned.remove(&call);
        if let Some(pid) = caller {
            self.learn_unpinned(pid, &outcome, attached_unheld);
        }
        let Some(process) = caller.and_then(|pid| self.processes.get_mut(&pid)) else { return };
        match outcome {
            Ok(Reply::Allocated(views)) => {
                let devices = &self.scenario.config.devices;
                for view in
                    views.iter().filter(|view| view.kind == Kind::Managed && view.owner == process.session)
                {
                    let device = devices.iter().position(|device| device.uuid == view.device);
                    process.managed.insert(view.id, (device.unwrap_or_default(), view.size.get()));
                }
                for view in views.iter().filter(|view| view.owner == process.session) {
                    if process.known.iter().all(|known| known.id != view.id) {
                        process.known.push(Known { id: view.id, own: true });
                    }
                }
            }
            Ok(Reply::Sealed(view))
                if view.owner == process.session && process.known.iter().all(|known| known.id != view.id) =>
            {
                process.known.push(Known { id: view.id, own: true });
            }
            Ok(Reply::Attached(view)) if process.known.iter().all(|known| known.id != view.id) => {
                process.known.push(Known { id: view.id, own: false });
            }
            Ok(Reply::Released(items)) => {
                process.known.retain(|known| items.iter().all(|(id, _)| *id != known.id || known.own));
                let freed = items.iter().filter(|(_, result)| result.is_ok());
                freed.for_each(|(id, _)| _ = process.managed.remove(id));
            }
            Err(Refusal::SessionLost { session }) if process.session == Some(session) => {
                process.lose_session();
            }
            _ => {}
        }
    }

    /// Learns parts without a handle pin: the process may pin them although it was never sent them.
    fn learn_unpinned(&mut self, pid: u32, outcome: &Result<Reply, Refusal>, attached: bool) {
        let views = match outcome {
            Ok(Reply::Allocated(views)) => views.as_slice(),
            Ok(Reply::Attached(view)) => std::slice::from_ref(&**view),
            _ => return,
        };
        let Some(process) = self.processes.get(&pid).filter(|process| process.session.is_some()) else {
            return;
        };
        let Some(channel) = process.channel.and_then(|id| self.channels.get_mut(&id)) else { return };
        let own = |id, owner| owner == process.session && self.broker.is_unpinned(id);
        for view in views.iter().filter(|view| attached || own(view.id, view.owner)) {
            let parts = view.parts.iter().map(|shown| PartRef { allocation: view.id, part: shown.index });
            channel.unpinned.extend(parts);
        }
    }
}
