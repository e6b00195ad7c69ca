//! Executes the broker's decisions: each [`Command`] becomes a call of the driver, the channels, the disk or the log.
//! Nothing here decides, and nothing here blocks.

use std::{fmt, sync::Arc};

use broker_core::{
    AllocationView, ChannelId, Command, Completion, CreateError, DaemonFrame, DigestError, Event, Kind,
    PartRef, RevokedPart, Slot, StoredQuotas, Target, Tier, WordsOutcome,
};
use broker_driver::{CopyError, Driver, DriverError, ExtentKind, FileSpan, Submission};
use thiserror::Error;
use vramd_proto::v1;
use vramd_types::{Bytes, CopyClass, DeviceIndex, ExtentId, HostNode, SessionId};

use super::{
    calls::Calls,
    copies::Copies,
    digests::{DigestOutcome, Digests},
    extents::Extents,
    files::Files,
    inbox::Inbox,
    notice_log::NoticeLog,
    scheduled_revocations::ScheduledRevocations,
};
use crate::{
    channel::{Channels, EvictOutcome, frame_codec},
    config::SimRevocation,
    driver_choice::SIM,
    events::Events,
    harvest::Harvest,
    moves::Moves,
    recorder::Recorder,
    telemetry::Telemetry,
};

/// Writes quotas to disk durably before it returns. It runs on a thread that may block, one call at a time.
pub type QuotaWriter = Arc<dyn Fn(&StoredQuotas) -> Result<(), String> + Send + Sync>;

/// The driver cannot go on, so the daemon cannot either. Clients keep their mappings.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the driver is lost: {problem}. Clients keep their mappings; start the daemon again")]
pub struct DriverLost {
    pub problem: String,
}

pub struct Executor {
    inbox: Inbox,
    driver: Arc<dyn Driver>,
    /// The devices as clients see them, by index.
    devices: Vec<v1::Device>,
    channels: Arc<Channels>,
    write_quotas: QuotaWriter,
    extents: Extents,
    notices: NoticeLog,
    events: Events,
    telemetry: Telemetry,
    /// Present if parts can leave a device.
    harvest: Option<Harvest>,
    moves: Option<Moves>,
    copies: Copies,
    digests: Digests,
    files: Files,
    /// Only for tests.
    revocations: Option<ScheduledRevocations>,
    recorder: Option<Recorder>,
}

impl Executor {
    /// The driver must send its completions to [`Inbox::completion`] of the same inbox. Its devices must be the
    /// broker's, in the same order.
    pub fn new(
        inbox: Inbox,
        driver: Arc<dyn Driver>,
        channels: Arc<Channels>,
        write_quotas: QuotaWriter,
        events: Events,
    ) -> Self {
        let devices = driver.devices().iter().zip(0..).map(|(info, index)| v1::Device {
            uuid: info.uuid.clone(),
            index,
            name: info.name.clone(),
            simulated: driver.name() == SIM,
        });
        let devices = devices.collect();
        Self {
            inbox,
            driver,
            devices,
            channels,
            write_quotas,
            extents: Extents::default(),
            notices: NoticeLog::default(),
            events,
            telemetry: Telemetry::default(),
            harvest: None,
            moves: None,
            copies: Copies::default(),
            digests: Digests::default(),
            files: Files::default(),
            revocations: None,
            recorder: None,
        }
    }

