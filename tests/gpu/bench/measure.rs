//! Pairs of timings, ours and the bare one in the same run, taken in turns: on a shared machine only ratios mean
//! something.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value, json};

/// Untimed rounds before the first pair: first imports, first pages, first frames.
const WARM_UP: usize = 2;

/// Timed pairs of one question.
#[derive(Debug)]
pub(crate) struct Measure {
    pub(crate) target: f64,
    ours: Vec<Duration>,
    bare: Vec<Duration>,
    /// What else each round has told, by name.
    beside: Map<String, Value>,
}

/// What one round of ours says beside its time.
pub(crate) type Beside = Vec<(&'static str, Duration)>;

impl Measure {
    /// Takes `pairs` of them; who goes first changes from pair to pair. Each side leaves the device as it found it.
    pub(crate) fn take(
        target: f64,
        pairs: usize,
        mut ours: impl FnMut() -> Result<(Duration, Beside)>,
        mut bare: impl FnMut() -> Result<Duration>,
    ) -> Result<Self> {
        let mut measure = Self { target, ours: Vec::new(), bare: Vec::new(), beside: Map::new() };
        for round in 0..WARM_UP + pairs {
            let (our, plain) = if round % 2 == 0 {
                let our = ours()?;
                (our, bare()?)
            } else {
                let plain = bare()?;
                (ours()?, plain)
            };
            if round >= WARM_UP {
                measure.ours.push(our.0);
                measure.bare.push(plain);
                for (name, time) in our.1 {
                    let samples = measure.beside.entry(name).or_insert_with(|| json!([]));
                    samples.as_array_mut().into_iter().for_each(|samples| samples.push(milliseconds(&time)));
                }
            }
        }
        Ok(measure)
    }

    /// The ratios in rising order.
    fn ratios(&self) -> Vec<f64> {
        let pairs = self.ours.iter().zip(&self.bare);
        let mut ratios: Vec<f64> =
            pairs.map(|(ours, bare)| ours.as_secs_f64() / bare.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    pub(crate) fn median(&self) -> f64 {
        median(&self.ratios())
    }

    pub(crate) fn line(&self, name: &str) -> String {
        let ratios = self.ratios();
        let (least, most) = (ratios.first().copied().unwrap_or(0.0), ratios.last().copied().unwrap_or(0.0));
        let verdict = if self.median() <= self.target { "within" } else { "MISSED" };
        format!(
            "{name:9} {:.2} times bare ({least:.2} to {most:.2}, {} pairs); ours {:.2} ms, bare {:.2} ms; \
             target {:.2}: {verdict}",
            self.median(),
            ratios.len(),
            median_ms(&self.ours),
            median_ms(&self.bare),
            self.target,
        )
    }

    pub(crate) fn json(&self) -> Value {
        let ratios = self.ratios();
        json!({
            "median_ratio": self.median(), "least_ratio": ratios.first(), "most_ratio": ratios.last(),
            "target_ratio": self.target, "pairs": ratios.len(), "warm_up_pairs": WARM_UP,
            "median_ours_ms": median_ms(&self.ours), "median_bare_ms": median_ms(&self.bare),
            "ours_ms": self.ours.iter().map(milliseconds).collect::<Vec<_>>(),
            "bare_ms": self.bare.iter().map(milliseconds).collect::<Vec<_>>(),
            "beside_ms": self.beside,
        })
    }
}

fn milliseconds(time: &Duration) -> Value {
    json!(time.as_secs_f64() * 1e3)
}

fn median_ms(times: &[Duration]) -> f64 {
    let mut times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    median(&times)
}

/// Of values in rising order.
fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_does_not_count_and_the_median_is_of_the_ratios() {
        let mut rounds = 0_u32;
        let ours = || {
            rounds += 1;
            // 100 s in the warm-up, then 10, 20, 30 ms.
            let time = if rounds <= 2 { 100_000 } else { u64::from(rounds - 2) * 10 };
            Ok((Duration::from_millis(time), vec![("step", Duration::from_millis(time))]))
        };
        let measure = Measure::take(1.5, 3, ours, || Ok(Duration::from_millis(10))).unwrap();
        assert!((measure.median() - 2.0).abs() < 1e-9);
        let json = measure.json();
        assert_eq!(json["beside_ms"]["step"], json!([10.0, 20.0, 30.0]));
        assert!(measure.line("x").contains("MISSED"));
    }
}
