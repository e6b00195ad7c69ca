//! Times of many calls, with their medians and percentiles.

use std::time::Duration;

use serde_json::{Value, json};

/// Times in ascending order.
#[derive(Debug)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    /// Sorts the times, of which there must be at least one.
    pub(crate) fn new(mut times: Vec<Duration>) -> Self {
        assert!(!times.is_empty(), "something was timed");
        times.sort_unstable();
        Self(times)
    }

    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }

    /// Returns the least time that `percent` percent of the calls do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent).div_ceil(100).max(1) - 1]
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "calls": self.0.len(),
            "least_us": micros(self.0[0]),
            "median_us": micros(self.median()),
            "p90_us": micros(self.percentile(90)),
            "p99_us": micros(self.percentile(99)),
            "most_us": micros(self.percentile(100)),
        })
    }
}

pub(crate) fn micros(time: Duration) -> f64 {
    // The clock's resolution is a nanosecond.
    (time.as_secs_f64() * 1e9).round() / 1e3
}

/// One figure for each of several pairs.
#[derive(Debug)]
pub(crate) struct Figures(Vec<f64>);

impl Figures {
    /// Takes figures in the order of the pairs, of which there must be at least one.
    pub(crate) fn new(figures: impl IntoIterator<Item = f64>) -> Self {
        let figures: Vec<f64> = figures.into_iter().collect();
        assert!(!figures.is_empty(), "a pair was taken");
        Self(figures)
    }

    /// Divides the daemon's figures by the bare ones, pair by pair.
    pub(crate) fn ratios(ours: &[f64], bare: &[f64]) -> Self {
        Self::new(ours.iter().zip(bare).map(|(ours, bare)| ours / bare))
    }

    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
    }

    /// Formats median and range: `1.23 (1.10 to 1.40)`.
    pub(crate) fn text(&self) -> String {
        let sorted = self.sorted();
        format!("{:.2} ({:.2} to {:.2})", self.median(), sorted[0], sorted[sorted.len() - 1])
    }

    pub(crate) fn json(&self) -> Value {
        let sorted = self.sorted();
        json!({
            "median": self.median(), "least": sorted[0], "most": sorted[sorted.len() - 1], "pairs": self.0,
        })
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_samples() {
        let samples = Samples::new((1..=200).rev().map(Duration::from_micros).collect());
        assert_eq!(samples.median(), Duration::from_micros(100));
        assert_eq!(samples.percentile(99), Duration::from_micros(198));
        assert_eq!(samples.percentile(100), Duration::from_micros(200));
        assert_eq!(Samples::new(vec![Duration::from_nanos(1500)]).json()["p99_us"], json!(1.5));
    }

    #[test]
    fn the_median_of_ratios_is_not_the_ratio_of_medians() {
        let ratios = Figures::ratios(&[1.0, 4.0, 3.0], &[1.0, 2.0, 1.0]);
        assert!((ratios.median() - 2.0).abs() < 1e-9);
        assert_eq!(ratios.text(), "2.00 (1.00 to 3.00)");
        assert!((Figures::new([1.0, 2.0]).median() - 1.5).abs() < 1e-9);
        assert_eq!(ratios.json()["pairs"], json!([1.0, 2.0, 3.0]));
    }
}
