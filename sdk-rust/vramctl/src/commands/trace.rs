//! `vramctl trace …`

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use serde_json::json;
use tempfile::NamedTempFile;
use vramd_client::admin::AdminClient;

use crate::output::{Output, failure::Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Begin to record. The trace before is discarded.
    Start(Start),
    /// End the recording. The daemon keeps the trace until the next start, or until it ends.
    Stop,
    /// Write the recorded trace to a file.
    Save(Save),
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// Records after which the recording ends by itself [default: the daemon's maximum].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    records: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Save {
    /// The file. It appears whole or not at all, and only its user can read it.
    file: PathBuf,
    /// Replace the file if it exists.
    #[arg(long)]
    overwrite: bool,
}

pub(crate) fn run(verb: &Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    match verb {
        Verb::Start(Start { records }) => {
            let records_max = admin.start_trace(*records)?;
            let text = || format!("recording, at most {records_max} records");
            output.show(text, json!({ "records_max": records_max }))
        }
        Verb::Stop => {
            let trace = admin.stop_trace()?;
            let fields = json!({
                "record_count": trace.record_count,
                "began_at": trace.began_at.as_ref().map(ToString::to_string),
                "duration_us": trace.duration_us,
                "full": trace.full,
            });
            let text = || {
                let full = if trace.full { "; it was full and ended by itself" } else { "" };
                let took = Duration::from_micros(trace.duration_us);
                format!("recorded {} records in {took:.1?}{full}", trace.record_count)
            };
            output.show(text, fields)
        }
        Verb::Save(save) => write(save, admin, output),
    }
}

/// Writes the pieces to a file beside the target, which takes the target's name once it is complete.
fn write(save: &Save, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let Save { file, overwrite } = save;
    // The last step decides; this only spares the work.
    if !overwrite && fs::symlink_metadata(file).is_ok() {
        return Err(exists(file));
    }
    let fails = |error: io::Error| unwritable(file, error.to_string());
    let pieces = admin.save_trace()?;
    let folder =
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let mut unfinished = NamedTempFile::new_in(folder).map_err(fails)?;
    let mut bytes: u64 = 0;
    for piece in pieces {
        let piece = piece?;
        io::Write::write_all(&mut unfinished, &piece).map_err(fails)?;
        bytes = bytes.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
    }
    unfinished.as_file().sync_all().map_err(fails)?;
    let persisted = if *overwrite { unfinished.persist(file) } else { unfinished.persist_noclobber(file) };
    persisted.map_err(|failed| match failed.error.kind() {
        io::ErrorKind::AlreadyExists => exists(file),
        _ => fails(failed.error),
    })?;
    let path = file.display().to_string();
    output.show(|| format!("saved {bytes} bytes to {path}"), json!({ "file": path, "bytes": bytes }))
}

fn exists(file: &Path) -> Failure {
    unwritable(file, "it exists; --overwrite replaces it".to_owned())
}

fn unwritable(file: &Path, problem: String) -> Failure {
    Failure::Unwritable { path: file.display().to_string(), problem }
}
