//! Progress of long work, on a terminal's standard error and nowhere else.

use std::{borrow::Cow, io::IsTerminal as _};

use indicatif::{ProgressBar, ProgressStyle};

use super::Output;

/// Starts a bar for work on `total` bytes.
pub(crate) fn bytes(label: &'static str, total: u64, output: &Output) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg:10} {bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
    );
    start(ProgressBar::new(total), style.ok(), label.into(), output)
}

/// Starts a spinner for work of unknown duration.
pub(crate) fn waiting(label: impl Into<Cow<'static, str>>, output: &Output) -> ProgressBar {
    let bar = start(ProgressBar::new_spinner(), None, label.into(), output);
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    bar
}

fn start(
    bar: ProgressBar,
    style: Option<ProgressStyle>,
    label: Cow<'static, str>,
    output: &Output,
) -> ProgressBar {
    if output.is_json() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    match style {
        Some(style) => bar.with_style(style).with_message(label),
        None => bar.with_message(label),
    }
}
