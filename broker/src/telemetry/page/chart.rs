//! The chart of one place: the charges of tenants as stacked areas, and below them the levels of pressure.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use broker_core::{Pressure, Time};
use maud::{Markup, html};
use vramd_types::Bytes;

use super::{
    colours::Colour,
    history::{PlaceSample, Sample, Window},
};

/// The inner units of the plot, finer than pixels.
const WIDTH: u64 = 6_000;
const HEIGHT: u64 = 1_600;
/// A sample counts for at most as many intervals. After that the chart has a gap.
const INTERVALS_MAX: u32 = 3;

/// The time and the bytes that a chart covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plot {
    pub(super) window: Window,
    pub(super) now: Time,
    /// The bytes at the top.
    pub(super) total: Bytes,
}

/// A sample and the stretch of the chart that it covers.
#[derive(Debug)]
struct Step<'a> {
    from: u64,
    to: u64,
    place: &'a PlaceSample,
}

/// Draws one place. Each tenant has a band; the last band has all other tenants.
pub(super) fn chart<'a>(
    plot: Plot,
    samples: impl Iterator<Item = &'a Arc<Sample>>,
    place: impl Fn(&'a Sample) -> Option<&'a PlaceSample>,
    tenants: &[(Arc<str>, Colour)],
    label: &str,
) -> Markup {
    let steps = plot.steps(samples, place);
    let heights: Vec<Vec<u64>> = steps.iter().map(|step| plot.heights(step.place, tenants)).collect();
    let names = tenants.iter().map(|(name, colour)| (&**name, *colour));
    let bands: Vec<_> = names.chain([("others", Colour::OTHERS)]).enumerate().collect();
    html! {
        svg.chart viewBox="0 0 680 214" role="img" aria-label=(label) {
            g.grid {
                @for quarter in 0..=4_u64 {
                    @let y = 8 + 160 * quarter / 4;
                    line x1="64" x2="664" y1=(y) y2=(y) {}
                    text x="58" y=(y + 4) text-anchor="end" { (plot.mark(quarter)) }
                }
            }
            svg x="64" y="8" width="600" height="160" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" {
                // The whole stack comes first; each smaller one covers its lower bands.
                @for (index, (name, colour)) in bands.iter().rev() {
                    @let top = |step: usize| heights.get(step).and_then(|all| all.get(*index)).copied().unwrap_or(HEIGHT);
                    @let path = area(&steps, HEIGHT, top);
                    @if !path.is_empty() {
                        path.band.(colour.class()) d=(path) { title { (name) } }
                    }
                }
                @let limit = |step: usize| steps.get(step).map_or(0, |step| plot.y(step.place.capacity));
                @let path = area(&steps, 0, limit);
                @if !path.is_empty() {
                    path.taken d=(path) { title { "not available to tenants" } }
                }
            }
            @for (from, to, level) in levels(&steps) {
                rect.pressure.(level.name()) x=(pixels(from)) y="172" width=(width(from, to)) height="6" {
                    title { "pressure " (level.name()) }
                }
            }
            g.axis {
                @for (x, anchor, mark) in plot.times() {
                    text x=(x) y="196" text-anchor=(anchor) { (mark) }
                }
            }
        }
    }
}

