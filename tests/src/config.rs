//! The configuration file of one test's daemon.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// The file in the daemon's directory whose existence ends all holds.
pub(crate) const HOLDS_END: &str = "holds-end";

/// A configuration. By default it has the simulated driver, and sockets of its own.
#[derive(Clone, Debug)]
pub struct Config {
    /// `sim` or `cuda`.
    pub driver: &'static str,
    /// Memory of each simulated device.
    pub devices: Vec<String>,
    /// Lines of `[driver.sim]`.
    pub sim: Vec<String>,
    /// Lines of `[driver.cuda]`.
    pub cuda: Vec<String>,
    pub faults: Vec<Fault>,
    pub revocations: Vec<Revocation>,
    /// Tenants by uid. Without any, each user is the tenant `uid-N`.
    pub tenants: Vec<(u32, String)>,
    /// Name, class and weight.
    pub classes: Vec<(String, &'static str, u32)>,
    /// Lines of `[memory]`, `[pressure]`, `[shares]`, `[turns]`, `[limits]`, `[quota.default]`, `[daemon]` and `[telemetry]`.
    pub memory: Vec<String>,
    /// Without it, and without a line of `[memory]` that says otherwise, there is no host tier.
    pub host_auto: bool,
    pub pressure: Vec<String>,
    pub shares: Vec<String>,
    pub turns: Vec<String>,
    pub limits: Vec<String>,
    pub default_quota: Vec<String>,
    pub daemon: Vec<String>,
    pub telemetry: Vec<String>,
    /// Each device's size of a disk tier, in a directory of the daemon's own.
    pub disk: Option<String>,
    /// That directory, if it is not beside the sockets.
    pub disk_directory: Option<PathBuf>,
    /// `auto`, `ring` or `threads`.
    pub disk_engine: &'static str,
    pub immutable: Vec<PathBuf>,
    /// Whether files on fs-verity count as immutable.
    pub verity: bool,
    pub log_level: &'static str,
}

/// A scheduled failure of the simulated driver.
#[derive(Clone, Debug)]
pub struct Fault {
    /// `create`, `create_host`, `create_disk`, `release`, `digest` or `copy`.
    pub on: &'static str,
    /// Which of these operations, from 1.
    pub nth: u64,
    /// How many in a row.
    pub count: u64,
    pub effect: Effect,
}

#[derive(Clone, Debug)]
pub enum Effect {
    OutOfMemory,
    Fail(String),
    /// The operation begins with [`Daemon::end_holds`](crate::Daemon::end_holds).
    Hold,
}

/// A step at which the daemon revokes the parts that the step concerns.
#[derive(Clone, Copy, Debug)]
pub struct Revocation {
    /// `map_sent`, `mapped`, `pin`, `revoke_sent`, `unmapped` or `digest`.
    pub at: &'static str,
    /// Which of these steps, from 1, and then every how many.
    pub nth: u64,
    pub every: u64,
    /// Whether it revokes by fence, or else by eviction.
    pub wait: bool,
}

impl Default for Config {
    /// One device of 1 GiB.
    fn default() -> Self {
        Self {
            driver: "sim",
            devices: vec!["1GiB".to_owned()],
            sim: Vec::new(),
            cuda: Vec::new(),
            faults: Vec::new(),
            revocations: Vec::new(),
            tenants: Vec::new(),
            classes: Vec::new(),
            memory: Vec::new(),
            host_auto: false,
            pressure: Vec::new(),
            shares: Vec::new(),
            turns: Vec::new(),
            limits: Vec::new(),
            default_quota: Vec::new(),
            daemon: Vec::new(),
            telemetry: Vec::new(),
            disk: None,
            disk_directory: None,
            disk_engine: "auto",
            immutable: Vec::new(),
            verity: false,
            log_level: "debug",
        }
    }
}

impl Config {
    pub fn devices(memories: &[&str]) -> Self {
        Self { devices: memories.iter().map(|&memory| memory.to_owned()).collect(), ..Self::default() }
    }

    /// The GPUs of this machine.
    pub fn cuda() -> Self {
        Self { driver: "cuda", devices: Vec::new(), ..Self::default() }
    }

