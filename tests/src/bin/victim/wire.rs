//! A victim that speaks the protocol itself.

use std::{path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Error, Result, anyhow};
use prost::Message as _;
use tonic::Status;
use vramd_proto::v1::{
    ClientFrame, DescribeAllocationRequest, Hello, Map, Refused as RefusedFrame, UnmapReason, Unmapped,
    UnmappedPart, client_frame, daemon_frame::Frame,
};
use vramd_tests::{
    Memory, RawChannel, RawSession, Refused,
    channel::Packet,
    proc,
    session::{Parcel, hello, hello_with_pins},
    victim::{Death, Fate, Order, Report, Script, Setting, Step},
    wait::PATIENCE,
};
use vramd_types::Reason;

use crate::{
    obey,
    reaper::{Reaper, Verdict},
    say, stand_still, steps,
};

/// How long to wait before asking a draining node again.
const DRAIN_PAUSE: Duration = Duration::from_millis(5);

pub(crate) struct Life {
    pub(crate) reaper: Reaper,
    sockets: PathBuf,
    memory: Memory,
    /// The channel before the welcome.
    channel: Option<RawChannel>,
    pub(crate) session: Option<RawSession>,
    /// Received and not mapped.
    pub(crate) parcel: Parcel,
    pub(crate) allocation: Option<u64>,
    /// The content that mapped memory must have.
    pub(crate) content: Option<Vec<u8>>,
    /// Earlier sessions, which are not reported as unmapped yet.
    past: Vec<u64>,
}

/// Why a life does not go on.
pub(crate) enum End {
    Closed,
    Over(Error),
}

impl<E: Into<Error>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Over(error.into())
    }
}

pub(crate) fn live(fate: Fate) -> Result<()> {
    let sockets = vramd_client::socket_dir();
    let memory = Memory::new(&sockets);
    // Connects now, so that the client can open no more descriptors at a later step only.
    drop(memory.describe_allocation(DescribeAllocationRequest::default()).wait());
    let mut life = Life {
        reaper: Reaper::new(fate),
        sockets,
        memory,
        channel: None,
        session: None,
        parcel: Parcel::new(),
        allocation: None,
        content: None,
        past: Vec::new(),
    };
    let end = steps::run(&mut life);
    if life.reaper.fate.death == Death::Close {
        if let Err(End::Over(why)) = end {
            say(&Report::Over(format!("{why:#}")));
        }
        say(&Report::Closed { mapped: proc::memory_mapping_count(std::process::id()) });
        return obey(|order| life.obey(order));
    }
    say(&Report::Over(match end {
        Err(End::Over(why)) => format!("{why:#}"),
        Ok(()) | Err(End::Closed) => "done".to_owned(),
    }));
    if life.reaper.fate.death == Death::NoFds && life.session.is_some() {
        life.refuse_all()?;
    }
    stand_still()
}

impl Life {
    /// Tells the reaper that the victim has come to a step.
    pub(crate) fn at(&mut self, step: Step) -> Result<(), End> {
        match self.reaper.at(step) {
            Verdict::GoOn => Ok(()),
            Verdict::Close => {
                self.close()?;
                Err(End::Closed)
            }
        }
    }

    pub(crate) fn close(&mut self) -> Result<()> {
        let channel = self.session.as_mut().map(|session| &mut session.channel).or(self.channel.as_mut());
        let channel = channel.context("there is no channel to close")?;
        if self.reaper.fate.shuts_down {
            channel.shut_down()?;
        } else {
            channel.close()?;
        }
        Ok(())
    }

    /// Unmaps everything without a report. The next session reports it.
    pub(crate) fn unmap_all(&mut self) {
        self.past.extend(self.session.take().map(|session| session.id()));
        self.channel = None;
        self.parcel.clear();
        self.content = None;
    }

    /// Opens a session. Waits while the node is draining.
    pub(crate) fn open(&mut self) -> Result<(), End> {
        loop {
            self.channel = Some(RawChannel::connect(&self.sockets)?);
            self.at(Step::Connected)?;
            let moves = self.reaper.fate.script.setting() == Setting::Moving;
            let greeting = if moves { hello_with_pins() } else { hello() };
            let hello = Hello {
                client_name: self.reaper.fate.client_name(),
                unmapped_session_ids: self.past.clone(),
                ..greeting
            };
            let frame = ClientFrame { frame: Some(client_frame::Frame::Hello(hello)) };
            self.channel()?.send_bytes(&frame.encode_to_vec())?;
            self.at(Step::HelloSent)?;
            match self.channel()?.receive(PATIENCE) {
                Packet::Frame(Frame::Welcome(welcome), fds) => {
                    let channel = self.channel.take().context("it was there")?;
                    let mut session = RawSession::from_welcome(&self.sockets, channel, welcome);
                    session.memory = self.memory.clone();
                    session.map_words(&fds);
                    say(&Report::Session(session.id()));
                    self.past.clear();
                    self.session = Some(session);
                    return self.at(Step::Welcomed);
                }
                Packet::Frame(Frame::Refused(refused), _) => wait_while_draining(refused)?,
                other => return Err(anyhow!("neither welcome nor refused: {other:?}").into()),
            }
        }
    }

