//! Writes collected metrics in the format OpenMetrics 1.0, which carries exemplars and the older text format does not.

use std::{
    fmt::{self, Write as _},
    time::UNIX_EPOCH,
};

use prometheus::proto::{Histogram, LabelPair, Metric, MetricFamily, MetricType};

use super::{
    exemplars::{Buckets, Exemplar, Exemplars},
    metrics::{self, Definition, MetricKind},
};

/// The format's name in `Accept` and `Content-Type`.
pub(super) const MEDIA_TYPE: &str = "application/openmetrics-text";
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes all families, and the exemplars of their histograms.
pub(super) fn text(families: &[MetricFamily], exemplars: &Exemplars) -> Result<String, fmt::Error> {
    let mut text = String::new();
    for family in families {
        write_family(&mut text, family, exemplars)?;
    }
    text.push_str("# EOF\n");
    Ok(text)
}

fn write_family(text: &mut String, family: &MetricFamily, exemplars: &Exemplars) -> fmt::Result {
    let name = family.name();
    let (kind, base) = match family.get_field_type() {
        // The name of the family is without the suffix, the name of its samples is with it.
        MetricType::COUNTER => ("counter", name.strip_suffix("_total").unwrap_or(name)),
        MetricType::HISTOGRAM => ("histogram", name),
        _ => ("gauge", name),
    };
    writeln!(text, "# TYPE {base} {kind}\n# HELP {base} {}", escaped(family.help()))?;
    for metric in family.get_metric() {
        match kind {
            "counter" => {
                write_sample(text, &format!("{base}_total"), metric, None, metric.get_counter().get_value())?;
                text.push('\n');
            }
            "histogram" => {
                let mut histograms = metrics::ALL.iter().filter(|it| it.kind == MetricKind::Histogram);
                let definition = histograms.find(|it| it.prometheus_name() == name);
                let of_series = definition.and_then(|it| exemplars.of(it.name, attribute_values(it, metric)));
                write_histogram(text, name, metric, &of_series.unwrap_or_default())?;
            }
            _ => {
                write_sample(text, name, metric, None, metric.get_gauge().get_value())?;
                text.push('\n');
            }
        }
    }
    Ok(())
}

fn write_histogram(text: &mut String, name: &str, metric: &Metric, exemplars: &Buckets) -> fmt::Result {
    let histogram: &Histogram = metric.get_histogram();
    let bounded = histogram.get_bucket().iter().filter(|bucket| bucket.upper_bound().is_finite());
    // The format wants 1 as 1.0.
    let buckets = bounded.map(|bucket| (format!("{:?}", bucket.upper_bound()), bucket.cumulative_count()));
    let last = ("+Inf".to_owned(), histogram.get_sample_count());
    for (at, (bound, count)) in buckets.chain([last]).enumerate() {
        write_sample(text, &format!("{name}_bucket"), metric, Some(&bound), count)?;
        if let Some(Some(exemplar)) = exemplars.get(at) {
            write_exemplar(text, exemplar)?;
        }
        text.push('\n');
    }
    write_sample(text, &format!("{name}_sum"), metric, None, histogram.get_sample_sum())?;
    text.push('\n');
    write_sample(text, &format!("{name}_count"), metric, None, histogram.get_sample_count())?;
    text.push('\n');
    Ok(())
}

/// Writes a sample without the end of its line.
fn write_sample(
    text: &mut String,
    name: &str,
    metric: &Metric,
    bound: Option<&str>,
    value: impl fmt::Display,
) -> fmt::Result {
    let labels = metric.get_label().iter().map(|label| (label.name(), label.value()));
    text.push_str(name);
    for (at, (label, of_label)) in labels.chain(bound.map(|bound| ("le", bound))).enumerate() {
        write!(text, "{}{label}=\"{}\"", if at == 0 { '{' } else { ',' }, escaped(of_label))?;
    }
    if !metric.get_label().is_empty() || bound.is_some() {
        text.push('}');
    }
    write!(text, " {value}")
}

fn write_exemplar(text: &mut String, exemplar: &Exemplar) -> fmt::Result {
    let Exemplar { trace, span, value, at } = exemplar;
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = (at.as_secs(), at.subsec_millis());
    write!(text, " # {{trace_id=\"{trace}\",span_id=\"{span}\"}} {value} {seconds}.{millis:03}")
}

/// The values of a metric's attributes in one series, in the order of their declaration.
fn attribute_values(definition: &Definition, metric: &Metric) -> Vec<String> {
    let of = |attribute: &&str| {
        let label = attribute.replace('.', "_");
        let found = metric.get_label().iter().find(|it| it.name() == label);
        found.map(LabelPair::value).unwrap_or_default().to_owned()
    };
    definition.attributes.iter().map(of).collect()
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}
