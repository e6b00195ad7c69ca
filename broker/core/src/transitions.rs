//! Prints a table of transitions, for the test that holds it.

use std::fmt::Debug;

/// Returns a line for each event that the table allows in a state: `state + event = next`.
pub(crate) fn legal_transitions<S: Copy + Debug, E: Copy + Debug, N: Debug>(
    states: &[S],
    events: &[E],
    on: impl Fn(S, E) -> Option<N>,
) -> String {
    let mut lines = String::new();
    for (state, event) in states.iter().flat_map(|state| events.iter().map(move |event| (*state, *event))) {
        if let Some(next) = on(state, event) {
            lines += &format!("{state:?} + {event:?} = {next:?}\n");
        }
    }
    lines
}
