//! CPU time of the live view, of a node with many tenants.

use std::{
    io::{self, Write as _},
    thread,
    time::Duration,
};

use anyhow::Result;
use serde_json::{Value, json};
use vramd_tests::{Daemon, proc::cpu_time, terminal::Terminal};

use super::scrape::{TENANTS, config, set_quotas};

const DEVICES: usize = 8;
const COLUMNS: u16 = 160;
const ROWS: u16 = 50;
const WATCH: Duration = Duration::from_secs(30);
const WATCH_QUICK: Duration = Duration::from_secs(10);

pub(super) fn run(quick: bool) -> Result<Value> {
    let watch = if quick { WATCH_QUICK } else { WATCH };
    let daemon = Daemon::start(&config(DEVICES));
    set_quotas(&daemon, TENANTS);
    let mut command = daemon.vramctl();
    command.arg("top");
    let mut terminal = Terminal::start(&command, COLUMNS, ROWS);
    terminal.shows("? help");
    let [view, node] = [terminal.pid(), daemon.pid()].map(|pid| (pid, cpu_time(pid)));
    thread::sleep(watch);
    let share = |(pid, before)| (cpu_time(pid) - before).as_secs_f64() / watch.as_secs_f64();
    let (view, node) = (share(view), share(node));
    terminal.type_keys("q");
    terminal.wait();
    let verdict = if view < 0.02 { "within" } else { "MISSED" };
    writeln!(
        io::stdout(),
        "top           {TENANTS} tenants on {DEVICES} devices: {:.2} % of a core, and {:.2} % of one for the daemon; target 2 %: {verdict}",
        view * 100.0,
        node * 100.0,
    )?;
    Ok(json!({ "seconds": watch.as_secs(), "share_of_a_core": view, "share_of_a_core_of_the_daemon": node }))
}
