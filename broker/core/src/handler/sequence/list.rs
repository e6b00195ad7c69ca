//! Sequences as seen from outside.

use crate::{broker::Broker, sequence::SequenceView};

impl Broker {
    /// All sequences that have not ended, by session and number.
    pub fn sequences(&self) -> Vec<SequenceView> {
        let sequences = self.moves.sequences.iter().map(|((session, number), it)| SequenceView {
            session,
            number,
            tenant: self.tenants.shared(it.tenant),
            device: self.uuid(it.device).to_owned(),
            begun: it.begun(),
            window: it.window,
        });
        sequences.collect()
    }
}
