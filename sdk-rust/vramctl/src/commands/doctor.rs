//! `vramctl doctor`: what the node is, from which readings, and what follows.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use broker_platform::{Readings, collect, diagnose};
use clap::Args;
use serde_json::json;
use tempfile::NamedTempFile;
use vramd_client::{Reason, admin::AdminClient};

use crate::output::{Output, failure::Failure};

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Judge the readings of this file, which `--save` has written, and not this node.
    #[arg(long, value_name = "FILE")]
    readings: Option<PathBuf>,
    /// Also write the readings to a file. It appears whole or not at all.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Replace the file of `--save` if it exists.
    #[arg(long, requires = "save")]
    overwrite: bool,
}

pub(crate) fn run(
    doctor: &Doctor,
    admin: impl FnOnce() -> Result<AdminClient, Failure>,
    output: &Output,
) -> Result<(), Failure> {
    let (readings, note) = match &doctor.readings {
        Some(file) => (load(file)?, None),
        None => read(admin().and_then(|admin| Ok(admin.readings()?)))?,
    };
    if let Some(file) = &doctor.save {
        save(file, &readings, doctor.overwrite)?;
    }
    let diagnosis = diagnose(&readings);
    let text = || {
        let note = note.as_ref().map(|note| format!("; {note}")).unwrap_or_default();
        format!("{diagnosis}\nREADINGS\n  {}{note}", readings.source)
    };
    output.show(text, json!({ "readings": readings, "diagnosis": diagnosis, "note": note }))
}

/// The readings of the daemon, or else those of this process and why.
fn read(of_daemon: Result<String, Failure>) -> Result<(Readings, Option<String>), Failure> {
    let note = match of_daemon {
        Ok(json) => match Readings::from_json(&json) {
            Ok(readings) => return Ok((readings, None)),
            Err(problem) => format!("the daemon's are not understood ({problem})"),
        },
        Err(Failure::Daemon(error)) if error.reason() == Some(Reason::BrokerGone) => {
            "no daemon answers, so devices are unknown, and the limits are those of this shell".to_owned()
        }
        Err(failure) => format!("the daemon does not give its own: {failure}"),
    };
    Ok((collect("vramctl"), Some(note)))
}

fn load(file: &Path) -> Result<Readings, Failure> {
    let text = fs::read_to_string(file).map_err(Failure::file(file))?;
    let path = file.display().to_string();
    Readings::from_json(&text).map_err(|problem| Failure::Readings { path, problem })
}

/// Writes to a file beside the target, which takes the target's name once it is complete.
fn save(file: &Path, readings: &Readings, overwrite: bool) -> Result<(), Failure> {
    let unwritable = |problem| Failure::Unwritable { path: file.display().to_string(), problem };
    let fails = |error: io::Error| unwritable(error.to_string());
    let folder =
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let mut unfinished = NamedTempFile::new_in(folder).map_err(fails)?;
    io::Write::write_all(&mut unfinished, readings.to_json().as_bytes()).map_err(fails)?;
    let persisted = if overwrite { unfinished.persist(file) } else { unfinished.persist_noclobber(file) };
    persisted.map(drop).map_err(|failed| match failed.error.kind() {
        io::ErrorKind::AlreadyExists => unwritable("it exists; --overwrite replaces it".to_owned()),
        _ => fails(failed.error),
    })
}
