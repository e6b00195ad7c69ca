//! Bounds the log lines about each peer, so that a peer that is refused again and again fills no log. Lines that are
//! left out are counted, and the count is logged once the interval is over.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Lines about one peer in an interval.
const LINES_MAX: u64 = 50;
const INTERVAL: Duration = Duration::from_secs(10);
/// Peers at once. Lines about further ones count together.
const PEERS_MAX: usize = 1024;

/// The lines of the present intervals. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct PeerLines<K>(Arc<Mutex<State<K>>>);

#[derive(Debug)]
struct State<K> {
    lines: BTreeMap<K, u64>,
    /// Lines about peers beyond the bound.
    others_left_out: u64,
}

impl<K> Default for PeerLines<K> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State { lines: BTreeMap::new(), others_left_out: 0 })))
    }
}

impl<K: Ord + Clone + Display + Send + 'static> PeerLines<K> {
    /// Counts a line about the peer, and returns whether it may be written. Must run on a runtime.
    pub(crate) fn may_write(&self, peer: &K) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lines) = state.lines.get_mut(peer) {
            *lines += 1;
            return *lines <= LINES_MAX;
        }
        if state.lines.len() >= PEERS_MAX {
            state.others_left_out += 1;
            return false;
        }
        state.lines.insert(peer.clone(), 1);
        drop(state);
        let (lines, peer) = (self.clone(), peer.clone());
        tokio::spawn(async move {
            tokio::time::sleep(INTERVAL).await;
            lines.end_interval(&peer);
        });
        true
    }

    fn end_interval(&self, peer: &K) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = state.lines.remove(peer).unwrap_or_default();
        let others = std::mem::take(&mut state.others_left_out);
        drop(state);
        let left_out = lines.saturating_sub(LINES_MAX);
        if left_out > 0 {
            tracing::info!(%peer, left_out, interval_s = INTERVAL.as_secs(), "lines about a peer left out");
        }
        if others > 0 {
            tracing::info!(left_out = others, "lines about further peers left out");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_peer_has_lines_of_its_own_in_each_interval() {
        let lines = PeerLines::default();
        let written = |peer| (0..2 * LINES_MAX).filter(|_| lines.may_write(&peer)).count() as u64;
        assert_eq!((written(1), written(2)), (LINES_MAX, LINES_MAX));
        tokio::time::sleep(2 * INTERVAL).await;
        assert_eq!(written(1), LINES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_peers_is_bounded() {
        let lines = PeerLines::default();
        let written = (0..2 * PEERS_MAX).filter(|peer| lines.may_write(peer)).count();
        assert_eq!(written, PEERS_MAX);
        tokio::time::sleep(2 * INTERVAL).await;
        assert!(lines.may_write(&(2 * PEERS_MAX)));
    }
}
