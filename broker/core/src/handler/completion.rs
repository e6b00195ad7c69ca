//! The driver's reports, each handed to the subject that asked for it.

use crate::{broker::Broker, event::Completion};

impl Broker {
    pub(crate) fn on_completion(&mut self, completion: Completion) {
        match completion {
            Completion::Created { extent, result } => self.on_created(extent, result),
            Completion::Released { extent, returned } => self.on_released(extent, returned),
            Completion::Returned { extent } => self.on_returned(extent),
            Completion::Copied { to, result } => self.on_copied(to, result),
            Completion::Damaged { to, problem } => self.on_damaged(to, problem),
            Completion::CleanBackingDiffers { to } => self.on_clean_backing_differs(to),
            Completion::Digested { allocation, result } => {
                self.on_digested(allocation, result);
                // For a freed allocation nothing further may come that an operation waits for.
                if !self.remove_if_gone(allocation) {
                    self.notify_watchers(allocation);
                }
            }
            Completion::WordsRevoked { part, outcome } => self.on_words_revoked(part, outcome),
            Completion::WrittenCleared { part, cleared } => self.on_written_cleared(part, cleared),
            Completion::Surveyed { device, unbrokered, contexts, host_missing } => {
                self.on_surveyed(device, unbrokered, contexts, host_missing);
            }
        }
    }
}
