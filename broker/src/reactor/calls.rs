//! Keeps the callers that wait for answers, by call.

use std::collections::BTreeMap;

use broker_core::CallId;

use super::inbox::{Caller, Outcome};

#[derive(Debug, Default)]
pub(super) struct Calls {
    open: BTreeMap<CallId, Caller>,
}

impl Calls {
    pub(super) fn open(&mut self, call: CallId, caller: Caller) {
        self.open.insert(call, caller);
    }

    pub(super) fn answer(&mut self, call: CallId, outcome: Outcome) {
        match self.open.remove(&call) {
            Some(caller) => caller.answer(outcome),
            None => {
                tracing::error!(call = call.0, "the broker answered a call that does not wait: this is a bug")
            }
        }
    }
}
