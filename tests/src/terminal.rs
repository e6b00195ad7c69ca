//! A program in a terminal: a real pseudo-terminal, typed keys, and the screen as a person would see it.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    num::NonZeroU16,
    process::{Child, Command, ExitStatus},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};

use crate::wait::{eventually, within};

/// A program and the terminal that it controls.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    /// The side of a person: keys go in, drawings come out.
    person: File,
    /// The side of the program, which stays open so that its modes can be read after the end.
    program: File,
    modes_before: Termios,
    screen: Arc<Mutex<Screen>>,
}

struct Screen(vt100::Parser);

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Screen").field(&self.0.screen().contents()).finish()
    }
}

impl Terminal {
    /// Starts a program as the leader of a session whose terminal has this size.
    #[track_caller]
    pub fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let person =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a pty opens");
        grantpt(&person).expect("its other side is ours");
        unlockpt(&person).expect("its other side opens");
        let path = ptsname(&person, Vec::new()).expect("its other side has a name");
        let path = path.into_string().expect("the name is text");
        let open = || {
            let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
            rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).expect("the other side opens")
        };
        let program = File::from(open());
        tcsetwinsize(&program, size(columns, rows)).expect("a terminal has a size");
        let modes_before = tcgetattr(&program).expect("a terminal has modes");

        // `setsid` becomes the program itself, with the terminal as its own.
        let mut leader = Command::new("setsid");
        leader.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => leader.env(name, value),
                None => leader.env_remove(name),
            };
        }
        leader.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
        leader.stdin(open()).stdout(open()).stderr(open());
        let child = leader.spawn().expect("`setsid` of util-linux starts");

        let person = File::from(person);
        let screen = Arc::new(Mutex::new(Screen(vt100::Parser::new(cells(rows), cells(columns), 0))));
        let mut drawings = person.try_clone().expect("a file can be shared");
        let shared = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = drawings.read(&mut bytes) {
                shared.lock().unwrap_or_else(PoisonError::into_inner).0.process(&bytes[..count]);
            }
        });
        Self { child, person, program, modes_before, screen }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types keys, as the bytes that a terminal sends for them.
    #[track_caller]
    pub fn type_keys(&mut self, keys: &str) {
        self.person.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Gives the terminal another size, of which the kernel tells the program, and clears the screen: all that it shows
    /// afterwards was drawn for the new size.
    #[track_caller]
    pub fn resize(&mut self, columns: u16, rows: u16) {
        let mut screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.0.screen_mut().set_size(cells(rows), cells(columns));
        screen.0.process(b"\x1b[2J");
        tcsetwinsize(&self.program, size(columns, rows)).expect("a terminal has a size");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the program can be signalled");
    }

    /// The text on the screen.
    pub fn text(&self) -> String {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner).0.screen().contents()
    }

    /// Waits until the screen shows this text.
    #[track_caller]
    pub fn shows(&self, text: &str) -> String {
        self.until(&format!("the screen shows `{text}`"), |screen| screen.contains(text))
    }

    /// Waits until the screen is as it should be, and returns its text.
    #[track_caller]
    pub fn until(&self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        let seen = within(crate::wait::PATIENCE, || {
            let text = self.text();
            fits(&text).then_some(text)
        });
        seen.unwrap_or_else(|| panic!("waited in vain: {what}. It shows:\n{}", self.text()))
    }

    /// Waits for the end of the program.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        eventually("the program ends", || self.child.try_wait().expect("a child can be asked"))
    }

    /// Whether the program draws on the terminal's other screen, and has hidden the cursor.
    pub fn is_taken(&self) -> bool {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.0.screen().alternate_screen() && screen.0.screen().hide_cursor()
    }

    /// Checks that the terminal is as it was before the program: its modes, its screen and its cursor.
    #[track_caller]
    pub fn assert_restored(&self) {
        let modes = tcgetattr(&self.program).expect("a terminal has modes");
        let before = &self.modes_before;
        assert_eq!(
            (modes.local_modes, modes.input_modes, modes.output_modes, modes.control_modes),
            (before.local_modes, before.input_modes, before.output_modes, before.control_modes)
        );
        let is_itself = || {
            let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
            !screen.0.screen().alternate_screen() && !screen.0.screen().hide_cursor()
        };
        // Its last bytes may not have been read yet.
        let restored = within(crate::wait::PATIENCE, || is_itself().then_some(()));
        assert!(restored.is_some(), "the terminal shows its own screen and a cursor again");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Harmless if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn cells(count: u16) -> NonZeroU16 {
    NonZeroU16::new(count).expect("a terminal has rows and columns")
}
