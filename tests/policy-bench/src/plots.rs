//! The results as pictures: what each policy fetches, which deadlines are met, and how a stream fares on a GPU.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::{
    coord::Shift,
    prelude::{
        BLACK, ChartBuilder, Color, DrawingArea, IntoDrawingArea, IntoFont, PathElement, RGBColor, Rectangle,
        SVGBackend, SeriesLabelPosition, Text, WHITE,
    },
    series::LineSeries,
    style::TextStyle,
    style::text_anchor::{HPos, Pos, VPos},
};
use serde_json::Value;

use crate::report::Report;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Colours that people with any kind of colour vision tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(153, 153, 153),
    RGBColor(86, 180, 233),
    RGBColor(0, 114, 178),
    RGBColor(240, 228, 66),
    RGBColor(230, 159, 0),
    RGBColor(204, 121, 167),
    RGBColor(0, 158, 115),
];
const SIZE: (u32, u32) = (960, 420);
const FONT: &str = "sans-serif";

/// Writes the pictures into a folder. `stream` is the report of a stream that was measured on a GPU.
pub(crate) fn write(folder: &Path, report: &Report, stream: Option<&Value>) -> Result<()> {
    draw(&folder.join("policies.svg"), |area| policies(area, report))?;
    draw(&folder.join("deadlines.svg"), |area| deadlines(area, report))?;
    if let Some(stream) = stream {
        draw(&folder.join("stream.svg"), |area| rungs(area, stream))?;
    }
    Ok(())
}

fn draw(file: &Path, picture: impl Fn(&Area<'_>) -> Result<()>) -> Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    picture(&area)?;
    area.present().with_context(|| format!("{} cannot be written", file.display()))
}

/// A group of bars for each trace: the best static set, and then each policy.
fn policies(area: &Area<'_>, report: &Report) -> Result<()> {
    let groups: Vec<(&str, Vec<f64>)> =
        report.rows.iter().map(|row| (row.name, row.all_to_bound())).collect();
    let names: Vec<&str> = std::iter::once("best static set").chain(Report::policy_names()).collect();
    let bars = number(names.len());
    let highest = groups.iter().flat_map(|(_, values)| values).copied().fold(1.0, f64::max) * 1.08;
    let mut chart = ChartBuilder::on(area)
        .caption("Bytes fetched, as a ratio to the fewest possible (1 is the bound)", (FONT, 18))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..number(groups.len()), 0.0..highest)?;
    chart.configure_mesh().disable_x_mesh().x_labels(0).y_desc("ratio to the bound").draw()?;
    for (at, name) in names.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let bar = |(group, (_, values)): (usize, &(&str, Vec<f64>))| {
            let left = number(group) + 0.08 + 0.84 * number(at) / bars;
            Rectangle::new([(left, 0.0), (left + 0.8 / bars, values[at])], colour.filled())
        };
        chart
            .draw_series(groups.iter().enumerate().map(bar))?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    let one = [(0.0, 1.0), (number(groups.len()), 1.0)];
    chart.draw_series(LineSeries::new(one, BLACK.stroke_width(1)))?;
    let mut legend = chart.configure_series_labels();
    // The first traces have low bars.
    legend.position(SeriesLabelPosition::UpperLeft);
    legend.background_style(WHITE.mix(0.9)).border_style(BLACK.mix(0.3)).draw()?;
    let plane = chart.plotting_area();
    for (group, (name, _)) in groups.iter().enumerate() {
        let (x, y) = plane.map_coordinate(&(number(group) + 0.5, 0.0));
        label(area, name, (x, y + 8), HPos::Center)?;
    }
    Ok(())
}

