//! The trace of a run, for people and for comparing two runs byte by byte.
//!
//! Writing a trace costs more than simulating, so most runs write none: a seed can be run again to get it.

use std::collections::VecDeque;

use broker_core::{Command, Event, Time};

use crate::digest::TraceDigest;

#[derive(Debug)]
pub enum Story {
    Silent,
    /// The last lines.
    Last {
        lines: VecDeque<String>,
        max: usize,
    },
    /// Every line.
    Whole(Vec<String>),
    /// Only the digests of the lines.
    Digest(Box<TraceDigest>),
}

impl Story {
    pub const fn last(max: usize) -> Self {
        Self::Last { lines: VecDeque::new(), max }
    }

    pub fn add_line(&mut self, now: Time, what: impl FnOnce() -> String) {
        match self {
            Self::Silent => {}
            Self::Last { lines, max } => {
                if lines.len() == *max {
                    lines.pop_front();
                }
                lines.push_back(line(now, &what()));
            }
            Self::Whole(lines) => lines.push(line(now, &what())),
            Self::Digest(digest) => digest.add(&line(now, &what())),
        }
    }

    pub fn add_event(&mut self, now: Time, number: u64, event: &Event) {
        self.add_line(now, || format!("#{number} ► {event:?}"));
    }

    pub fn add_command(&mut self, now: Time, command: &Command) {
        self.add_line(now, || format!("        ◄ {command:?}"));
    }

    pub fn lines(&self) -> Vec<&str> {
        match self {
            Self::Silent | Self::Digest(_) => Vec::new(),
            Self::Last { lines, .. } => lines.iter().map(String::as_str).collect(),
            Self::Whole(lines) => lines.iter().map(String::as_str).collect(),
        }
    }
}

fn line(now: Time, what: &str) -> String {
    format!("{:>10} µs {what}", now.as_micros())
}
