//! The Grafana dashboards of `deploy/grafana`: each panel asks one question and answers it by queries.
//!
//! [`ALL`] is the one description of them. The program `dashboards` writes the files from it, the page of dashboards lists
//! its questions, and a test executes its queries on the series of a loaded node.

mod fleet;
mod grafana;
pub mod load;
mod node;
pub mod record;
mod tenant;

use std::collections::BTreeSet;

use vramd::telemetry::metrics::{ATTRIBUTES, Definition, MetricKind};

pub use grafana::json;

/// Every dashboard, in the order of the page.
pub const ALL: &[&Dashboard] = &[&fleet::DASHBOARD, &node::DASHBOARD, &tenant::DASHBOARD];

/// One dashboard.
#[derive(Debug)]
pub struct Dashboard {
    /// The name of its file and its picture, without the ending.
    pub name: &'static str,
    /// The id by which Grafana knows it across imports.
    pub uid: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    /// In the order in which one narrows the next.
    pub variables: &'static [Variable],
    pub panels: &'static [Panel],
}

/// A choice of the reader that narrows all queries.
#[derive(Debug)]
pub struct Variable {
    pub name: &'static str,
    pub label: &'static str,
    /// The series whose label has the choices.
    pub series: &'static str,
    pub label_of_series: &'static str,
    /// Whether the reader may choose several values, and all.
    pub multi: bool,
}

/// One question with its answer.
#[derive(Debug)]
pub struct Panel {
    /// A question, which ends in a question mark.
    pub title: &'static str,
    /// One line that says how to read the answer.
    pub description: &'static str,
    pub unit: Unit,
    pub view: View,
    pub queries: &'static [Query],
}

#[derive(Debug)]
pub struct Query {
    /// PromQL with the variables of Grafana.
    pub expression: &'static str,
    /// The name of each series, with `{{label}}` for the value of a label. In a table, the name of the column.
    pub legend: &'static str,
}

/// How a panel shows its series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Lines over time.
    Lines,
    /// Areas over time whose sum means something.
    Stack,
    /// The level of pressure over time.
    Levels,
    /// The last value of each series, large.
    Value,
    /// The name of each series, large.
    Names,
    /// One row for each set of labels, one column for each query, now.
    Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    BytesPerSecond,
    Seconds,
    /// A share of 1, shown in percent.
    Ratio,
    Count,
    CountPerSecond,
}

impl Unit {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes a second",
            Self::Seconds => "seconds",
            Self::Ratio => "percent",
            Self::Count => "count",
            Self::CountPerSecond => "count a second",
        }
    }

    /// Grafana's name of the unit.
    pub const fn grafana(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "binBps",
            Self::Seconds => "s",
            Self::Ratio => "percentunit",
            Self::Count => "short",
            Self::CountPerSecond => "cps",
        }
    }
}

impl View {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lines => "lines",
            Self::Stack => "stack",
            Self::Levels => "levels",
            Self::Value => "value",
            Self::Names => "names",
            Self::Table => "table",
        }
    }

    /// Width and height on Grafana's grid of 24 columns.
    const fn size(self) -> (u64, u64) {
        match self {
            Self::Lines | Self::Stack | Self::Levels => (12, 8),
            Self::Value | Self::Names => (6, 4),
            Self::Table => (24, 8),
        }
    }
}

const fn panel(
    title: &'static str,
    description: &'static str,
    unit: Unit,
    view: View,
    queries: &'static [Query],
) -> Panel {
    Panel { title, description, unit, view, queries }
}

const fn query(legend: &'static str, expression: &'static str) -> Query {
    Query { expression, legend }
}

const INSTANCE: Variable = Variable {
    name: "instance",
    label: "Node",
    series: "vramd_build_info",
    label_of_series: "instance",
    multi: true,
};
const DEVICE: Variable = Variable {
    name: "device",
    label: "Device",
    series: "vramd_memory_limit_bytes{instance=~\"$instance\",vramd_tier=\"device\"}",
    label_of_series: "hw_id",
    multi: true,
};
const TENANT: Variable = Variable {
    name: "tenant",
    label: "Tenant",
    series: "vramd_quota_limit_bytes{instance=~\"$instance\"}",
    label_of_series: "vramd_tenant",
    multi: false,
};

/// The values that stand for Grafana's variables in an expression.
#[derive(Clone, Debug)]
pub struct Values {
    pub instance: String,
    pub device: String,
    pub tenant: String,
    /// How far back a rate reaches, like `12s`.
    pub rate_interval: String,
    /// The time that the dashboard shows, like `2m`.
    pub range: String,
}

impl Values {
    /// Puts the values in place of the variables.
    pub fn resolve(&self, expression: &str) -> String {
        let resolved = expression.replace("$__rate_interval", &self.rate_interval);
        let resolved = resolved.replace("$__range", &self.range).replace("$instance", &self.instance);
        resolved.replace("$device", &self.device).replace("$tenant", &self.tenant)
    }
}

