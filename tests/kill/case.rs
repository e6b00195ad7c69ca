//! One client that dies, and what it leaves.

use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use tonic::Code;
use vramd_proto::v1::{
    AllocationState, EndSessionRequest, EndSessionResponse, FreeAllocationRequest, ListSessionsRequest,
    Session, SessionState, ShowAllocationRequest, free_allocation_request, show_allocation_request,
};
use vramd_tests::{
    MIB_2, Pending, digest, proc,
    victim::{Death, Order, Report, Victim, content},
    wait::soon,
};

use crate::{
    plan::Case,
    scene::{Draining, Stage},
};

/// Runs the case. An error says what went wrong; the caller adds which case it was.
pub(crate) fn run(stage: &Stage, case: &Case) -> Result<()> {
    let victim = Victim::start(&stage.victim, &stage.daemon.sockets(), case.uid, &case.fate)?;
    let mut watch = Watch { stage, case, victim, session: None, allocation: None, drain: None, end: None };
    watch.wait_for("its step", |word| matches!(word, Report::Reached))?;
    match case.fate.death {
        Death::Kill | Death::Race => {}
        Death::Stop => soon("it stands still", || proc::is_stopped(watch.victim.pid()))?,
        Death::Close => watch.check_life_without_channel()?,
        Death::NoFds => watch.check_life_without_fds()?,
    }
    thread::sleep(case.pause);
    watch.kill()?;
    watch.check_nothing_left()
}

struct Watch<'a> {
    stage: &'a Stage,
    case: &'a Case,
    victim: Victim,
    /// The victim's latest session, as it reports.
    session: Option<u64>,
    allocation: Option<u64>,
    drain: Option<Draining<'a>>,
    end: Option<Pending<EndSessionResponse>>,
}

