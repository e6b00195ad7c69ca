//! The daemon's metrics that questions use.

use anyhow::{Result, ensure};
use vramd_tests::{Daemon, wait::soon};

/// The daemon's counts of parts that left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Left {
    /// Parts that left without a copy.
    pub(crate) clean: u64,
    /// Parts that were copied, and their bytes.
    pub(crate) copied: u64,
    copied_bytes: u64,
}

impl Left {
    pub(crate) fn of(daemon: &Daemon) -> Self {
        let scrape = daemon.metrics();
        let sum = |metric: &str, outcome: &str| {
            let outcome = format!("vramd_migration_outcome=\"{outcome}\"");
            let lines = scrape.lines().filter(|line| line.starts_with(metric) && line.contains(&outcome));
            let out = lines.filter(|line| line.contains("vramd_migration_direction=\"out\""));
            out.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
        };
        Self {
            clean: sum("vramd_migrations_total{", "clean"),
            copied: sum("vramd_migrations_total{", "moved"),
            copied_bytes: sum("vramd_migration_io_bytes_total{", "moved"),
        }
    }

    /// Checks that all parts have left since then without a copy. A round with an obstacle is repeated, so there may be more.
    pub(crate) fn expect_clean_since(daemon: &Daemon, before: Self, parts: u64) -> Result<()> {
        let all = before.clean + before.copied + parts;
        soon("all that left is counted", || {
            let now = Self::of(daemon);
            now.clean + now.copied >= all
        })?;
        let after = Self::of(daemon);
        let copied = (after.copied - before.copied, after.copied_bytes - before.copied_bytes);
        ensure!(
            copied == (0, 0),
            "{} parts, {} bytes, were copied: {before:?}, {after:?}",
            copied.0,
            copied.1
        );
        Ok(())
    }
}
