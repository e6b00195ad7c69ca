//! What one question has found.

use std::io::{self, Write as _};

use anyhow::Result;
use serde_json::{Value, json};

use crate::bench::measure::Measure;

pub(super) struct Answer {
    /// Of the report's top level.
    pub(super) figures: Vec<(&'static str, f64)>,
    pub(super) samples: Value,
    pub(super) lines: Vec<String>,
}

impl Answer {
    /// The ratio of times, for rounds that moved so many bytes.
    pub(super) fn ratio(name: &'static str, measure: &Measure, bytes: usize) -> Self {
        Self {
            figures: vec![(name, measure.median())],
            samples: measure.json_of(bytes),
            lines: vec![measure.line(name)],
        }
    }

    /// It cannot be asked on this machine.
    pub(super) fn absent(name: &str, why: &str) -> Self {
        Self {
            figures: Vec::new(),
            samples: json!({ "absent": why }),
            lines: vec![format!("{name} absent: {why}")],
        }
    }

    pub(super) fn tell(self, name: &str, report: &mut Value) -> Result<()> {
        for line in &self.lines {
            writeln!(io::stdout(), "{line}")?;
        }
        for (key, figure) in self.figures {
            report[key] = json!(figure);
        }
        report["samples"][name] = self.samples;
        Ok(())
    }
}
