//! A page for people: the places of the node over time, and what moves and waits now.
//!
//! The page is one document with its style, its script and its pictures in it, and asks no other server for anything. It
//! works without scripts: the browser loads it again every five seconds. With scripts its main part is replaced in place.
//!
//! A page costs more than a probe, and as much as a scrape. So it takes a scrape's place, and one rendering serves all
//! viewers of a second.

mod chart;
mod colours;
mod history;
mod html;
mod places;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{
        HeaderName,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
    routing::get,
};
use broker_core::Time;
use prost_types::Timestamp;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::time::{MissedTickBehavior, interval};

use self::{
    colours::Known,
    history::{History, Window},
    places::{Places, Present},
};
use super::{
    export_queue::stopped,
    http::{HttpState, unavailable},
};
use crate::{moves::Moves, reactor::Clock};

/// How long one rendering serves.
const RENDERED_LASTS: Duration = Duration::from_secs(1);

/// Facts about the daemon that the page shows.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) host: String,
    pub(super) version: &'static str,
    pub(super) driver: String,
    pub(super) boot_epoch: u64,
}

/// The page. It lives as long as the daemon.
#[derive(Debug)]
pub(super) struct WebPage {
    facts: Facts,
    clock: Clock,
    moves: Moves,
    history: Mutex<History>,
    colours: Mutex<Known>,
    /// The last main part of each window.
    rendered: Mutex<[Option<Rendered>; Window::ALL.len()]>,
}

#[derive(Clone, Debug)]
struct Rendered {
    at: Time,
    main: Arc<str>,
}

impl Window {
    const fn path(self) -> &'static str {
        match self {
            Self::Minutes => "/",
            Self::Hours => "/hours",
        }
    }

    /// The path of the main part alone.
    const fn main_path(self) -> &'static str {
        match self {
            Self::Minutes => "/main/minutes",
            Self::Hours => "/main/hours",
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Minutes => "10 minutes",
            Self::Hours => "6 hours",
        }
    }
}

/// Returns the routes of the page, for reading only.
pub(super) fn routes() -> Router<HttpState> {
    let mut routes = Router::new();
    for window in Window::ALL {
        routes = routes
            .route(window.path(), get(move |state: State<HttpState>| document(state, window)))
            .route(window.main_path(), get(move |state: State<HttpState>| main_part(state, window)));
    }
    routes
}

async fn document(State(state): State<HttpState>, window: Window) -> Response {
    let (page, main) = match rendered(&state, window).await {
        Ok(rendered) => rendered,
        Err(refused) => return refused,
    };
    let Some(nonce) = nonce() else { return unavailable("the kernel gives no random numbers") };
    // Only what the daemon wrote runs, and only this daemon is asked for anything.
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let text = html::document(&page.facts, window, &main, &nonce).into_string();
    (headers(), [(CONTENT_SECURITY_POLICY, policy)], text).into_response()
}

async fn main_part(State(state): State<HttpState>, window: Window) -> Response {
    match rendered(&state, window).await {
        Ok((_, main)) => {
            let policy = "default-src 'none'; frame-ancestors 'none'; sandbox";
            (headers(), [(CONTENT_SECURITY_POLICY, policy)], main.to_string()).into_response()
        }
        Err(refused) => refused,
    }
}

fn headers() -> [(HeaderName, &'static str); 4] {
    [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ]
}

/// Returns the main part, rendered within the last second, or the answer if there is none.
async fn rendered(state: &HttpState, window: Window) -> Result<(&WebPage, Arc<str>), Response> {
    let Some(page) = state.page.as_deref() else {
        return Err(unavailable("telemetry.web_page is false"));
    };
    let Ok(_place) = state.scrapes.take().await else {
        return Err(unavailable("the daemon is stopping"));
    };
    if let Some(main) = page.recent(window) {
        return Ok((page, main));
    }
    match state.read(Present::of).await {
        Some(present) => Ok((page, page.render(window, &present))),
        None => Err(unavailable("the daemon is stopping, or does not answer")),
    }
}

/// Returns text that no other person can foresee.
fn nonce() -> Option<String> {
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).ok()?;
    (filled == bytes.len()).then(|| format!("{:032x}", u128::from_ne_bytes(bytes)))
}

impl WebPage {
    pub(super) fn new(facts: Facts, clock: Clock, moves: Moves) -> Self {
        Self {
            facts,
            clock,
            moves,
            history: Mutex::default(),
            colours: Mutex::default(),
            rendered: Mutex::default(),
        }
    }

    /// Samples all places until the stop.
    pub(super) async fn sample(&self, state: &HttpState) {
        let mut stop = state.stop.clone();
        let mut ticks = interval(Window::Minutes.interval());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stopped(&mut stop) => return,
            }
            // The chart has a gap while the reactor does not answer.
            if let Some(places) = state.read(Places::of).await {
                lock(&self.history).record(self.clock.now(), &places);
            }
        }
    }

    fn recent(&self, window: Window) -> Option<Arc<str>> {
        let rendered = lock(&self.rendered)[window as usize].clone()?;
        (self.clock.now().since(rendered.at) < RENDERED_LASTS).then_some(rendered.main)
    }

    fn render(&self, window: Window, present: &Present) -> Arc<str> {
        let now = self.clock.now();
        let mut time_of_day = self.clock.time_of_day().map(Timestamp::from).unwrap_or_default();
        time_of_day.nanos = 0;
        let time_of_day = time_of_day.to_string();
        let (history, mut colours) = (lock(&self.history), lock(&self.colours));
        let copied = |extent| self.moves.copied(extent);
        let markup = html::main_part(now, &time_of_day, window, &history, present, &mut colours, copied);
        let main: Arc<str> = markup.into_string().into();
        lock(&self.rendered)[window as usize] = Some(Rendered { at: now, main: Arc::clone(&main) });
        main
    }
}

/// Locks what only the telemetry thread uses.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