    /// Reports frames and answers to telemetry.
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = telemetry;
        self
    }

    /// Records the moves that end.
    #[must_use]
    pub fn with_moves(mut self, moves: Moves, copies: Copies) -> Self {
        (self.moves, self.copies) = (Some(moves), copies);
        self
    }

    /// Finds the files that clients load.
    #[must_use]
    pub fn with_files(mut self, files: Files) -> Self {
        self.files = files;
        self
    }

    /// Reports words to the harvest.
    #[must_use]
    pub fn with_harvest(mut self, harvest: Option<Harvest>) -> Self {
        self.harvest = harvest;
        self
    }

    /// Reports events and commands to the recorder of traces.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Revokes mappings at the steps of a schedule.
    #[must_use]
    pub fn with_revocations(mut self, schedule: Vec<SimRevocation>) -> Self {
        self.revocations =
            (!schedule.is_empty()).then(|| ScheduledRevocations::new(self.inbox.clone(), schedule));
        self
    }

    /// Observes an event before the core exports it.
    pub(super) fn observe_event(&mut self, event: &Event) {
        self.telemetry.record_event(event);
        if let Some(recorder) = &self.recorder {
            recorder.note_event(event);
        }
        if let Some(revocations) = &mut self.revocations {
            revocations.note_event(event);
        }
    }

    /// Records a command before it starts. `look_up` finds an allocation.
    pub(super) fn record_command(
        &self,
        command: &Command,
        look_up: impl FnOnce(&Target) -> Option<AllocationView>,
    ) {
        if let Some(recorder) = &self.recorder {
            recorder.note_command(command, look_up);
        }
    }

    pub(super) fn start(&mut self, command: Command, calls: &mut Calls) {
        if let Some(revocations) = &mut self.revocations {
            revocations.note_command(&command);
        }
        match command {
            Command::Reply { call, outcome } => {
                self.telemetry.count_refused_items(&outcome);
                calls.answer(call, outcome);
            }
            Command::Send { channel, frame } => self.send(channel, &frame),
            Command::CloseChannel { channel } => self.channels.close(channel),
            Command::ForgetProcess { channel } => self.channels.forget(channel),
            Command::KillProcess { channel } => {
                if let Err(why) = self.channels.kill(channel) {
                    self.inbox.event(Event::ProcessStays { channel, why });
                }
            }
            Command::CreateExtent { extent, device, tier, size, kind, zeroed } => {
                self.create(extent, device, tier, size, kind, zeroed);
            }
            Command::OpenExtent { extent, file, offset, bytes, size } => match self.files.find(file) {
                Some(file) => {
                    let span = FileSpan { file, offset, bytes };
                    self.driver.submit(Submission::OpenFile { extent, size, span });
                }
                None => {
                    let result =
                        Err(CreateError::Failed("no client waits for this file any longer".to_owned()));
                    self.inbox.event(Event::Completion(Completion::Created { extent, result }));
                }
            },
            Command::Copy { from, to, bytes, compare_first: true, .. } => {
                for (ticket, end) in self.digests.begin_comparison(from, to, bytes) {
                    self.driver.submit(Submission::Digest { ticket, spans: vec![(end, bytes)] });
                }
            }
            Command::Copy { from, to, bytes, compare_first: false, class } => {
                self.copy(from, to, bytes, class)
            }
            Command::ShareLinks(shares) => self.driver.submit(Submission::SetShares { shares }),
            Command::HastenCopy { to } => {
                if let Some(copy) = self.copies.copy_to_extent(to) {
                    self.driver.submit(Submission::HastenCopy { copy });
                }
            }
            Command::CancelCopy { to } => {
                if !self.digests.cancel(to)
                    && let Some(copy) = self.copies.copy_to_extent(to)
                {
                    self.driver.submit(Submission::CancelCopy { copy });
                }
            }
            Command::ReleaseExtent { extent } => {
                self.extents.remove(extent);
                self.driver.submit(Submission::Release { extent });
            }
            Command::ReleaseNow { device } => self.driver.submit(Submission::ReleaseNow { device }),
            Command::Digest { allocation, spans } => {
                let spans = spans.into_iter().map(|span| (span.extent, span.bytes)).collect();
                let ticket = self.digests.begin_allocation(allocation);
                self.driver.submit(Submission::Digest { ticket, spans });
            }
            Command::Survey { device, clients } => self.driver.submit(Submission::Survey { device, clients }),
            Command::RevokeWords { part, words } => self.revoke_words(part, &words),
            Command::ClearWritten { part, channel, slot, .. } => self.clear_written(part, channel, slot),
            Command::ForgetWord { channel, slot } => {
                if let Some(harvest) = &self.harvest {
                    harvest.forget_slot(channel, slot);
                }
                if let Err(problem) = self.channels.forget_word(channel, slot) {
                    self.inbox.event(Event::Malformed { channel, problem });
                }
            }
            Command::StoreQuotas(quotas) => self.store(quotas),
            Command::Notice(notice) => {
                self.notices.log(&notice);
                self.telemetry.record_notice(&notice);
                if let Some(moves) = &self.moves {
                    moves.record_ended(&notice);
                }
                self.events.publish(&notice);
            }
        }
    }

    /// Translates a driver's completion for the core. The export stays here, and a completion that concerns no extent
    /// is only logged. The error is the end of the driver.
    pub(super) fn translate(
        &mut self,
        completion: broker_driver::Completion,
    ) -> Result<Option<Completion>, DriverLost> {
        use broker_driver::Completion as Driver;
        Ok(Some(match completion {
            Driver::Created { extent, result } => Completion::Created {
                extent,
                result: match result {
                    Ok(export) => {
                        self.extents.insert(extent, export);
                        Ok(())
                    }
                    Err(DriverError::OutOfMemory) => Err(CreateError::OutOfMemory),
                    Err(error @ DriverError::OutOfHostMemory(_)) => {
                        Err(CreateError::OutOfHostMemory(error.to_string()))
                    }
                    Err(error) => Err(CreateError::Failed(error.to_string())),
                },
            },
            Driver::DiskCreated { extent, result } => Completion::Created {
                extent,
                result: result.map_err(|error| match error {
                    DriverError::OutOfDisk(_) => CreateError::OutOfDisk(error.to_string()),
                    error => CreateError::Failed(error.to_string()),
                }),
            },
            Driver::Released { extent, returned } => Completion::Released { extent, returned },
            Driver::Returned { extent } => Completion::Returned { extent },
            Driver::Digested { ticket, result } => match self.digests.end(ticket, result) {
                None => return Ok(None),
                Some(DigestOutcome::Allocation(allocation, result)) => {
                    Completion::Digested { allocation, result: result.map_err(digest_error) }
                }
                Some(DigestOutcome::Compared { to, result }) => Completion::Copied { to, result },
                Some(DigestOutcome::Copy { from, to, bytes, differs }) => {
                    // The copy is late already, so it goes as demand.
                    self.copy(from, to, bytes, CopyClass::Demand);
                    if !differs {
                        return Ok(None);
                    }
                    Completion::CleanBackingDiffers { to }
                }
            },
            Driver::Surveyed { device, unbrokered, contexts, host_missing: host_lacking } => {
                Completion::Surveyed { device, unbrokered, contexts, host_missing: host_lacking }
            }
            Driver::Copied { copy, result } => {
                // Each copy is reported once.
                let Some(to) = self.copies.end(copy) else { return Ok(None) };
                match result {
                    Err(error) if error.is_loss() => Completion::Damaged { to, problem: error.to_string() },
                    result => Completion::Copied { to, result: result.map_err(|error| error.to_string()) },
                }
            }
            Driver::PinnedAhead { node, free: kept, problem } => {
                log_pinned_host(node, kept, problem.as_ref());
                return Ok(None);
            }
            Driver::Warning { problem } => {
                tracing::warn!(problem, "the driver reports a problem and goes on");
                return Ok(None);
            }
            Driver::Lost { problem } => return Err(DriverLost { problem }),
        }))
    }

    fn copy(&self, from: ExtentId, to: ExtentId, size: Bytes, class: CopyClass) {
        let copy = self.copies.begin(to);
        self.driver.submit(Submission::Copy { copy, from, to, size, class });
    }

    fn create(
        &self,
        extent: ExtentId,
        device: DeviceIndex,
        tier: Tier,
        size: Bytes,
        kind: Kind,
        zeroed: bool,
    ) {
        let submission = match tier {
            Tier::Device => {
                let kind = match kind {
                    Kind::Movable | Kind::Managed => ExtentKind::Movable,
                    Kind::Fixed => ExtentKind::Fixed,
                };
                Submission::Create { extent, device, size, kind }
            }
            Tier::Host => {
                Submission::CreateHost { extent, node: self.driver.host_node(device), size, zeroed }
            }
            Tier::Disk => Submission::CreateDisk { extent, size },
        };
        self.driver.submit(submission);
    }

    /// Evicts a part from the words of all its mappers, or of none: a part that one session pins stays mapped
    /// everywhere.
    fn revoke_words(&self, part: PartRef, words: &[(ChannelId, SessionId, Slot)]) {
        let mut asked = Vec::with_capacity(words.len());
        let (mut pinned_by, mut pinned) = (Vec::new(), Vec::new());
        for (channel, session, slot) in words.iter().copied() {
            match self.channels.evict(channel, slot) {
                Ok(EvictOutcome::Revoked) => asked.push((channel, slot)),
                Ok(EvictOutcome::Pinned) => {
                    pinned_by.push(session);
                    pinned.push((channel, slot));
                }
                Ok(EvictOutcome::Leaving) => {}
                Err(problem) => {
                    self.inbox.event(Event::Malformed { channel, problem });
                    pinned_by.push(session);
                }
            }
        }
        if !pinned_by.is_empty() {
            for (channel, slot) in asked {
                self.channels.cancel_evict(channel, slot);
            }
        }
        let outcome =
            if pinned_by.is_empty() { WordsOutcome::Revoked } else { WordsOutcome::Pinned { by: pinned_by } };
        self.inbox.event(Event::Completion(Completion::WordsRevoked { part, outcome }));
        // This comes after the completion: the core gets every later observation after it.
        if let Some(harvest) = &self.harvest {
            pinned.into_iter().for_each(|(channel, slot)| harvest.note_pinned(channel, slot));
        }
    }

    fn clear_written(&self, part: PartRef, channel: ChannelId, slot: Slot) {
        let cleared = self.channels.clear_written(channel, slot).unwrap_or_else(|problem| {
            self.inbox.event(Event::Malformed { channel, problem });
            false
        });
        self.inbox.event(Event::Completion(Completion::WrittenCleared { part, cleared }));
    }

    fn send(&self, channel: ChannelId, frame: &DaemonFrame) {
        self.telemetry.record_frame(channel, frame);
        if let Some(harvest) = &self.harvest {
            harvest.note_frame(channel, frame);
        }
        if let DaemonFrame::Revoke { parts, .. } = frame {
            self.fence(channel, parts);
        }
        let is_welcome = matches!(frame, DaemonFrame::Welcome { .. });
        let word_table = is_welcome.then(|| self.channels.word_table(channel)).flatten();
        let context = frame_codec::Context {
            devices: &self.devices,
            features: self.channels.features(channel),
            word_table: word_table.as_ref(),
            export: &|extent| self.extents.get(extent).cloned(),
        };
        match frame_codec::encode(frame, context) {
            Ok(packet) => self.channels.send(channel, packet),
            Err(problem) => {
                tracing::error!(channel = channel.0, %problem, "a frame could not be encoded, channel ended: this is a bug");
                self.channels.close(channel);
            }
        }
    }

    /// Sets the words that a `Revoke` frame is about to report. An impossible word is reported to the core, and the
    /// frame is sent all the same.
    fn fence(&self, channel: ChannelId, parts: &[RevokedPart]) {
        for slot in parts.iter().filter_map(|part| part.slot) {
            if let Err(problem) = self.channels.fence(channel, slot) {
                self.inbox.event(Event::Malformed { channel, problem });
            }
        }
    }

    fn store(&self, quotas: StoredQuotas) {
        let write = Arc::clone(&self.write_quotas);
        let inbox = self.inbox.clone();
        tokio::task::spawn_blocking(move || {
            let result = write(&quotas);
            inbox.event(Event::QuotasStored { result });
        });
    }
}

fn digest_error(error: CopyError) -> DigestError {
    match error.read_from().filter(|_| error.is_loss()) {
        Some(extent) => DigestError::Damaged { extent, problem: error.to_string() },
        None => DigestError::Failed(error.to_string()),
    }
}

/// Logs how much host memory is pinned ahead of need, and whether no more will be.
fn log_pinned_host(node: HostNode, pinned: Bytes, problem: Option<&DriverError>) {
    let pinned_bytes = pinned.get();
    match problem {
        // Memory that is pinned as parts arrive begins with nothing.
        None if pinned.is_zero() => {}
        None => tracing::info!(%node, pinned_bytes, "host memory is pinned ahead of need"),
        Some(problem) => tracing::warn!(
            %node, pinned_bytes, %problem, "no further host memory is pinned ahead of need: moving parts wait while it is pinned"
        ),
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("driver", &self.driver)
            .field("extents", &self.extents)
            .finish_non_exhaustive()
    }
}
