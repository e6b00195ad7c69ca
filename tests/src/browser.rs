//! A real browser without a window: Debian's `chromium-headless-shell`, as `tests/dev/install-tools` unpacks it.
//!
//! The test speaks the DevTools protocol with it through two pipes: one JSON message after another, each ended by a zero
//! byte.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tools::tool;

/// How long the browser may take for its start and for each answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether scripts of pages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scripts {
    On,
    Off,
}

/// A browser with one tab.
#[derive(Debug)]
pub struct Browser {
    folder: TempDir,
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    /// The number of messages sent.
    sent: u64,
    /// The session of the tab.
    session: Option<String>,
    /// Reports so far.
    events: Vec<Value>,
}

impl Browser {
    /// Starts a browser and loads a page.
    #[track_caller]
    pub fn open(server: SocketAddr, path: &str, scripts: Scripts) -> Self {
        let folder = tempfile::Builder::new().prefix("vramd-browser-").tempdir().expect("/tmp is writable");
        let log = File::create(folder.path().join("log")).expect("the folder is ours");
        let mut command = Command::new("/bin/sh");
        // The browser reads descriptor 3 and writes to 4.
        command
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>&2"])
            .arg(tool("bin/chromium-headless-shell"));
        command.args([
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1280,900",
        ]);
        command.arg(format!("--user-data-dir={}", folder.path().join("profile").display()));
        if scripts == Scripts::Off {
            command.arg("--blink-settings=scriptEnabled=false");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the browser starts");
        let to = child.stdin.take().expect("it was asked for");
        let from = child.stdout.take().expect("it was asked for");
        let (told, heard) = channel();
        thread::spawn(move || {
            let messages = BufReader::new(from).split(0).map_while(Result::ok);
            let parsed = messages.map_while(|message| serde_json::from_slice(&message).ok());
            // It ends with the browser, or with the test.
            let _ = parsed.into_iter().try_for_each(|message| told.send(message));
        });
        let mut browser = Self { folder, child, to, from: heard, sent: 0, session: None, events: Vec::new() };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "DOM"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.call("Page.navigate", json!({ "url": format!("http://{server}{path}") }));
        browser.receive_until("the page is loaded", |browser| browser.loads() > 0);
        browser
    }

    /// The present document, with all changes by scripts.
    #[track_caller]
    pub fn document(&mut self) -> String {
        // A page that is just being replaced has no document for a moment.
        for _ in 0..20 {
            let root = self.call("DOM.getDocument", json!({ "depth": 0 }))["root"]["nodeId"].clone();
            if let Some(text) = self.call("DOM.getOuterHTML", json!({ "nodeId": root }))["outerHTML"].as_str()
            {
                return text.to_owned();
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("the page has no document: {}", self.log());
    }

    /// How many documents have been loaded.
    pub fn loads(&self) -> usize {
        self.events_of("Page.loadEventFired").count()
    }

    /// The addresses that were asked for anything.
    pub fn requests(&self) -> Vec<&str> {
        let url = |event| Value::pointer(event, "/params/request/url")?.as_str();
        self.events_of("Network.requestWillBeSent").filter_map(url).collect()
    }

    /// The messages of the console, and exceptions.
    pub fn complaints(&self) -> Vec<&Value> {
        let kinds = ["Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"];
        kinds.into_iter().flat_map(|kind| self.events_of(kind)).collect()
    }

    fn events_of(&self, method: &str) -> impl Iterator<Item = &Value> {
        self.events.iter().filter(move |event| event["method"] == method)
    }

    /// Calls a method of the browser or, once there is a tab, of that. A refused call has no result.
    #[track_caller]
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let id = self.sent;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut message = message.to_string().into_bytes();
        message.push(0);
        self.to.write_all(&message).expect("the browser reads");
        loop {
            let answer = self.receive(method);
            if answer["id"] == id {
                return answer["result"].clone();
            }
        }
    }

    #[track_caller]
    fn receive_until(&mut self, what: &str, is_done: impl Fn(&Self) -> bool) {
        while !is_done(self) {
            self.receive(what);
        }
    }

    /// Takes the next message. Reports are kept.
    #[track_caller]
    fn receive(&mut self, what: &str) -> Value {
        let received = self.from.recv_timeout(PATIENCE);
        let message =
            received.unwrap_or_else(|_| panic!("{what}: the browser does not answer: {}", self.log()));
        if message["id"].is_null() {
            self.events.push(message.clone());
        }
        message
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