    /// The driver library of a file, which is both CUDA and NVML.
    pub fn cuda_library(library: &Path) -> Self {
        let named = |key: &str| format!("{key} = \"{}\"", library.display());
        Self { cuda: vec![named("library"), named("nvml_library")], ..Self::cuda() }
    }

    /// Sets the log level. `info` is a daemon's default, for tests in which the cost of logging counts.
    #[must_use]
    pub fn log_level(self, log_level: &'static str) -> Self {
        Self { log_level, ..self }
    }

    #[must_use]
    pub fn fault(mut self, on: &'static str, nth: u64, effect: Effect) -> Self {
        self.faults.push(Fault { on, nth, count: 1, effect });
        self
    }

    #[must_use]
    pub fn revocation(mut self, revocation: Revocation) -> Self {
        self.revocations.push(revocation);
        self
    }

    #[must_use]
    pub fn tenant(mut self, uid: u32, tenant: &str) -> Self {
        self.tenants.push((uid, tenant.to_owned()));
        self
    }

    /// Gives a tenant a class and a weight.
    #[must_use]
    pub fn class(mut self, tenant: &str, class: &'static str, weight: u32) -> Self {
        self.classes.push((tenant.to_owned(), class, weight));
        self
    }

    #[must_use]
    pub fn limit(mut self, line: &str) -> Self {
        self.limits.push(line.to_owned());
        self
    }

    /// Sets the speed of copies between simulated devices and the host, in bytes a second.
    #[must_use]
    pub fn link(mut self, bytes_per_second: &str) -> Self {
        for key in ["link_to_device", "link_to_host"] {
            self.sim.push(format!("{key} = \"{bytes_per_second}\""));
        }
        self
    }

    /// Sets what the simulated devices say of themselves, like `one-pool`.
    #[must_use]
    pub fn platform(mut self, platform: &str) -> Self {
        self.sim.push(format!("platform = \"{platform}\""));
        self
    }

    /// Sets the speed of the link that all simulated devices share.
    #[must_use]
    pub fn uplink(mut self, bytes_per_second: &str) -> Self {
        for key in ["uplink_to_device", "uplink_to_host"] {
            self.sim.push(format!("{key} = \"{bytes_per_second}\""));
        }
        self
    }

    #[must_use]
    pub fn memory(mut self, line: &str) -> Self {
        self.memory.push(line.to_owned());
        self
    }

    /// Leaves the size of the host tier to the daemon.
    #[must_use]
    pub fn host_auto(self) -> Self {
        Self { host_auto: true, ..self }
    }

    #[must_use]
    pub fn pressure(mut self, line: &str) -> Self {
        self.pressure.push(line.to_owned());
        self
    }

    #[must_use]
    pub fn shares(mut self, line: &str) -> Self {
        self.shares.push(line.to_owned());
        self
    }

    #[must_use]
    pub fn disk(self, size: &str) -> Self {
        Self { disk: Some(size.to_owned()), ..self }
    }

    #[must_use]
    pub fn disk_directory(self, directory: &Path) -> Self {
        Self { disk_directory: Some(directory.to_owned()), ..self }
    }

    /// Sets the engine of the disk: `ring` is io_uring, `auto` is the same where the kernel has it.
    #[must_use]
    pub fn disk_engine(self, engine: &'static str) -> Self {
        Self { disk_engine: engine, ..self }
    }

    /// Declares that files below this path never change.
    #[must_use]
    pub fn immutable(mut self, path: &Path) -> Self {
        self.immutable.push(path.to_owned());
        self
    }

    /// Declares that files on fs-verity never change.
    #[must_use]
    pub fn verity(self) -> Self {
        Self { verity: true, ..self }
    }

    #[must_use]
    pub fn default_quota(mut self, line: &str) -> Self {
        self.default_quota.push(line.to_owned());
        self
    }

    #[must_use]
    pub fn daemon(mut self, line: &str) -> Self {
        self.daemon.push(line.to_owned());
        self
    }

    /// A line of the table `turns`.
    #[must_use]
    pub fn turns(mut self, line: &str) -> Self {
        self.turns.push(line.to_owned());
        self
    }

    #[must_use]
    pub fn telemetry(mut self, line: &str) -> Self {
        self.telemetry.push(line.to_owned());
        self
    }