impl Plot {
    fn steps<'a>(
        self,
        samples: impl Iterator<Item = &'a Arc<Sample>>,
        place: impl Fn(&'a Sample) -> Option<&'a PlaceSample>,
    ) -> Vec<Step<'a>> {
        let mut steps: Vec<Step<'a>> = Vec::new();
        let mut samples = samples.peekable();
        while let Some(sample) = samples.next() {
            let lasts = self.window.interval() * INTERVALS_MAX;
            let next = samples.peek().map_or(self.now, |next| next.at);
            let until = next.min(sample.at.after(lasts));
            let (from, to) = (self.x(sample.at), self.x(until));
            if let Some(place) = place(sample).filter(|_| from < to) {
                steps.push(Step { from, to, place });
            }
        }
        steps
    }

    /// The upper edges of all bands, from the lowest band on.
    fn heights(self, place: &PlaceSample, tenants: &[(Arc<str>, Colour)]) -> Vec<u64> {
        let mut sum = Bytes::ZERO;
        let named = tenants.iter().map(|(name, _)| {
            sum = sum.saturating_add(place.charge_of(name));
            self.y(sum)
        });
        let mut heights: Vec<_> = named.collect();
        heights.push(self.y(place.charged));
        heights
    }

    fn x(self, at: Time) -> u64 {
        let ago = self.now.since(at).as_micros();
        let span = self.window.span().as_micros();
        WIDTH.saturating_sub(share(ago, span, WIDTH))
    }

    fn y(self, bytes: Bytes) -> u64 {
        HEIGHT.saturating_sub(share(u128::from(bytes.get()), u128::from(self.total.get()), HEIGHT))
    }

    /// The bytes at a line of the grid; the first line is at the top.
    fn mark(self, quarter: u64) -> String {
        let bytes = u128::from(self.total.get()) * u128::from(4_u64.saturating_sub(quarter)) / 4;
        Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX)).to_string()
    }

    fn times(self) -> impl Iterator<Item = (u64, &'static str, String)> {
        (0..=5_u32).rev().map(move |fifth| {
            let ago = self.window.span() / 5 * fifth;
            let (anchor, mark) = match fifth {
                0 => ("end", "now".to_owned()),
                5 => ("start", format!("{} ago", whole(ago))),
                _ => ("middle", whole(ago)),
            };
            (664 - 120 * u64::from(fifth), anchor, mark)
        })
    }
}

/// Minutes, or hours and minutes.
fn whole(span: Duration) -> String {
    let minutes = span.as_secs() / 60;
    match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("{minutes} min"),
        (hours, 0) => format!("{hours} h"),
        (hours, minutes) => format!("{hours} h {minutes:02}"),
    }
}

/// Returns `part / whole` of a length, at most all of it.
fn share(part: u128, whole: u128, length: u64) -> u64 {
    let share = part.saturating_mul(u128::from(length)).checked_div(whole).unwrap_or_default();
    u64::try_from(share).unwrap_or(u64::MAX).min(length)
}

/// Returns the path of the area between a base and the edge at each step. It has a corner only where the edge changes.
fn area(steps: &[Step<'_>], base: u64, edge: impl Fn(usize) -> u64) -> String {
    let mut path = String::new();
    // Where the last step ends, and its edge.
    let mut open: Option<(u64, u64)> = None;
    let mut is_flat = true;
    for (index, step) in steps.iter().enumerate() {
        let (y, from) = (edge(index), step.from);
        is_flat &= y == base;
        // Writing to a string cannot fail.
        match open {
            Some((end, last)) if end == from && last == y => {}
            Some((end, _)) if end == from => _ = write!(path, "H{from}V{y}"),
            Some((end, _)) => _ = write!(path, "H{end}V{base}ZM{from} {base}V{y}"),
            None => _ = write!(path, "M{from} {base}V{y}"),
        }
        open = Some((step.to, y));
    }
    match open {
        Some((end, _)) if !is_flat => {
            _ = write!(path, "H{end}V{base}Z");
            path
        }
        _ => String::new(),
    }
}

/// Joins neighbouring steps of one level.
fn levels(steps: &[Step<'_>]) -> Vec<(u64, u64, Pressure)> {
    let mut levels: Vec<(u64, u64, Pressure)> = Vec::new();
    for step in steps {
        match levels.last_mut() {
            Some((_, to, level)) if *to == step.from && *level == step.place.pressure => *to = step.to,
            _ => levels.push((step.from, step.to, step.place.pressure)),
        }
    }
    levels
}

fn pixels(x: u64) -> String {
    format!("{}.{}", 64 + x / 10, x % 10)
}

fn width(from: u64, to: u64) -> String {
    let width = to.saturating_sub(from);
    format!("{}.{}", width / 10, width % 10)
}