impl Watch<'_> {
    /// Reads the victim's reports up to this one, and does what the victim is ready for.
    fn wait_for(&mut self, what: &str, wanted: impl Fn(&Report) -> bool) -> Result<Report> {
        loop {
            let Some(word) = self.victim.next_report()? else { bail!("it ended by itself before {what}") };
            self.note(&word)?;
            if wanted(&word) {
                return Ok(word);
            }
            if let Report::Over(why) = &word
                && self.case.fate.death != Death::Close
            {
                bail!("it was over before {what}: {why}");
            }
        }
    }

    fn note(&mut self, word: &Report) -> Result<()> {
        match word {
            Report::Session(id) => self.session = Some(*id),
            Report::Allocation(id) => self.allocation = Some(*id),
            Report::ReadyToDrain => self.drain = Some(self.stage.drain()),
            Report::ReadyToEnd => {
                let session_id = self.session.context("it has a session")?;
                let request =
                    EndSessionRequest { session_id, kill: self.case.end_kills, ..Default::default() };
                self.end = Some(self.stage.daemon.admin.end_session(request));
            }
            Report::Intact(false) => bail!("it found other bytes than it should"),
            Report::Reached
            | Report::Closed { .. }
            | Report::Intact(true)
            | Report::Left { .. }
            | Report::Over(_) => {}
        }
        Ok(())
    }

    /// Checks that the victim's mappings stay charged, and keep their bytes.
    fn check_life_without_channel(&mut self) -> Result<()> {
        let closed = self.wait_for("the end of its channel", |word| matches!(word, Report::Closed { .. }))?;
        let Report::Closed { mapped } = closed else { bail!("{closed} is something else") };
        self.drain = None;
        if let Some(id) = self.session {
            soon("its session is silent, or gone", || {
                self.row(id).is_none_or(|row| row.state() == SessionState::Silent)
            })?;
            let charged = self.row(id).map_or(0, |row| row.mapped_bytes);
            let mapped = mapped as u64 * MIB_2;
            ensure!(charged >= mapped, "it maps {mapped} bytes, and the daemon knows of {charged}");
        }
        self.victim.order(Order::Check)?;
        self.wait_for("a look at its bytes", |word| matches!(word, Report::Intact(_)))?;
        if self.case.leaves {
            let before = self.session;
            self.victim.order(Order::Leave)?;
            self.wait_for("its leaving", |word| matches!(word, Report::Left { .. }))?;
            if let Some(id) = before {
                soon("its first session is gone while it lives", || self.row(id).is_none())?;
            }
        }
        Ok(())
    }

    /// Checks that the victim refuses parts that it cannot map, and blocks no other client.
    fn check_life_without_fds(&mut self) -> Result<()> {
        self.wait_for_over()?;
        self.drain = None;
        let Some(id) = self.session else { return Ok(()) };
        soon("it has answered what it was sent, or is silent", || {
            self.row(id).is_none_or(|row| row.state() == SessionState::Silent || row.fds_in_flight == 0)
        })
    }

    fn wait_for_over(&mut self) -> Result<()> {
        loop {
            let Some(word) = self.victim.next_report()? else {
                bail!("it ended by itself without descriptors")
            };
            self.note(&word)?;
            if matches!(word, Report::Over(_)) {
                return Ok(());
            }
        }
    }

    fn kill(&mut self) -> Result<()> {
        for word in self.victim.kill()? {
            // The report that would end this wait does not come any more.
            if !matches!(word, Report::ReadyToDrain | Report::ReadyToEnd) {
                self.note(&word)?;
            }
        }
        self.drain = None;
        Ok(())
    }

    /// Checks that the victim leaves no session and no memory but what it sealed as persistent. That has the bytes that
    /// it wrote, and an operator frees it.
    fn check_nothing_left(&mut self) -> Result<()> {
        if let Some(end) = self.end.take()
            && let Err(status) = end.wait()
        {
            ensure!(status.code() == Code::NotFound, "its end was refused: {status}");
        }
        let pid = self.victim.pid();
        soon("its sessions are gone", || self.sessions().iter().all(|row| row.pid != pid))?;
        let Some(id) = self.allocation else { return Ok(()) };
        let mut wrong = None;
        soon("its memory is gone", || match self.state_of(id) {
            Ok(None) => true,
            Ok(Some((AllocationState::Sealed, found))) => {
                wrong = self.free_sealed(id, &found).err();
                wrong.is_some()
            }
            Ok(Some(_)) => false,
            Err(why) => {
                wrong = Some(why);
                true
            }
        })?;
        wrong.map_or(Ok(()), Err)
    }

    fn free_sealed(&self, id: u64, found: &str) -> Result<()> {
        let fate = &self.case.fate;
        ensure!(fate.persistent, "a-{id} was to end with its session");
        let written = digest(&content(fate.case, fate.size()));
        ensure!(found == written, "a-{id} was sealed as {found}, and {written} was written");
        let target = Some(free_allocation_request::Target::AllocationId(id));
        let freed =
            self.stage.daemon.admin.free_allocation(FreeAllocationRequest { target, ..Default::default() });
        freed.wait()?;
        Ok(())
    }

    /// The allocation's state, `None` once it is gone. Any other refusal is an error.
    fn state_of(&self, id: u64) -> Result<Option<(AllocationState, String)>> {
        let target = Some(show_allocation_request::Target::AllocationId(id));
        match self.stage.daemon.admin.show_allocation(ShowAllocationRequest { target }).wait() {
            Ok(shown) => {
                let allocation = shown.allocation.context("an answer shows its allocation")?;
                Ok(Some((allocation.state(), allocation.digest)))
            }
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status).with_context(|| format!("a-{id} can't be shown")),
        }
    }

    fn row(&self, id: u64) -> Option<Session> {
        self.sessions().into_iter().find(|row| row.session_id == id)
    }

    fn sessions(&self) -> Vec<Session> {
        let request = ListSessionsRequest { page_size: Some(1000), ..Default::default() };
        self.stage.daemon.admin.list_sessions(request).ok().sessions
    }
}
