//! `[turns]`: how long programs may use a device in turns.

use std::time::Duration;

use broker_core::TurnLimits;
use serde::Deserialize;

use super::limits::{millis, millis_or_none};

/// The table `turns`, as in [`TurnLimits`], with times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "TurnsText")]
pub struct Turns {
    limits: TurnLimits,
}

impl Turns {
    pub fn limits(&self) -> TurnLimits {
        self.limits.clone()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TurnsText {
    #[serde(deserialize_with = "millis")]
    quantum_ms: Duration,
    #[serde(deserialize_with = "millis")]
    min_quantum_ms: Duration,
    #[serde(deserialize_with = "millis")]
    overdue_after_ms: Duration,
    /// 0 means never.
    #[serde(deserialize_with = "millis_or_none")]
    end_after_ms: Duration,
}

impl Default for TurnsText {
    fn default() -> Self {
        let TurnLimits { quantum, min_quantum, overdue_after, end_after } = TurnLimits::default();
        Self {
            quantum_ms: quantum,
            min_quantum_ms: min_quantum,
            overdue_after_ms: overdue_after,
            end_after_ms: end_after,
        }
    }
}

impl TryFrom<TurnsText> for Turns {
    type Error = &'static str;

    fn try_from(text: TurnsText) -> Result<Self, &'static str> {
        if text.min_quantum_ms > text.quantum_ms {
            return Err("`min_quantum_ms` must not be above `quantum_ms`");
        }
        if !text.end_after_ms.is_zero() && text.end_after_ms < text.overdue_after_ms {
            return Err("`end_after_ms` must not be below `overdue_after_ms`, unless it is 0");
        }
        Ok(Self {
            limits: TurnLimits {
                quantum: text.quantum_ms,
                min_quantum: text.min_quantum_ms,
                overdue_after: text.overdue_after_ms,
                end_after: text.end_after_ms,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn times_that_contradict_each_other_are_refused() {
        let turns = |text: &str| parse(&format!("[turns]\n{text}")).map(|config| config.turns.limits());
        let given = turns("quantum_ms = 50\nmin_quantum_ms = 50\nend_after_ms = 10000\n").unwrap();
        assert_eq!(
            (given.quantum, given.min_quantum),
            (Duration::from_millis(50), Duration::from_millis(50))
        );
        assert_eq!(given.end_after, Duration::from_secs(10));
        for (text, problem) in [
            ("quantum_ms = 999\n", "`min_quantum_ms` must not be above"),
            ("end_after_ms = 9999\n", "`end_after_ms` must not be below"),
            ("overdue_after_ms = 0\n", "at least 1 ms"),
        ] {
            let refused = turns(text).expect_err(text);
            assert!(refused.problem.contains(problem), "{refused}");
        }
    }
}
