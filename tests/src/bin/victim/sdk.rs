//! A victim that uses the SDK, whose fault points are its steps.

mod channels;

use std::{
    process,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use vramd_client::{
    Access, Allocation, AllocationRequest, Bytes, Client, Error, FaultPoint, Pinned, Reason, Sealed,
    on_fault_point,
};
use vramd_tests::{
    MIB_2, digest, proc,
    victim::{Death, Fate, Order, Report, Script, Setting, Step, content},
    wait::PATIENCE,
};

use crate::{
    obey,
    reaper::{Reaper, Verdict},
    say, stand_still,
};

/// How often to poll.
const PAUSE: Duration = Duration::from_millis(5);

/// How often it pins after it has come to its step, if it goes on: in a moment, or while copies run.
const ROUNDS_AFTER: u32 = 100;
const MOVES_AFTER: u32 = 3;
/// How long it leaves memory unpinned that is to move.
const UNPINNED: Duration = Duration::from_millis(20);

struct Life {
    reaper: Arc<Reaper>,
    client: Option<Client>,
    open: Option<Allocation>,
    sealed: Option<Sealed>,
    /// Whether its step is behind it, and it obeys orders.
    obeys: bool,
}

pub(crate) fn live(fate: Fate) -> Result<()> {
    let reaper = Arc::new(Reaper::new(fate));
    let mut life = Life { reaper: Arc::clone(&reaper), client: None, open: None, sealed: None, obeys: false };
    on_fault_point(move |point| {
        if reaper.at(step(point)) == Verdict::Close {
            channels::shut_down(reaper.fate.late);
        }
    });
    // Threads of the SDK may come to the step a little later than the program to its end.
    let outcome = life.run().and_then(|()| await_that("its step", || life.reaper.has_struck()));
    let over = outcome.err().map_or_else(|| "done".to_owned(), |why| format!("{why:#}"));
    say(&Report::Over(over));
    if life.reaper.fate.death == Death::Close {
        say(&Report::Closed { mapped: proc::memory_mapping_count(process::id()) });
        life.obeys = true;
        return obey(|order| life.obey(order));
    }
    stand_still()
}

fn step(point: FaultPoint) -> Step {
    match point {
        FaultPoint::Connected => Step::Connected,
        FaultPoint::HelloSent => Step::HelloSent,
        FaultPoint::Welcomed => Step::Welcomed,
        FaultPoint::CallBegins => Step::CallBegins,
        FaultPoint::Answered => Step::Answered,
        FaultPoint::PacketWaits => Step::PacketWaits,
        FaultPoint::MapReceived => Step::MapReceived,
        FaultPoint::Mapped => Step::Mapped,
        FaultPoint::MapAnswered => Step::MapAnswered,
        FaultPoint::RevokeReceived => Step::RevokeReceived,
        FaultPoint::Unmapped => Step::Unmapped,
        FaultPoint::UnmapAnswered => Step::UnmapAnswered,
        FaultPoint::LetGo => Step::LetGo,
        FaultPoint::PinCalled => Step::PinCalled,
        FaultPoint::PinAnswered => Step::PinAnswered,
        FaultPoint::DrainReceived => Step::DrainReceived,
        FaultPoint::EndHeard => Step::EndHeard,
    }
}

impl Life {
    fn run(&mut self) -> Result<()> {
        match self.reaper.fate.script {
            Script::SdkAllocate => {
                self.reaper.arm();
                self.write_new()?;
                if self.reaper.at(Step::Written) == Verdict::Close {
                    channels::shut_down(self.reaper.fate.late);
                }
            }
            Script::SdkSeal => {
                self.write_new()?;
                self.reaper.arm();
                let open = self.open.take().context("it was allocated")?;
                let written = digest(open.as_slice()?);
                let sealed = open.seal()?;
                if sealed.digest() != written {
                    say(&Report::Intact(false));
                }
                self.sealed = Some(sealed);
            }
            Script::SdkAttach => {
                self.connect()?;
                self.reaper.arm();
                self.attach()?;
            }
            Script::SdkFree => {
                self.write_new()?;
                self.reaper.arm();
                self.open.take().context("it was allocated")?.free()?;
            }
            Script::SdkDetach => {
                self.connect()?;
                self.attach()?;
                self.reaper.arm();
                self.sealed.take().context("it was attached")?.detach()?;
            }
            Script::SdkReconnect => {
                self.write_new()?;
                self.reaper.arm();
                self.leave()?;
                self.write_new()?;
            }
            Script::SdkDrain => {
                self.write_new()?;
                self.reaper.arm();
                say(&Report::ReadyToDrain);
            }
            Script::SdkEnd => {
                self.write_new()?;
                self.reaper.arm();
                say(&Report::ReadyToEnd);
                let client = self.client.as_ref().context("it was connected")?;
                await_that("the end of its session", || !client.is_connected())?;
            }
            Script::SdkPin => {
                self.write_new()?;
                self.open.as_mut().context("it was allocated")?.unpin()?;
                self.reaper.arm();
                self.pin_and_look()?;
            }
            Script::SdkPinSeal => {
                self.write_new()?;
                self.open.as_mut().context("it was allocated")?.unpin()?;
                self.reaper.arm();
                let sealed = self.open.take().context("it was allocated")?.seal()?;
                if sealed.digest() != self.written() {
                    say(&Report::Intact(false));
                }
                self.sealed = Some(sealed);
            }
            Script::SdkPinDetach => {
                self.connect()?;
                self.attach()?;
                let mut sealed = self.sealed.take().context("it was attached")?;
                sealed.unpin()?;
                self.reaper.arm();
                if digest(sealed.pin(Access::Read)?.as_slice()?) != sealed.digest() {
                    say(&Report::Intact(false));
                }
                sealed.detach()?;
            }
            Script::SdkMove => {
                self.write_unheld()?;
                self.reaper.arm();
                self.pin_and_look()?;
            }
            Script::SdkMoveAttach => {
                self.connect()?;
                self.attach()?;
                self.sealed.as_mut().context("it was attached")?.unpin()?;
                self.reaper.arm();
                self.pin_and_look()?;
            }
            other => return Err(anyhow!("{other:?} is not by way of the SDK")),
        }
        Ok(())
    }

    /// Pins again and again: revoked parts come back with their bytes.
    fn pin_and_look(&self) -> Result<()> {
        let Self { reaper, open, sealed, .. } = self;
        let written = self.written();
        let end = Instant::now() + PATIENCE;
        let moves = reaper.fate.script.setting() == Setting::Moving;
        let mut rounds_left = if moves { MOVES_AFTER } else { ROUNDS_AFTER };
        while rounds_left > 0 {
            ensure!(Instant::now() < end, "waited in vain for its step");
            if reaper.has_struck() {
                rounds_left = if reaper.fate.death == Death::Close { 0 } else { rounds_left - 1 };
            }
            let (pinned, told) = match (open, sealed) {
                (Some(open), _) => (self.repeat(|| open.pin(Access::Write))?, written.as_str()),
                (None, Some(sealed)) => (self.repeat(|| sealed.pin(Access::Read))?, sealed.digest()),
                (None, None) => return Err(anyhow!("it has nothing to pin")),
            };
            if digest(pinned.as_slice()?) != told {
                say(&Report::Intact(false));
            }
            drop(pinned);
            if moves {
                thread::sleep(UNPINNED);
            }
        }
        Ok(())
    }

    /// The digest of the bytes that it wrote.
    fn written(&self) -> String {
        let fate = &self.reaper.fate;
        digest(&content(fate.case, fate.size()))
    }

    fn connect(&mut self) -> Result<()> {
        let name = self.reaper.fate.client_name();
        let builder = Client::builder().name(name).request_timeout(PATIENCE);
        let client = self.repeat(|| builder.clone().connect())?;
        say(&Report::Session(client.session_id().get()));
        self.client = Some(client);
        Ok(())
    }

    /// Opens a session with memory that it has written.
    fn write_new(&mut self) -> Result<()> {
        self.allocate(false)?;
        let fate = &self.reaper.fate;
        let open = self.open.as_mut().context("it was allocated")?;
        open.as_mut_slice()?.copy_from_slice(&content(fate.case, fate.size()));
        Ok(())
    }

    /// The same for memory that may not all have room now.
    fn write_unheld(&mut self) -> Result<()> {
        self.allocate(true)?;
        let fate = &self.reaper.fate;
        let open = self.open.as_ref().context("it was allocated")?;
        let mut pinned = self.repeat(|| open.pin(Access::Write))?;
        pinned.as_mut_slice()?.copy_from_slice(&content(fate.case, fate.size()));
        Ok(())
    }

    fn allocate(&mut self, unheld: bool) -> Result<()> {
        self.connect()?;
        let fate = &self.reaper.fate;
        let mut request = AllocationRequest::new(Bytes::new(fate.size())).part_size(Bytes::new(MIB_2));
        if fate.persistent {
            request = request.name(fate.client_name()).persistent();
        }
        if unheld {
            request = request.unpinned();
        }
        let client = self.client.as_ref().context("it was connected")?;
        let open = self.repeat(|| client.allocate(request.clone()))?;
        say(&Report::Allocation(open.id().get()));
        self.open = Some(open);
        Ok(())
    }

    fn attach(&mut self) -> Result<()> {
        let client = self.client.as_ref().context("it was connected")?;
        let sealed = self.repeat(|| client.attach(self.reaper.fate.target.as_str()))?;
        if digest(sealed.as_slice()?) != sealed.digest() {
            say(&Report::Intact(false));
        }
        self.sealed = Some(sealed);
        Ok(())
    }

    /// Drops all handles, and with the last one the session.
    fn leave(&mut self) -> Result<()> {
        (self.open, self.sealed) = (None, None);
        self.client.take().map_or(Ok(()), |client| client.flush())?;
        Ok(())
    }

    /// Asks again while the node is draining, and after a pin that waited only for pins that wait themselves. Not once
    /// its channel was closed: the refusal may have come before that, and with another channel the victim would live on.
    fn repeat<T>(&self, mut ask: impl FnMut() -> Result<T, Error>) -> Result<T> {
        loop {
            match ask() {
                Err(error)
                    if matches!(error.reason(), Some(Reason::Draining | Reason::PinStalled))
                        && !self.is_closed() =>
                {
                    thread::sleep(PAUSE);
                }
                outcome => return Ok(outcome?),
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.reaper.fate.death == Death::Close && self.reaper.has_struck() && !self.obeys
    }

    fn obey(&mut self, order: Order) -> Result<Report> {
        match order {
            Order::Check => Ok(Report::Intact(self.is_intact())),
            Order::Leave => {
                self.leave()?;
                self.connect()?;
                let client = self.client.as_ref().context("it was connected")?;
                Ok(Report::Left { session: client.session_id().get() })
            }
        }
    }

    /// Whether the mapped memory has its content.
    fn is_intact(&self) -> bool {
        let open = self.open.as_ref().and_then(|open| open.pin(Access::Read).ok());
        let sealed =
            self.sealed.as_ref().and_then(|sealed| Some((sealed.pin(Access::Read).ok()?, sealed.digest())));
        let found = |pinned: &Pinned| pinned.as_slice().ok().map(digest);
        open.is_none_or(|pinned| found(&pinned) == Some(self.written()))
            && sealed.is_none_or(|(pinned, told)| found(&pinned).as_deref() == Some(told))
    }
}

fn await_that(what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !done() {
        ensure!(Instant::now() < end, "waited in vain for {what}");
        thread::sleep(PAUSE);
    }
    Ok(())
}
