//! `[pressure]`: the bounds of the pressure levels.

use std::time::Duration;

use broker_core::{InvalidBounds, PressureBounds};
use serde::Deserialize;
use toml::Spanned;

use super::Wrong;

/// The bounds as in [`PressureBounds`], and the first error that concerns the table as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "PressureText")]
pub struct Pressure {
    bounds: PressureBounds,
    pub(super) wrong: Option<Wrong>,
}

impl Pressure {
    pub const fn bounds(&self) -> PressureBounds {
        self.bounds
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PressureText {
    elevated_percent: Option<Spanned<u32>>,
    high_percent: Option<Spanned<u32>>,
    critical_percent: Option<Spanned<u32>>,
    fall_percent: Option<Spanned<u32>>,
    evict_to_percent: Option<Spanned<u32>>,
    /// With 0 no part is cold.
    cold_after_ms: Option<u64>,
}

impl From<PressureText> for Pressure {
    fn from(text: PressureText) -> Self {
        let default = PressureBounds::default();
        let percent =
            |given: &Option<Spanned<u32>>, default| given.as_ref().map_or(default, |it| *it.get_ref());
        let bounds = PressureBounds {
            elevated_percent: percent(&text.elevated_percent, default.elevated_percent),
            high_percent: percent(&text.high_percent, default.high_percent),
            critical_percent: percent(&text.critical_percent, default.critical_percent),
            fall_percent: percent(&text.fall_percent, default.fall_percent),
            evict_to_percent: percent(&text.evict_to_percent, default.evict_to_percent),
            cold_after: text.cold_after_ms.map_or(default.cold_after, Duration::from_millis),
            sample_interval: default.sample_interval,
        };
        Self { bounds, wrong: text.wrong(bounds) }
    }
}

impl PressureText {
    /// Returns the first error, at the first of its keys that the text has.
    fn wrong(&self, bounds: PressureBounds) -> Option<Wrong> {
        let InvalidBounds { fields, problem } = bounds.first_problem()?;
        let (field, at) = fields.into_iter().find_map(|field| Some((field, self.location(field)?)))?;
        Some(Wrong { at, field, problem })
    }

    /// Returns the position of the key's value in the text.
    fn location(&self, field: &str) -> Option<usize> {
        let given = match field {
            "elevated_percent" => &self.elevated_percent,
            "high_percent" => &self.high_percent,
            "critical_percent" => &self.critical_percent,
            "fall_percent" => &self.fall_percent,
            "evict_to_percent" => &self.evict_to_percent,
            _ => return None,
        };
        given.as_ref().map(|it| it.span().start)
    }
}
