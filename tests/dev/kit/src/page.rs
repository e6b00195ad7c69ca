//! A page of `docs/` that is made of a registry, so that it cannot say anything else than the code.

use std::{env, fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::repository;

/// A committed page, and what it should say.
#[derive(Debug)]
pub struct Page {
    /// Its name in `docs/`.
    pub name: &'static str,
    /// The program that writes it, which is a target of the Makefile too.
    pub tool: &'static str,
    pub text: String,
}

impl Page {
    /// The tool itself: writes the page; with `--check` it only compares, and fails on a difference.
    pub fn write_or_check(&self) -> Result<ExitCode> {
        let Self { name, tool, text } = self;
        match env::args().nth(1).as_deref() {
            None => {
                let path = self.path();
                fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
                Ok(ExitCode::SUCCESS)
            }
            Some("--check") if self.is_current()? => Ok(ExitCode::SUCCESS),
            Some("--check") => {
                eprintln!("docs/{name} is not what the registry says: run `make {tool}`");
                Ok(ExitCode::FAILURE)
            }
            Some(other) => bail!("unknown argument {other:?}; usage: {tool} [--check]"),
        }
    }

    /// Whether the committed page says this.
    pub fn is_current(&self) -> Result<bool> {
        let path = self.path();
        let written = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(written == self.text)
    }

    fn path(&self) -> PathBuf {
        repository().join("docs").join(self.name)
    }
}