    /// Writes the file for a daemon whose sockets and state lie below `home`.
    pub fn write(&self, home: &Path) {
        if self.disk.is_some() {
            fs::create_dir_all(home.join("disk")).expect("the test's directory is writable");
        }
        fs::write(home.join("vramd.toml"), self.text(home)).expect("the test's directory is writable");
    }

    fn text(&self, home: &Path) -> String {
        let mut text = String::new();
        section(&mut text, "[daemon]", &self.daemon);
        line(&mut text, &format!("socket_dir = \"{}\"", home.join("run").display()));
        line(&mut text, &format!("state_dir = \"{}\"", home.join("state").display()));
        line(&mut text, &format!("log_level = \"{}\"", self.log_level));
        section(&mut text, "[driver]", &[format!("kind = \"{}\"", self.driver)]);
        section(&mut text, "[driver.sim]", &self.sim);
        if !self.cuda.is_empty() {
            section(&mut text, "[driver.cuda]", &self.cuda);
        }
        for memory in &self.devices {
            section(&mut text, "[[driver.sim.devices]]", &[format!("memory = \"{memory}\"")]);
        }
        for fault in &self.faults {
            section(&mut text, "[[driver.sim.faults]]", &fault.lines(home));
        }
        for Revocation { at, nth, every, wait } in &self.revocations {
            let lines = [
                format!("at = \"{at}\""),
                format!("nth = {nth}"),
                format!("every = {every}"),
                format!("wait = {wait}"),
            ];
            section(&mut text, "[[driver.sim.revocations]]", &lines);
        }
        section(&mut text, "[memory]", &self.memory);
        // A test that says nothing of the host tier has none, on whatever machine it runs.
        if !self.host_auto && !self.memory.iter().any(|line| line.contains("host_size")) {
            line(&mut text, "host_size = \"0\"");
        }
        if let Some(size) = &self.disk {
            let beside = home.join("disk");
            let directory = self.disk_directory.as_ref().unwrap_or(&beside);
            let lines = [
                format!("directory = \"{}\"", directory.display()),
                format!("size = \"{size}\""),
                format!("engine = \"{}\"", self.disk_engine),
            ];
            section(&mut text, "[disk]", &lines);
        }
        let paths = (!self.immutable.is_empty()).then(|| format!("immutable_paths = {:?}", self.immutable));
        let verity = self.verity.then(|| "verity = true".to_owned());
        let files: Vec<_> = paths.into_iter().chain(verity).collect();
        if !files.is_empty() {
            section(&mut text, "[files]", &files);
        }
        section(&mut text, "[pressure]", &self.pressure);
        section(&mut text, "[shares]", &self.shares);
        section(&mut text, "[turns]", &self.turns);
        section(&mut text, "[quota.default]", &self.default_quota);
        section(&mut text, "[limits]", &self.limits);
        section(&mut text, "[telemetry]", &self.telemetry);
        for (uid, tenant) in &self.tenants {
            section(&mut text, "[[tenants]]", &[format!("tenant = \"{tenant}\""), format!("uid = {uid}")]);
        }
        for (tenant, class, weight) in &self.classes {
            let keys = [
                format!("tenant = \"{tenant}\""),
                format!("class = \"{class}\""),
                format!("weight = {weight}"),
            ];
            section(&mut text, "[[tenants]]", &keys);
        }
        text
    }
}

impl Fault {
    fn lines(&self, home: &Path) -> Vec<String> {
        let mut lines = vec![
            format!("on = \"{}\"", self.on),
            format!("nth = {}", self.nth),
            format!("count = {}", self.count),
        ];
        match &self.effect {
            Effect::OutOfMemory => lines.push("effect = \"out_of_memory\"".to_owned()),
            Effect::Fail(message) => {
                lines.extend(["effect = \"fail\"".to_owned(), format!("message = \"{message}\"")]);
            }
            Effect::Hold => {
                let file = home.join(HOLDS_END);
                lines
                    .extend(["effect = \"hold\"".to_owned(), format!("until_file = \"{}\"", file.display())]);
            }
        }
        lines
    }
}

fn section(text: &mut String, title: &str, lines: &[String]) {
    line(text, title);
    for content in lines {
        line(text, content);
    }
}

fn line(text: &mut String, content: &str) {
    writeln!(text, "{content}").expect("a String takes everything");
}
