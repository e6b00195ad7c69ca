//! Serves `/metrics`, `/livez`, `/readyz` and the page for people to every process that can connect.
//!
//! No peer can keep a probe from its answer. A connection that sends no request in time is closed, and the oldest one goes
//! when there are too many. A scrape and a page cost more than a probe, so few run at once, and probes do not wait for
//! them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{ACCEPT, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
    routing::get,
};
use broker_core::Broker;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore, watch},
    task::{self, AbortHandle},
    time::timeout,
};

use super::{
    Shared,
    export_queue::stopped,
    figures::Snapshot,
    instruments::Instruments,
    openmetrics,
    page::{self, WebPage},
};
use crate::{reactor::Inbox, socket_keeper::Unreachable};

/// Maximum connections at once. For a further one the oldest is closed.
const CONNECTIONS_MAX: usize = 64;
/// Maximum time of a connection, which has one request and its answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time until the headers of the request are read.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum scrapes at once; others wait.
const SCRAPES_MAX: usize = 2;
/// How long the reactor may take to answer a read before it counts as stuck.
const REACTOR_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the next accept after a failed one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) struct HttpState {
    pub(super) shared: &'static Shared,
    pub(super) inbox: Inbox,
    pub(super) stop: watch::Receiver<bool>,
    pub(super) scrapes: Scrapes,
    pub(super) unreachable: Unreachable,
    /// `None` if the operator has switched it off.
    pub(super) page: Option<Arc<WebPage>>,
}

/// Places of scrapes.
#[derive(Clone, Debug)]
pub(super) struct Scrapes(Arc<Semaphore>);

impl Default for Scrapes {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SCRAPES_MAX)))
    }
}

impl Scrapes {
    /// Waits for a place. An error means that the daemon stops.
    pub(super) async fn take(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.0).acquire_owned().await
    }
}

/// Serves until the stop.
pub(super) async fn serve(listener: TcpListener, state: HttpState) {
    let mut stop = state.stop.clone();
    let mut routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(alive))
        .route("/readyz", get(ready));
    if state.page.is_some() {
        routes = routes.merge(page::routes());
    }
    let routes = routes.with_state(state);
    // The oldest first.
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => return,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.retain(|connection| !connection.is_finished());
                if connections.len() >= CONNECTIONS_MAX
                    && let Some(oldest) = connections.pop_front()
                {
                    oldest.abort();
                }
                // A slower peer is cut off, and sees that.
                let answered = timeout(CONNECTION_TIMEOUT, answer(stream, routes.clone()));
                connections.push_back(tokio::spawn(answered).abort_handle());
            }
            Err(error) => {
                tracing::debug!(%error, "a connection for metrics could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, routes: Router) {
    let service = TowerToHyperService::new(routes);
    // Errors are the peer's: it left, or does not speak HTTP.
    let mut http = http1::Builder::new();
    http.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

impl HttpState {
    /// Reads the broker. `None` if the reactor has ended or is stuck.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Broker) -> T + Send + 'static,
    ) -> Option<T> {
        timeout(REACTOR_TIMEOUT, self.inbox.read(read)).await.ok().flatten()
    }
}

/// Answers in the format OpenMetrics if the scraper accepts it, as Prometheus does, else in the older text format.
async fn metrics(State(state): State<HttpState>, headers: HeaderMap) -> Response {
    let Ok(place) = state.scrapes.take().await else {
        return unavailable("the daemon is stopping");
    };
    let Some(snapshot) = state.read(Snapshot::of).await else {
        return unavailable("the daemon is stopping, or does not answer");
    };
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_openmetrics = accepted.into_iter().any(|value| value.contains(openmetrics::MEDIA_TYPE));
    // It takes milliseconds, in which the one thread of telemetry must answer probes.
    let encoded = task::spawn_blocking(move || {
        let encoded = encode(&state.shared.metrics, snapshot, is_openmetrics);
        // A scraper that has left does not make way for another one before its scrape has ended.
        drop(place);
        encoded
    });
    let Ok(answer) = encoded.await else {
        return unavailable("the daemon is stopping");
    };
    match answer {
        Ok((format, text)) => ([(CONTENT_TYPE, format)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Encodes all metrics, with the type of the content.
fn encode(
    metrics: &Instruments,
    snapshot: Snapshot,
    is_openmetrics: bool,
) -> Result<(&'static str, String), String> {
    if is_openmetrics {
        let text = metrics.openmetrics_text(snapshot);
        text.map(|text| (openmetrics::CONTENT_TYPE, text)).map_err(|error| error.to_string())
    } else {
        let text = metrics.prometheus_text(snapshot);
        text.map(|text| (prometheus::TEXT_FORMAT, text)).map_err(|error| error.to_string())
    }
}

/// Answers whether the reactor works. A daemon that does not answer should be restarted.
async fn alive(State(state): State<HttpState>) -> Response {
    // A read would not do: it needs no reactor while the broker is free.
    match timeout(REACTOR_TIMEOUT, state.inbox.wait_until_handled()).await {
        Ok(Some(())) => "ok\n".into_response(),
        Ok(None) | Err(_) => unavailable("the daemon is stopping, or does not answer"),
    }
}

/// Answers whether the daemon admits new clients.
async fn ready(State(state): State<HttpState>) -> Response {
    if *state.stop.borrow() {
        return unavailable("the daemon is stopping");
    }
    if let Some(why) = &*state.unreachable.borrow() {
        return unavailable(why);
    }
    match state.read(|broker| (broker.is_surveyed(), broker.node().draining)).await {
        Some((true, false)) => "ok\n".into_response(),
        Some((true, true)) => unavailable("the node is draining"),
        Some((false, _)) => unavailable("the devices have not been surveyed yet"),
        None => unavailable("the daemon is stopping, or does not answer"),
    }
}

pub(super) fn unavailable(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}
