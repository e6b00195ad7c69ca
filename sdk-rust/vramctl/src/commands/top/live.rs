//! The live view: the terminal, its keys, signals, and the threads that ask the daemon.
//!
//! One thread draws and decides. Others wait: for keys, for signals, for snapshots, for the answer to an action. All
//! they find arrives in one channel. So a daemon that does not answer delays no key.

use std::{
    env, io, panic,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP},
    iterator::Signals,
    low_level::emulate_default_handler,
};
use vramd_client::admin::AdminClient;

use super::{
    Daemon,
    action::Action,
    grid::Glyphs,
    names,
    render::render,
    snapshot::{Fetcher, Snapshot, Wants},
    view::{Connection, Message, Request, View},
};
use crate::output::{Output, device_names::DeviceNames, failure::Failure, text::now};

/// How often the ages of old figures grow on the screen.
const TICK: Duration = Duration::from_secs(1);
/// The daemon is asked again at least this often while it is away.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A finding of another thread.
enum Found {
    Terminal(Event),
    /// The terminal's input has ended, or a thread has.
    Broken(String),
    Signal(i32),
    Snapshot(Result<Box<Snapshot>, Failure>),
    Answer(Message),
}

/// Why the view ends.
enum End {
    Quit,
    Signal(i32),
}

/// Shows the node until the operator quits, a signal ends it, or the terminal is gone.
pub(super) fn run(interval: Duration, daemon: &Daemon, output: &Output) -> Result<(), Failure> {
    // A daemon that is not there, or refuses this user, is a failure like that of other commands.
    let admin = daemon.connect()?;
    let mut fetcher = Fetcher::default();
    let snapshot = fetcher.fetch(&admin, Wants::default())?;
    let mut view = View::new(snapshot, DeviceNames::uuids(), now());
    view.names = names(&view.snapshot, output);
    view.interval = interval;
    view.glyphs = glyphs();

    let (found, inbox) = mpsc::channel();
    // Before the terminal changes: from here on no signal ends the process by itself.
    let signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP]).map_err(|error| terminal(&error))?;
    let mut screen = Screen::open()?;
    spawn_waiting(signals, &found).map_err(|error| terminal(&error))?;
    let questions =
        spawn_fetcher(daemon.clone(), admin, fetcher, &found).map_err(|error| terminal(&error))?;
    let end =
        Live { view, daemon, output, found, inbox, questions, asked: None, due: Instant::now() + interval }
            .run(&mut screen);
    // The terminal is itself again before anything is printed, or the signal takes effect.
    drop(screen);
    match end? {
        End::Quit => Ok(()),
        End::Signal(signal) => emulate_default_handler(signal).map_err(|error| terminal(&error)),
    }
}

/// The terminal while it shows the view. Dropping it, or a panic, restores it.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self, Failure> {
        ratatui::try_init().map(Self).map_err(|error| {
            ratatui::restore();
            terminal(&error)
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs none of this.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

struct Live<'a> {
    view: View,
    daemon: &'a Daemon,
    output: &'a Output,
    found: Sender<Found>,
    inbox: Receiver<Found>,
    questions: Sender<Wants>,
    /// The lists that are being fetched.
    asked: Option<Wants>,
    /// When to fetch next.
    due: Instant,
}

impl Live<'_> {
    fn run(mut self, screen: &mut Screen) -> Result<End, Failure> {
        loop {
            screen.0.draw(|frame| render(frame, &self.view)).map_err(|error| terminal(&error))?;
            let first = self.wait()?;
            // Keys come in bursts: all that is there is handled before the next frame.
            let more: Vec<Found> = self.inbox.try_iter().collect();
            for found in first.into_iter().chain(more) {
                if let Some(end) = self.handle(found, screen)? {
                    return Ok(end);
                }
            }
            self.view.now = now();
            self.ask_when_due();
        }
    }

    /// Waits until there is something to handle, to fetch or to redraw.
    fn wait(&self) -> Result<Option<Found>, Failure> {
        let is_old =
            self.view.stale().is_some() || self.view.connection != Connection::Up || self.asked.is_some();
        let mut until = is_old.then(|| Instant::now() + TICK);
        if self.asked.is_none() && !self.view.is_paused {
            until = Some(until.map_or(self.due, |tick| tick.min(self.due)));
        }
        let Some(until) = until else {
            return self.inbox.recv().map(Some).map_err(|_| terminal(&"a thread has ended"));
        };
        match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(found) => Ok(Some(found)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(terminal(&"a thread has ended")),
        }
    }

    fn ask_when_due(&mut self) {
        if self.asked.is_none() && !self.view.is_paused && self.due <= Instant::now() {
            self.ask();
        }
    }

    fn ask(&mut self) {
        if self.asked.is_none() {
            let wants = self.view.wants();
            self.asked = Some(wants);
            // The fetcher lives as long as this end of its channel.
            let _ = self.questions.send(wants);
        }
    }

    fn handle(&mut self, found: Found, screen: &mut Screen) -> Result<Option<End>, Failure> {
        match found {
            Found::Terminal(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                return self.press(key, screen);
            }
            // The next frame has the new size. Other events of a terminal are not asked for.
            Found::Terminal(_) => {}
            Found::Broken(problem) => return Err(terminal(&problem)),
            Found::Signal(SIGTSTP) => suspend(screen)?,
            Found::Signal(signal) => return Ok(Some(End::Signal(signal))),
            Found::Snapshot(snapshot) => self.take(snapshot),
            Found::Answer(answer) => {
                self.view.answer(answer);
                self.due = Instant::now();
            }
        }
        Ok(None)
    }

    fn press(&mut self, key: KeyEvent, screen: &mut Screen) -> Result<Option<End>, Failure> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            // In raw mode these keys send no signals.
            match key.code {
                KeyCode::Char('c') => return Ok(Some(End::Quit)),
                KeyCode::Char('z') => suspend(screen)?,
                _ => {}
            }
            return Ok(None);
        }
        match self.view.update(key.code) {
            Some(Request::Quit) => return Ok(Some(End::Quit)),
            Some(Request::Refresh) => self.due = Instant::now(),
            Some(Request::Act(action)) => self.act(action),
            None => {}
        }
        if self.view.is_paused && self.due <= Instant::now() {
            // Asked for by a key: a pause stops only what comes by itself.
            self.ask();
        }
        Ok(None)
    }

    fn take(&mut self, snapshot: Result<Box<Snapshot>, Failure>) {
        let asked = self.asked.take();
        match snapshot {
            Ok(snapshot) => {
                let names = names(&snapshot, self.output);
                self.view.accept(*snapshot, names, now());
                // A tab that was opened meanwhile shows a list that this snapshot may not have.
                let has_all = asked
                    .is_some_and(|asked| asked == self.view.wants() || self.view.wants() == Wants::default());
                self.due = if has_all { Instant::now() + self.view.interval } else { Instant::now() };
            }
            Err(failure) => {
                self.view.lose(format!("{}: {failure}", failure.reason()), now());
                self.due = Instant::now() + self.view.interval.min(RETRY_MAX);
            }
        }
    }

    /// Lets a thread of its own carry out an action, which may take as long as copies take.
    fn act(&mut self, action: Action) {
        let (daemon, answers) = (self.daemon.clone(), self.found.clone());
        let run = move || {
            let answer = match daemon.connect().and_then(|admin| action.run(&admin)) {
                Ok(text) => Message::Done(text),
                Err(failure) => Message::Failed(format!("{}: {failure}", failure.reason())),
            };
            // The view may have ended meanwhile.
            let _ = answers.send(Found::Answer(answer));
        };
        if let Err(error) = spawn("action", self.found.clone(), run) {
            self.view.answer(Message::Failed(format!("no thread for it could be started: {error}")));
        }
    }
}

