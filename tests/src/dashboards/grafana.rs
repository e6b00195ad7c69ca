//! Writes dashboards in the form that Grafana imports.

use serde_json::{Map, Value, json};

use super::{Dashboard, Panel, Unit, Variable, View};

/// The version of Grafana's form of dashboards; Grafana upgrades older ones by itself.
const SCHEMA_VERSION: u64 = 39;
/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;
/// Grafana names the queries of a panel by letters.
const LETTERS: [&str; 6] = ["A", "B", "C", "D", "E", "F"];

/// The file of a dashboard.
pub fn json(dashboard: &Dashboard) -> Value {
    let Dashboard { uid, title, description, variables, panels, .. } = dashboard;
    let chosen = [data_source()].into_iter().chain(variables.iter().map(variable));
    json!({
        "annotations": { "list": [] },
        "description": description,
        "editable": true,
        "graphTooltip": 1,
        "links": [{
            "asDropdown": false,
            "includeVars": true,
            "keepTime": true,
            "tags": ["vramd"],
            "title": "vramd",
            "type": "dashboards",
        }],
        "panels": panels.iter().zip(1_u64..).zip(places(panels)).map(panel).collect::<Vec<_>>(),
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": ["vramd"],
        "templating": { "list": chosen.collect::<Vec<_>>() },
        "time": { "from": "now-1h", "to": "now" },
        "timezone": "",
        "title": title,
        "uid": uid,
        "version": 1,
    })
}

/// The place of each panel: from left to right, and below as soon as a line is full.
fn places(panels: &[Panel]) -> Vec<(u64, u64)> {
    let (mut x, mut y, mut line_height) = (0, 0, 0);
    let place = |panel: &Panel| {
        let (width, height) = panel.view.size();
        // A line has panels of one height, so that none overlaps the next line.
        if x + width > COLUMNS || (x > 0 && height != line_height) {
            (x, y) = (0, y + line_height);
        }
        line_height = height;
        let at = (x, y);
        x += width;
        at
    };
    panels.iter().map(place).collect()
}

fn panel(((panel, id), (x, y)): ((&Panel, u64), (u64, u64))) -> Value {
    let Panel { title, description, unit, view, queries } = panel;
    let (width, height) = view.size();
    let is_table = *view == View::Table;
    let targets = queries.iter().zip(LETTERS).map(|(query, letter)| {
        json!({
            "datasource": source(),
            "expr": query.expression,
            "format": if is_table { "table" } else { "time_series" },
            "instant": is_table,
            "legendFormat": query.legend,
            "range": !is_table,
            "refId": letter,
        })
    });
    let mut panel = json!({
        "datasource": source(),
        "description": description,
        "fieldConfig": { "defaults": defaults(*unit, *view), "overrides": [] },
        "gridPos": { "h": height, "w": width, "x": x, "y": y },
        "id": id,
        "options": options(*view),
        "targets": targets.collect::<Vec<_>>(),
        "title": title,
        "type": match view {
            View::Lines | View::Stack | View::Levels => "timeseries",
            View::Value | View::Names => "stat",
            View::Table => "table",
        },
    });
    if is_table {
        // Grafana names the only value `Value`, and several by their queries.
        let name = |letter: &str| match queries.len() {
            1 => "Value".to_owned(),
            _ => format!("Value #{letter}"),
        };
        let columns = queries.iter().zip(LETTERS);
        let columns: Map<_, _> = columns.map(|(query, letter)| (name(letter), json!(query.legend))).collect();
        panel["transformations"] = json!([
            { "id": "merge", "options": {} },
            { "id": "organize", "options": { "excludeByName": { "Time": true }, "renameByName": columns } },
        ]);
    }
    panel
}

