//! Pages of `docs/` that are generated from a registry, so that page and code always agree.

use std::{env, fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::repository;

/// A committed page with the text that it should have.
#[derive(Debug)]
pub struct Page {
    /// Its name in `docs/`.
    pub name: &'static str,
    /// The program that writes the page; the Makefile has a target of that name.
    pub tool: &'static str,
    pub text: String,
}

impl Page {
    /// Runs the tool: writes the page, or compares it if the argument is `--check` and fails on a difference.
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

    /// Panics unless the committed page has this text: the test of each page.
    pub fn assert_current(&self) {
        let Self { name, tool, .. } = self;
        let current =
            self.is_current().unwrap_or_else(|error| panic!("docs/{name} cannot be read: {error:#}"));
        assert!(current, "docs/{name} is not what the registry says: run `make {tool}`");
    }

    /// Tells whether the committed page has this text.
    fn is_current(&self) -> Result<bool> {
        let path = self.path();
        let written = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(written == self.text)
    }

    fn path(&self) -> PathBuf {
        repository().join("docs").join(self.name)
    }
}