/// Gives the terminal back, stops this process as the terminal's key would, and goes on when it is continued.
fn suspend(screen: &mut Screen) -> Result<(), Failure> {
    let _ = screen.0.show_cursor();
    ratatui::try_restore().map_err(|error| terminal(&error))?;
    emulate_default_handler(SIGTSTP).map_err(|error| terminal(&error))?;
    screen.0 = ratatui::try_init().map_err(|error| terminal(&error))?;
    Ok(())
}

/// Starts the threads that wait for keys and for signals. They end with the process.
fn spawn_waiting(mut signals: Signals, found: &Sender<Found>) -> io::Result<()> {
    let keys = found.clone();
    spawn("keys", found.clone(), move || {
        loop {
            let (event, is_last) = match event::read() {
                Ok(event) => (Found::Terminal(event), false),
                Err(error) => (Found::Broken(error.to_string()), true),
            };
            if keys.send(event).is_err() || is_last {
                return;
            }
        }
    })?;
    let caught = found.clone();
    spawn("signals", found.clone(), move || {
        for signal in signals.forever() {
            if caught.send(Found::Signal(signal)).is_err() {
                return;
            }
        }
    })
}

/// Starts the thread that fetches a snapshot for each question. After a failure it looks for the daemon anew.
fn spawn_fetcher(
    daemon: Daemon,
    admin: AdminClient,
    mut fetcher: Fetcher,
    found: &Sender<Found>,
) -> io::Result<Sender<Wants>> {
    let (questions, asked) = mpsc::channel();
    let answers = found.clone();
    spawn("fetcher", found.clone(), move || {
        let mut admin = Some(admin);
        for wants in asked {
            let client = admin.take().map_or_else(|| daemon.connect(), Ok);
            let snapshot = client.and_then(|client| {
                let snapshot = fetcher.fetch(&client, wants)?;
                admin = Some(client);
                Ok(Box::new(snapshot))
            });
            if snapshot.is_err() {
                fetcher = Fetcher::default();
            }
            if answers.send(Found::Snapshot(snapshot)).is_err() {
                return;
            }
        }
    })?;
    Ok(questions)
}

/// Starts a thread whose panic ends the view instead of leaving it without its answers. The panic has restored the
/// terminal.
fn spawn(name: &str, found: Sender<Found>, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let guarded = move || {
        if panic::catch_unwind(panic::AssertUnwindSafe(work)).is_err() {
            // The view may have ended by itself.
            let _ = found.send(Found::Broken("a thread has panicked".to_owned()));
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(guarded).map(drop)
}

/// Blocks if the locale is UTF-8, by the first of these variables that is set.
fn glyphs() -> Glyphs {
    let mut set = ["LC_ALL", "LC_CTYPE", "LANG"].iter().filter_map(|name| env::var(name).ok());
    let locale = set.find(|value| !value.is_empty()).unwrap_or_default().to_lowercase();
    if locale.contains("utf-8") || locale.contains("utf8") { Glyphs::BLOCKS } else { Glyphs::ASCII }
}

fn terminal(problem: &dyn std::fmt::Display) -> Failure {
    Failure::Terminal { problem: format!("the terminal cannot be used: {problem}") }
}