fn defaults(unit: Unit, view: View) -> Value {
    let mut defaults = json!({ "min": 0, "unit": unit.grafana() });
    match view {
        View::Lines | View::Stack => {
            defaults["custom"] = json!({
                "drawStyle": "line",
                "fillOpacity": if view == View::Stack { 40 } else { 0 },
                "lineWidth": 1,
                "showPoints": "auto",
                "stacking": { "group": "A", "mode": if view == View::Stack { "normal" } else { "none" } },
            });
        }
        View::Levels => {
            defaults["custom"] =
                json!({ "drawStyle": "line", "lineInterpolation": "stepAfter", "lineWidth": 1 });
            defaults["max"] = json!(3);
            let names = ["normal", "elevated", "high", "critical"].into_iter().zip(0_u8..);
            let names: Map<_, _> =
                names.map(|(name, level)| (level.to_string(), json!({ "text": name }))).collect();
            defaults["mappings"] = json!([{ "options": names, "type": "value" }]);
        }
        View::Value | View::Names | View::Table => {}
    }
    defaults
}

fn options(view: View) -> Value {
    match view {
        View::Lines | View::Stack | View::Levels => json!({
            "legend": { "calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "right" },
            "tooltip": { "mode": "multi", "sort": "desc" },
        }),
        View::Value | View::Names => json!({
            "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
            "textMode": if view == View::Names { "value_and_name" } else { "auto" },
        }),
        View::Table => json!({ "showHeader": true }),
    }
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn data_source() -> Value {
    json!({ "label": "Prometheus", "name": "datasource", "query": "prometheus", "refresh": 1, "type": "datasource" })
}

fn variable(variable: &Variable) -> Value {
    let Variable { name, label, series, label_of_series, multi } = variable;
    let query = format!("label_values({series}, {label_of_series})");
    json!({
        "current": if *multi { json!({ "selected": true, "text": ["All"], "value": ["$__all"] }) } else { json!({}) },
        "datasource": source(),
        "definition": query,
        "includeAll": multi,
        "label": label,
        "multi": multi,
        "name": name,
        "query": { "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery" },
        // Anew whenever the shown time changes.
        "refresh": 2,
        "sort": 1,
        "type": "query",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboards::ALL;

    /// As Grafana lays them out: by the numbers in the file alone.
    #[test]
    fn no_two_panels_overlap_on_the_grid() {
        for dashboard in ALL {
            let file = json(dashboard);
            let panels = file["panels"].as_array().unwrap();
            let boxes = panels.iter().map(|panel| {
                let of = |key: &str| panel["gridPos"][key].as_u64().unwrap();
                (of("x"), of("y"), of("w"), of("h"))
            });
            let boxes: Vec<_> = boxes.collect();
            for (at, (x, y, w, h)) in boxes.iter().enumerate() {
                assert!(x + w <= COLUMNS && *w > 0 && *h > 0, "{}: panel {at}", dashboard.name);
                for (other_x, other_y, other_w, other_h) in &boxes[..at] {
                    let apart = x + w <= *other_x
                        || other_x + other_w <= *x
                        || y + h <= *other_y
                        || other_y + other_h <= *y;
                    assert!(apart, "{}: panel {at} lies on another", dashboard.name);
                }
            }
        }
    }

    #[test]
    fn every_panel_of_a_file_has_a_unit_and_a_source_that_can_be_chosen() {
        for dashboard in ALL {
            let file = json(dashboard);
            assert_eq!(file["panels"].as_array().unwrap().len(), dashboard.panels.len());
            for panel in file["panels"].as_array().unwrap() {
                assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{panel}");
                assert!(panel["description"].as_str().unwrap().ends_with('.'), "{panel}");
                for target in panel["targets"].as_array().unwrap() {
                    assert_eq!(target["datasource"]["uid"], "${datasource}");
                }
            }
            let variables: Vec<_> = file["templating"]["list"].as_array().unwrap().iter().collect();
            assert_eq!(variables[0]["name"], "datasource");
            assert_eq!(variables.len(), 1 + dashboard.variables.len());
        }
    }
}