    fn channel(&self) -> Result<&RawChannel> {
        self.channel.as_ref().context("no channel is being opened")
    }

    pub(crate) fn session(&mut self) -> Result<&mut RawSession> {
        self.session.as_mut().context("no session is open")
    }

    /// Waits until a packet can be read, and leaves it there.
    pub(crate) fn await_packet(&mut self) -> Result<()> {
        let came = self.session()?.channel.waits(PATIENCE);
        came.then_some(()).context("the daemon says nothing")
    }

    /// Receives the next frame that matters. The descriptors of a `Map` are then in the parcel.
    pub(crate) fn receive(&mut self) -> Result<Frame> {
        loop {
            match self.session()?.channel.receive(PATIENCE) {
                Packet::Frame(Frame::Map(map), fds) => {
                    self.parcel = map.parts.iter().cloned().zip(fds).collect();
                    return Ok(Frame::Map(map));
                }
                Packet::Frame(Frame::Drain(_), _) if self.reaper.fate.script != Script::Drain => {}
                Packet::Frame(frame, _) => return Ok(frame),
                Packet::Cut(Frame::Map(map)) => {
                    self.refuse(map)?;
                    return Err(anyhow!("too few descriptors"));
                }
                other => return Err(anyhow!("no frame: {other:?}")),
            }
        }
    }

    /// Maps nothing more, and refuses all parts, until the channel ends.
    fn refuse_all(&mut self) -> Result<()> {
        loop {
            match self.session()?.channel.receive(PATIENCE) {
                Packet::Cut(Frame::Map(map)) | Packet::Frame(Frame::Map(map), _) => self.refuse(map)?,
                Packet::Ended => return Ok(()),
                Packet::Cut(_) | Packet::Frame(..) | Packet::Silence => {}
            }
        }
    }

    /// Reports that no part of this could be mapped.
    fn refuse(&mut self, map: Map) -> Result<()> {
        let parts = map.parts.into_iter().map(|part| UnmappedPart {
            part: part.part,
            reason: UnmapReason::MapFailed.into(),
            detail: "too few descriptors".to_owned(),
            ..UnmappedPart::default()
        });
        let frame = client_frame::Frame::Unmapped(Unmapped { parts: parts.collect() });
        Ok(self.session()?.channel.send(frame)?)
    }

    fn obey(&mut self, order: Order) -> Result<Report> {
        match order {
            Order::Check => Ok(Report::Intact(self.is_intact())),
            Order::Leave => {
                self.unmap_all();
                match self.open() {
                    Ok(()) => Ok(Report::Left { session: self.session()?.id() }),
                    Err(End::Over(why)) => Err(why),
                    Err(End::Closed) => Err(anyhow!("it has died twice")),
                }
            }
        }
    }

    /// Reports if mapped memory has not the content that it should have.
    pub(crate) fn check(&self) {
        if !self.is_intact() {
            say(&Report::Intact(false));
        }
    }

    /// Whether each mapped part has its content.
    pub(crate) fn is_intact(&self) -> bool {
        let (Some(content), Some(id), Some(session)) = (&self.content, self.allocation, &self.session) else {
            return true;
        };
        session.parts(id).all(|part| {
            let start = usize::try_from(part.offset).expect("a part lies in memory");
            let expected = &content[start.min(content.len())..content.len().min(start + part.bytes().len())];
            blake3::hash(&part.bytes()[..expected.len()]) == blake3::hash(expected)
        })
    }
}

/// Returns if the request is to be repeated.
fn wait_while_draining(refused: RefusedFrame) -> Result<()> {
    again(&Refused::from_frame(refused))
}

pub(crate) fn again_after(status: &Status) -> Result<()> {
    again(&Refused::from_status(status))
}

fn again(refused: &Refused) -> Result<()> {
    if refused.reason != Reason::Draining.name() {
        return Err(anyhow!("refused: {refused:?}"));
    }
    thread::sleep(DRAIN_PAUSE);
    Ok(())
}
