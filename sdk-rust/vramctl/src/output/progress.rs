//! Progress of long work, on a terminal's standard error and nowhere else.

use std::{borrow::Cow, io::IsTerminal as _};

use indicatif::{ProgressBar, ProgressStyle};

use super::Output;

/// A bar over so many bytes.
pub(crate) fn bytes(what: &'static str, total: u64, output: &Output) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg:10} {bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
    );
    start(ProgressBar::new(total), style.ok(), what.into(), output)
}

/// Work of which nobody knows how long it takes.
pub(crate) fn waiting(what: impl Into<Cow<'static, str>>, output: &Output) -> ProgressBar {
    let bar = start(ProgressBar::new_spinner(), None, what.into(), output);
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    bar
}

fn start(
    bar: ProgressBar,
    style: Option<ProgressStyle>,
    what: Cow<'static, str>,
    output: &Output,
) -> ProgressBar {
    if output.is_json() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    match style {
        Some(style) => bar.with_style(style).with_message(what),
        None => bar.with_message(what),
    }
}
