//! The answer to one question.

use std::io::{self, Write as _};

use anyhow::Result;
use serde_json::{Value, json};

use crate::bench::measure::Measure;

pub(crate) struct Answer {
    /// Figures for the report's top level.
    pub(crate) figures: Vec<(&'static str, f64)>,
    pub(crate) samples: Value,
    pub(crate) lines: Vec<String>,
}

impl Answer {
    /// Makes the answer from the ratio of times, for rounds that moved `bytes`.
    pub(crate) fn ratio(name: &'static str, measure: &Measure, bytes: usize) -> Self {
        Self {
            figures: vec![(name, measure.median())],
            samples: measure.json_of(bytes),
            lines: vec![measure.line(name)],
        }
    }

    /// Makes the answer of a question that this machine cannot be asked.
    pub(crate) fn absent(name: &str, why: &str) -> Self {
        Self {
            figures: Vec::new(),
            samples: json!({ "absent": why }),
            lines: vec![format!("{name} absent: {why}")],
        }
    }

    pub(crate) fn report(self, name: &str, report: &mut Value) -> Result<()> {
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
