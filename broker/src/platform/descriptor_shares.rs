//! Shares the daemon's descriptors among users. A session and a connection of gRPC take two each.
//!
//! A user may have as many as are still free. So one user gets half of them at most, two users get a third each, and
//! every further user still finds some: no number of users has all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::descriptors::Descriptors;

/// A socket and the pidfd of its peer.
const PER_CONNECTION: u64 = 2;

/// The descriptors of each user's connections. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct DescriptorShares(Arc<Mutex<HashMap<u32, u64>>>);

/// The descriptors of one connection, which its user has until this is dropped.
#[derive(Debug)]
pub struct DescriptorShare {
    shares: DescriptorShares,
    uid: u32,
}

/// Too few descriptors are free for another connection of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewDescriptors {
    /// The daemon's limit of open files.
    pub limit: u64,
}

impl DescriptorShares {
    /// Admits a connection, whose own two descriptors may be open already.
    pub fn enter(&self, uid: u32) -> Result<DescriptorShare, TooFewDescriptors> {
        self.enter_beside(uid, Descriptors::of_process())
    }

    fn enter_beside(&self, uid: u32, process: Descriptors) -> Result<DescriptorShare, TooFewDescriptors> {
        let mut by_uid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = by_uid.get(&uid).copied().unwrap_or_default();
        if held + PER_CONNECTION > process.free() {
            return Err(TooFewDescriptors { limit: process.limit });
        }
        by_uid.insert(uid, held + PER_CONNECTION);
        Ok(DescriptorShare { shares: self.clone(), uid })
    }
}

impl Drop for DescriptorShare {
    fn drop(&mut self) {
        let mut by_uid = self.shares.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = by_uid.get_mut(&self.uid) {
            *held -= PER_CONNECTION;
            if *held == 0 {
                by_uid.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens connections of a user until one is refused.
    fn fill(shares: &DescriptorShares, uid: u32, open: &mut u64) -> Vec<DescriptorShare> {
        let mut held = Vec::new();
        while let Ok(share) = shares.enter_beside(uid, Descriptors { limit: 1024, open: *open }) {
            *open += PER_CONNECTION;
            held.push(share);
        }
        held
    }

    #[test]
    fn every_further_user_finds_some() {
        let (shares, mut open) = (DescriptorShares::default(), 60);
        let usable = 900;
        let held: Vec<_> = (0..8).map(|uid| fill(&shares, uid, &mut open)).collect();
        let descriptors: Vec<_> = held.iter().map(|held| 2 * held.len()).collect();
        assert!(descriptors[0] <= usable / 2 && descriptors[0] >= usable / 2 - 2, "{descriptors:?}");
        assert!(descriptors.iter().all(|count| *count >= 2), "{descriptors:?}");
        drop(held);
        assert!(shares.0.lock().unwrap().is_empty());
    }
}
