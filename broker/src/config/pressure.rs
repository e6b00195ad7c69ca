//! `[pressure]`: from when on a device or the host's memory counts as full, and what is done then.

use std::time::Duration;

use broker_core::PressureBounds;
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::Wrong;

/// As in [`PressureBounds`], and what is wrong in the text as a whole.
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
    elevated_percent: Option<Spanned<Percent>>,
    high_percent: Option<Spanned<Percent>>,
    critical_percent: Option<Spanned<Percent>>,
    fall_percent: Option<Spanned<u32>>,
    evict_to_percent: Option<Spanned<Percent>>,
    /// 0 is nothing.
    cold_after_ms: Option<u64>,
}

/// From 1 to 100.
#[derive(Clone, Copy)]
struct Percent(u32);

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u32::deserialize(deserializer)? {
            percent @ 1..=100 => Ok(Self(percent)),
            percent => Err(de::Error::custom(format!("{percent} is not between 1 and 100 percent"))),
        }
    }
}

impl From<PressureText> for Pressure {
    fn from(text: PressureText) -> Self {
        let usual = PressureBounds::default();
        let percent =
            |said: &Option<Spanned<Percent>>, usual| said.as_ref().map_or(usual, |it| it.get_ref().0);
        let bounds = PressureBounds {
            elevated_percent: percent(&text.elevated_percent, usual.elevated_percent),
            high_percent: percent(&text.high_percent, usual.high_percent),
            critical_percent: percent(&text.critical_percent, usual.critical_percent),
            fall_percent: text.fall_percent.as_ref().map_or(usual.fall_percent, |it| *it.get_ref()),
            evict_to_percent: percent(&text.evict_to_percent, usual.evict_to_percent),
            cold_after: text.cold_after_ms.map_or(usual.cold_after, Duration::from_millis),
            look_every: usual.look_every,
        };
        Self { bounds, wrong: text.wrong(bounds) }
    }
}

impl PressureText {
    /// The first mistake, at the first key of those that it is about that the text has.
    fn wrong(&self, bounds: PressureBounds) -> Option<Wrong> {
        let PressureBounds { elevated_percent, high_percent, critical_percent, .. } = bounds;
        let PressureBounds { fall_percent, evict_to_percent, .. } = bounds;
        let place = |said: &Option<Spanned<Percent>>| said.as_ref().map(|it| it.span().start);
        let elevated = ("elevated_percent", place(&self.elevated_percent));
        let high = ("high_percent", place(&self.high_percent));
        let critical = ("critical_percent", place(&self.critical_percent));
        let fall = ("fall_percent", self.fall_percent.as_ref().map(|it| it.span().start));
        let evict_to = ("evict_to_percent", place(&self.evict_to_percent));

        let ascending = |low: u32, high: u32| {
            (low >= high).then(|| format!("the steps do not ascend: {low} percent, then {high}"))
        };
        let nearest = (high_percent.saturating_sub(elevated_percent))
            .min(critical_percent.saturating_sub(high_percent))
            .min(elevated_percent);
        let falls = || {
            (fall_percent >= nearest).then(|| {
                format!("a step is left {fall_percent} percent below its bound, and the one before it begins no more than {nearest} below")
            })
        };
        let left_at = high_percent.saturating_sub(fall_percent);
        let ends = || {
            (evict_to_percent >= left_at).then(|| {
                format!("with {evict_to_percent} percent full the step is not left that begins at {high_percent}: that takes less than {left_at}")
            })
        };
        let (problem, about) = ascending(elevated_percent, high_percent)
            .map(|it| (it, vec![high, elevated]))
            .or_else(|| ascending(high_percent, critical_percent).map(|it| (it, vec![critical, high])))
            .or_else(|| falls().map(|it| (it, vec![fall, elevated, high, critical])))
            .or_else(|| ends().map(|it| (it, vec![evict_to, high, fall])))?;
        let (field, at) = about.into_iter().find_map(|(field, at)| Some((field, at?)))?;
        Some(Wrong { at, field, problem })
    }
}