/// The names in an expression or a file of rules that have the form of a metric of the daemon, or of a recorded series.
pub fn metric_names(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let words = text.split(|c| !is_part(c)).map(|word| word.trim_matches(':'));
    let is_ours = |word: &&str| {
        let prefixes = ["vramd_", "rpc_", "process_"];
        prefixes.iter().any(|prefix| word.starts_with(prefix)) || word.contains(":vramd_")
    };
    words.filter(is_ours).collect()
}

/// Whether a word is a series of this metric in Prometheus.
pub fn is_series_of(metric: &Definition, word: &str) -> bool {
    let name = metric.prometheus_name();
    match metric.kind {
        MetricKind::Histogram => {
            word.strip_prefix(&name).is_some_and(|rest| matches!(rest, "_bucket" | "_sum" | "_count"))
        }
        _ => word == name,
    }
}

/// Whether a word is the label that Prometheus has for an attribute of the daemon's metrics.
pub fn is_label(word: &str) -> bool {
    ATTRIBUTES.iter().any(|(attribute, _)| attribute.replace('.', "_") == word)
}

#[cfg(test)]
mod tests {
    use vramd::telemetry::metrics;

    use super::*;

    fn panels() -> impl Iterator<Item = (&'static Dashboard, &'static Panel)> {
        ALL.iter().flat_map(|dashboard| dashboard.panels.iter().map(move |panel| (*dashboard, panel)))
    }

    #[test]
    fn every_panel_asks_a_question_and_says_how_to_read_it() {
        let mut titles = BTreeSet::new();
        for (dashboard, panel) in panels() {
            let Panel { title, description, queries, view, .. } = panel;
            let letter = title.chars().next().unwrap();
            assert!(title.ends_with('?') && letter.is_uppercase(), "{title}");
            assert!(titles.insert((dashboard.name, title)), "{title} is asked twice");
            assert!(description.ends_with('.') && !description.contains('\n'), "{title}: {description}");
            assert!((20..=200).contains(&description.len()), "{title}: {description}");
            assert!(!queries.is_empty(), "{title}");
            let mut legends = BTreeSet::new();
            for query in *queries {
                assert!(
                    !query.legend.is_empty() && legends.insert(query.legend),
                    "{title}: {}",
                    query.legend
                );
                assert!(*view == View::Table || query.expression.contains("$instance"), "{title}");
            }
        }
    }

    #[test]
    fn every_query_names_metrics_and_labels_that_exist() {
        let queries = panels().flat_map(|(_, panel)| panel.queries.iter().map(|query| query.expression));
        let variables = ALL.iter().flat_map(|it| it.variables).map(|it| it.series);
        for expression in queries.chain(variables) {
            let mut metrics = 0;
            for word in metric_names(expression) {
                let is_metric = metrics::ALL.iter().any(|metric| is_series_of(metric, word));
                assert!(is_metric || is_label(word), "{word} in {expression}");
                metrics += usize::from(is_metric);
            }
            let is_of_prometheus = expression.contains("up{") || expression.contains("ALERTS{");
            assert!(metrics > 0 || is_of_prometheus, "{expression}");
        }
    }

    #[test]
    fn every_legend_names_labels_that_the_query_keeps() {
        for (_, panel) in panels() {
            for query in panel.queries {
                let labels = query.legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
                for label in labels {
                    let is_kept = query.expression.contains(&format!("{label},"))
                        || query.expression.contains(&format!("{label})"))
                        || !query.expression.contains(" by ");
                    assert!(is_kept, "{label} of {:?} in {}", query.legend, query.expression);
                }
            }
        }
    }

    #[test]
    fn every_variable_of_a_query_is_declared() {
        for dashboard in ALL {
            let declared: Vec<_> = dashboard.variables.iter().map(|it| format!("${}", it.name)).collect();
            for expression in dashboard.panels.iter().flat_map(|it| it.queries).map(|it| it.expression) {
                let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || "$_".contains(c)));
                for word in words.filter(|word| word.starts_with('$')) {
                    let is_known = declared.iter().any(|it| it == word);
                    assert!(is_known || matches!(word, "$__rate_interval" | "$__range"), "{word}");
                }
            }
        }
    }

    #[test]
    fn names_in_an_expression_are_found() {
        let text = "sum by (vramd_tier) (rate(vramd_pin_wait_seconds_bucket{le=\"1\"}[5m])) / on (job) a:vramd_x:sum";
        let found: Vec<_> = metric_names(text).into_iter().collect();
        assert_eq!(found, ["a:vramd_x:sum", "vramd_pin_wait_seconds_bucket", "vramd_tier"]);
        assert!(is_label("vramd_tier") && !is_label("vramd_pin_wait_seconds_bucket"));
        assert!(is_series_of(&metrics::PIN_WAIT, "vramd_pin_wait_seconds_bucket"));
        assert!(!is_series_of(&metrics::PIN_WAIT, "vramd_pin_wait_seconds"));
    }
}
