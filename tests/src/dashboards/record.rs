//! Executes the queries of panels on a real Prometheus.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{Panel, Query, Values};
use crate::prometheus::{Prometheus, Span};

/// One series of a panel.
#[derive(Debug)]
pub struct Series {
    /// The legend of its query, with the values of its labels.
    pub name: String,
    pub labels: Value,
    /// Seconds since 1970, and finite values.
    pub points: Vec<(f64, f64)>,
}

/// All series of a panel, over a time. An error names the query that Prometheus refuses, or that has no series.
pub fn answer(prometheus: &Prometheus, panel: &Panel, values: &Values, span: &Span) -> Result<Vec<Series>> {
    let mut all = Vec::new();
    for Query { expression, legend } in panel.queries {
        let resolved = values.resolve(expression);
        let found = prometheus.range(&resolved, span).with_context(|| format!("the query {resolved}"))?;
        let series = found.iter().map(|series| Series {
            name: name(legend, &series["metric"]),
            labels: series["metric"].clone(),
            points: points(&series["values"]),
        });
        let before = all.len();
        all.extend(series.filter(|series| !series.points.is_empty()));
        if all.len() == before {
            bail!("the query {resolved} has no series");
        }
    }
    Ok(all)
}

/// A legend with the values of its labels.
fn name(legend: &str, labels: &Value) -> String {
    let mut name = String::new();
    let mut rest = legend;
    while let Some((text, (label, after))) =
        rest.split_once("{{").and_then(|(text, rest)| Some((text, rest.split_once("}}")?)))
    {
        name.push_str(text);
        name.push_str(labels[label].as_str().unwrap_or_default());
        rest = after;
    }
    name + rest
}

/// The points of a series that have a value; a quantile of nothing has none.
fn points(values: &Value) -> Vec<(f64, f64)> {
    let pairs = values.as_array().into_iter().flatten();
    let point = |pair: &Value| {
        let value: f64 = pair[1].as_str()?.parse().ok()?;
        value.is_finite().then_some((pair[0].as_f64()?, value))
    };
    pairs.filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_legend_gets_the_values_of_its_labels() {
        let labels = json!({ "vramd_tier": "host", "hw_id": "GPU-1" });
        assert_eq!(name("{{vramd_tier}} of {{hw_id}}", &labels), "host of GPU-1");
        assert_eq!(name("limit", &labels), "limit");
        assert_eq!(name("{{other}}: {{hw_id", &labels), ": {{hw_id");
    }

    #[test]
    fn only_finite_values_are_points() {
        let values = json!([[1.0, "NaN"], [2.0, "0"], [3.5, "+Inf"], [4.0, "7.5"]]);
        assert_eq!(points(&values), [(2.0, 0.0), (4.0, 7.5)]);
    }
}
