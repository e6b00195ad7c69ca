//! Files as sealed memory. A file that never changes becomes the backing of the allocation; any other file is copied.

use std::{
    fs::File,
    io::{self, ErrorKind},
    os::{
        fd::{AsFd as _, AsRawFd},
        unix::fs::{FileExt, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::fs::OFlags;
use vramd_proto::v1;
use vramd_types::{AllocationId, Bytes, Reason, file_kind_name, file_range_problem, printable};

use crate::{
    error::{Error, Result},
    handles::{
        allocation::Sealed,
        handle::Handle,
        info::{AllocationInfo, AllocationKind},
        mapped_file::{self, FileMapping, MappedFile, NotInPlace},
        operations::{OnAbandon, claim_attached, claim_new, undo_on_thread},
        request::{AllocationRequest, Target},
        staging::StagingBuffer,
    },
    process::fork::ProcessBound,
    rpc::request_id::RequestId,
    session::{
        Session,
        call_style::{CallStyle, run_ready},
        check_process, describe, free, missing_field,
    },
};

/// The bytes that are read from a file at once while it is copied.
const CHUNK_BYTES: usize = 8 << 20;
/// The slowest reading of a file that a load waits for.
const BYTES_PER_SECOND_MIN: u64 = 16 << 20;
/// The pause between two attempts while the daemon already reads as many files as it may.
const TURN: Duration = Duration::from_millis(200);

/// A range of an open file.
#[derive(Clone, Debug)]
struct Span {
    file: Arc<File>,
    path: PathBuf,
    offset: u64,
}

/// Makes a sealed allocation of a file's bytes from `offset` on: as many as the request names, or all of them.
pub(crate) async fn load(
    style: CallStyle,
    session: &ProcessBound<Session>,
    path: PathBuf,
    offset: u64,
    request: AllocationRequest,
) -> Result<Handle> {
    check_process(session)?;
    check_request(&request)?;
    let span = style.run_blocking(move || Span::open(path, offset)).await?;
    load_span(style, session, span, request).await
}

fn check_request(request: &AllocationRequest) -> Result<()> {
    request.check()?;
    if request.file_size() == Some(0) {
        return Err(Error::size_invalid("size_bytes", 0));
    }
    if request.spec.kind() == AllocationKind::Fixed {
        return Err(field_invalid("kind"));
    }
    if request.spec.discardable {
        return Err(field_invalid("discardable"));
    }
    Ok(())
}

fn field_invalid(field: &str) -> Error {
    Error::refused(Reason::RequestInvalid, &[("field", &field)])
}

async fn load_span(
    style: CallStyle,
    session: &ProcessBound<Session>,
    span: Span,
    request: AllocationRequest,
) -> Result<Handle> {
    match by_daemon(style, session, &span, &request).await {
        Err(error) if error.reason() == Some(Reason::FileMutable) && !request.is_in_place_only => {
            let mut handle = by_copy(style, session, span, request).await?;
            handle.set_copied_because(match error {
                Error::FileMutable { problem, .. } => problem,
                error => error.to_string(),
            });
            Ok(handle)
        }
        loaded => loaded,
    }
}

/// A file that was to be read in place.
#[derive(Debug)]
pub enum LoadedFile {
    /// A device reads it where this process has it mapped.
    Mapped(MappedFile),
    /// It was copied to the device, for this reason. The daemon has counted that.
    Copied(Sealed, NotInPlace),
}

/// Maps a whole file for a device to read in place. Where that is not possible, loads it as the request says, and has
/// the daemon count that.
pub(crate) async fn load_in_place(
    style: CallStyle,
    session: &ProcessBound<Session>,
    path: PathBuf,
    request: AllocationRequest,
) -> Result<LoadedFile> {
    check_process(session)?;
    check_request(&request)?;
    if request.file_size().is_some() {
        // A mapping has all bytes, so a copy must have them too.
        return Err(field_invalid("size_bytes"));
    }
    let span = style.run_blocking(move || Span::open(path, 0)).await?;
    let check = mapped_file::check(style, session, span.file.as_fd(), request.spec.device.clone()).await?;
    match mapped_file::map(style, session, Arc::clone(&span.file), check).await? {
        FileMapping::Mapped(mapped) => Ok(LoadedFile::Mapped(mapped)),
        FileMapping::NotInPlace(not) => {
            let copied = Bytes::new(span.length()?);
            let sealed = load_span(style, session, span, request).await.map(Sealed::new)?;
            // The copy is good, also if the daemon ends before it counts it.
            let _ = mapped_file::report(style, session, not.reason, copied).await;
            Ok(LoadedFile::Copied(sealed, not))
        }
    }
}

async fn by_daemon(
    style: CallStyle,
    session: &ProcessBound<Session>,
    span: &Span,
    request: &AllocationRequest,
) -> Result<Handle> {
    // Before the daemon reads the file.
    session.table().check_here()?;
    style.flush(session, session.deadline()).await?;
    let asked = v1::LoadFileRequest {
        session_id: session.id().get(),
        request_id: request.request_id.unwrap_or_else(RequestId::random).to_vec(),
        item: Some(v1::AllocationSpec { unheld: false, ..request.spec.clone() }),
        fd: u32::try_from(span.file.as_raw_fd()).unwrap_or(u32::MAX),
        offset_bytes: span.offset,
        size_bytes: request.file_size(),
    };
    let on_abandon = OnAbandon::new(style.may_be_abandoned().then(|| {
        let (session, asked, span) = (session.clone(), asked.clone(), span.clone());
        move || undo(&session, asked, span)
    }));
    let deadline = span.deadline(session, request)?;
    let claimed = async {
        let info = ask_until(style, session, &asked, deadline).await?;
        let (id, kind) = (info.id, AllocationKind::Movable);
        match claim_attached(style, session, Target::Id(id), kind, request.spec.unheld).await {
            Ok(mut handle) => {
                handle.adopt_as_owner();
                Ok(handle)
            }
            Err(error) => {
                // No handle exists for it yet.
                let _ = free(style, session, id, session.deadline()).await;
                Err(error)
            }
        }
    };
    let claimed = claimed.await;
    on_abandon.end(&claimed);
    claimed
}

/// Repeats the request until the daemon has read the file: the same request id returns the first result. While the
/// daemon reads too many other files, this waits for its turn. It gives up at the deadline, or if the daemon answers
/// nothing at all for as long as a call may take.
async fn ask_until(
    style: CallStyle,
    session: &Session,
    request: &v1::LoadFileRequest,
    deadline: Instant,
) -> Result<AllocationInfo> {
    let turn = session.deadline();
    loop {
        match ask(style, session, request.clone(), session.deadline().min(deadline)).await {
            Err(Error::Deadline { .. }) if Instant::now() < deadline => is_there(style, session).await?,
            Err(Error::QueueFull { retry_after, .. }) if Instant::now() < turn => {
                let left = turn.saturating_duration_since(Instant::now());
                style.pause(retry_after.unwrap_or(TURN).min(left)).await;
            }
            answer => return answer,
        }
    }
}

/// Fails if the daemon does not answer at all.
async fn is_there(style: CallStyle, session: &Session) -> Result<()> {
    // No allocation has this id: the refusal is an answer.
    let none = AllocationId::from_raw(0);
    match describe(style, session, none.into(), session.deadline()).await {
        Err(error @ (Error::Deadline { .. } | Error::BrokerGone { .. } | Error::Interrupted)) => Err(error),
        _ => Ok(()),
    }
}

async fn ask(
    style: CallStyle,
    session: &Session,
    request: v1::LoadFileRequest,
    deadline: Instant,
) -> Result<AllocationInfo> {
    let answer = style.call(session, deadline, request, |mut client, request| async move {
        client.load_file(request).await
    });
    answer.await?.allocation.map(AllocationInfo::from).ok_or_else(|| missing_field("allocation"))
}

/// Undoes a load whose caller has gone. The daemon, asked again under the same id, says what it has made, and that is
/// freed. The answer may take long.
fn undo(session: &ProcessBound<Session>, request: v1::LoadFileRequest, span: Span) {
    let of = session.clone();
    undo_on_thread(session, move || {
        let deadline = of.deadline();
        if let Ok(info) = run_ready(ask_until(CallStyle::Blocking, &of, &request, deadline)) {
            let _ = run_ready(free(CallStyle::Blocking, &of, info.id, of.deadline()));
        }
        drop(span);
    });
}

async fn by_copy(
    style: CallStyle,
    session: &ProcessBound<Session>,
    span: Span,
    mut request: AllocationRequest,
) -> Result<Handle> {
    let length = span.length()?;
    let asked = request.file_size();
    let problem = file_range_problem(Bytes::new(length), Bytes::new(span.offset), asked.map(Bytes::new));
    if let Some(problem) = problem {
        return Err(span.invalid(&problem));
    }
    let size = asked.unwrap_or_else(|| length.saturating_sub(span.offset));
    request.spec.size_bytes = size;
    let mut handles = claim_new(style, session, vec![request]).await?;
    let mut handle = handles.pop().ok_or_else(|| missing_field("allocation"))?;
    // A seal that is given up may go on, and a drop frees no persistent allocation after it.
    let on_abandon = OnAbandon::new(style.may_be_abandoned().then(|| {
        let (of, id) = (session.clone(), handle.info().id);
        move || {
            let session = of.clone();
            undo_on_thread(&of, move || {
                let _ = run_ready(free(CallStyle::Blocking, &session, id, session.deadline()));
            });
        }
    }));
    let copied = async {
        let mut at = 0;
        let chunk_at = |at: u64| CHUNK_BYTES.min(usize::try_from(size - at).unwrap_or(CHUNK_BYTES));
        // Locking pages takes time, so a small file has a small buffer.
        let mut buffer = handle.staging_buffer(chunk_at(0))?;
        while at < size {
            style.check_interrupt()?;
            let (span, length) = (span.clone(), chunk_at(at));
            let read = move || span.read(at, buffer, length);
            buffer = style.run_blocking(read).await?;
            handle.copy_from_host(style, at, buffer.get(..length).unwrap_or_default()).await?;
            at += length as u64;
        }
        handle.seal(style).await
    };
    let copied = copied.await;
    on_abandon.end(&copied);
    copied.map(|()| handle)
}

/// The path without characters that a terminal would obey.
fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

impl Span {
    fn open(path: PathBuf, offset: u64) -> Result<Self> {
        let unreadable = |error: io::Error| Error::FileUnreadable {
            path: shown(&path),
            kind: error.kind(),
            problem: error.to_string(),
        };
        // Opening a pipe would otherwise wait for its writer.
        let without_wait = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(without_wait).open(&path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        if !found.is_file() {
            let kind = file_kind_name(found.mode());
            let problem = format!("{} is not a regular file but {kind}", shown(&path));
            return Err(Error::refused(Reason::FileInvalid, &[("problem", &problem)]));
        }
        Ok(Self { file: Arc::new(file), path, offset })
    }

    fn invalid(&self, problem: &dyn std::fmt::Display) -> Error {
        let problem = format!("{}: {problem}", shown(&self.path));
        Error::refused(Reason::FileInvalid, &[("problem", &problem)])
    }

    fn length(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|error| self.invalid(&error))?.len())
    }

    /// The time by which the daemon has read it, unless it reads very slowly.
    fn deadline(&self, session: &Session, request: &AllocationRequest) -> Result<Instant> {
        let size = match request.file_size() {
            Some(size) => size,
            None => self.length()?.saturating_sub(self.offset),
        };
        let deadline = session.deadline();
        let reading = Duration::from_secs(size / BYTES_PER_SECOND_MIN);
        Ok(deadline.checked_add(reading).unwrap_or(deadline))
    }

    /// Reads into the beginning of a buffer.
    fn read(&self, at: u64, mut buffer: StagingBuffer, length: usize) -> Result<StagingBuffer> {
        let read = self.file.read_exact_at(buffer.get_mut(..length).unwrap_or_default(), self.offset + at);
        read.map(|()| buffer).map_err(|error| match error.kind() {
            // The file had these bytes when its size was read.
            ErrorKind::UnexpectedEof => self.invalid(&"the file was cut off while it was copied"),
            _ => self.invalid(&error),
        })
    }
}