/// A line for each size of parts and each load: the share of deadlines met, by the slack that they leave.
fn deadlines(area: &Area<'_>, report: &Report) -> Result<()> {
    let lines = report.deadline_lines();
    let bands = lines.iter().map(|line| line.shares.len()).max().unwrap_or(1);
    let mut chart = ChartBuilder::on(area)
        .caption("Deadlines met, as a share of those that full knowledge meets", (FONT, 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(-0.3..number(bands) - 0.7, 0.88..1.01)?;
    chart.configure_mesh().disable_x_mesh().x_labels(0).y_desc("share").draw()?;
    for (at, line) in lines.iter().enumerate() {
        let colour = COLOURS[1 + at % (COLOURS.len() - 1)];
        let points = line.shares.iter().enumerate().map(|(band, (_, share))| (number(band), *share));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.9)).border_style(BLACK.mix(0.3)).draw()?;
    let plane = chart.plotting_area();
    let bands = lines.first().map(|line| line.shares.clone()).unwrap_or_default();
    for (band, (slack_ms, _)) in bands.iter().enumerate() {
        let (x, y) = plane.map_coordinate(&(number(band), 0.88));
        label(area, &format!("slack of {slack_ms} to {} ms", slack_ms * 4), (x, y + 10), HPos::Center)?;
    }
    Ok(())
}

/// A bar for each way to stream, with the time of a pass as a ratio to the larger of compute and transfer.
fn rungs(area: &Area<'_>, stream: &Value) -> Result<()> {
    let rungs = medians(stream)?;
    let highest = rungs.iter().map(|(_, ratio)| *ratio).fold(1.0, f64::max) * 1.1;
    let gpu = stream["gpu"].as_str().unwrap_or("a GPU");
    let mut chart = ChartBuilder::on(area)
        .caption(format!("A pass of a streamed model, as a ratio to its bound ({gpu})"), (FONT, 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(260)
        .build_cartesian_2d(0.0..highest, 0.0..number(rungs.len()))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_desc("time of a pass, divided by the larger of compute and transfer")
        .draw()?;
    let colour = COLOURS[2];
    let bottom = |at: usize| number(rungs.len() - 1 - at) + 0.15;
    chart.draw_series(rungs.iter().enumerate().map(|(at, (_, ratio))| {
        Rectangle::new([(0.0, bottom(at)), (*ratio, bottom(at) + 0.7)], colour.filled())
    }))?;
    let one = [(1.0, 0.0), (1.0, number(rungs.len()))];
    chart.draw_series(LineSeries::new(one, BLACK.stroke_width(1)))?;
    let plane = chart.plotting_area();
    for (at, (name, ratio)) in rungs.iter().enumerate() {
        let (x, y) = plane.map_coordinate(&(0.0, bottom(at) + 0.35));
        label(area, name, (x - 8, y - 7), HPos::Right)?;
        let (end, _) = plane.map_coordinate(&(*ratio, 0.0));
        label(area, &format!("{ratio:.2}"), (end + 6, y - 7), HPos::Left)?;
    }
    Ok(())
}

/// The ways of a stream's report in their order, each once, with the median of its runs.
fn medians(stream: &Value) -> Result<Vec<(String, f64)>> {
    let rows = stream["rows"].as_array().context("the report of the stream has no rows")?;
    let mut ways: Vec<(String, Vec<f64>)> = Vec::new();
    for row in rows {
        let name = row["name"].as_str().context("a row of the stream has no name")?;
        let ratio = row["ratio"].as_f64().context("a row of the stream has no ratio")?;
        match ways.iter_mut().find(|(known, _)| known == name) {
            Some((_, ratios)) => ratios.push(ratio),
            None => ways.push((name.to_owned(), vec![ratio])),
        }
    }
    let median = |(name, mut ratios): (String, Vec<f64>)| {
        ratios.sort_by(f64::total_cmp);
        (name, ratios[ratios.len() / 2])
    };
    Ok(ways.into_iter().map(median).collect())
}

fn label(area: &Area<'_>, text: &str, at: (i32, i32), hold: HPos) -> Result<()> {
    let style = TextStyle::from((FONT, 14).into_font()).pos(Pos::new(hold, VPos::Top));
    area.draw(&Text::new(text, at, style)).map_err(|error| anyhow!("{text} cannot be drawn: {error}"))
}

/// Counts of bars and groups are small.
fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
