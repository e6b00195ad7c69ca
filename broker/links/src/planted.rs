//! Planted bugs. The simulator must find each of them, or it could not find a real one.
//!
//! `planted!(self, X => return false);` makes a mistake, `planted!(self, X => share = 0);` shadows a local
//! variable with a wrong value. Without the feature `planted` both are nothing.

#[cfg(feature = "planted")]
use std::time::Duration;

#[cfg(feature = "planted")]
use vramd_types::CopyClass;

#[cfg(feature = "planted")]
use crate::turn::Turn;

/// Makes a mistake if that bug is active in this link or these links.
#[cfg(feature = "planted")]
macro_rules! planted {
    ($at:expr, $bug:ident => $name:ident = $wrong:expr) => {
        let $name = if $at.planted == Some(crate::Flaw::$bug) { $wrong } else { $name };
    };
    ($at:expr, $bug:ident => $($mistake:tt)+) => {
        if $at.planted == Some(crate::Flaw::$bug) {
            $($mistake)+
        }
    };
}

#[cfg(not(feature = "planted"))]
macro_rules! planted {
    ($at:expr, $bug:ident => $($mistake:tt)+) => {};
}

/// The bugs that can be planted.
#[cfg(feature = "planted")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A prefetch goes before demand.
    PrefetchBeforeDemand,
    /// Lent share is not returned.
    ShareLentForEver,
    /// A class saves up share that it does not want.
    ShareSavedUp,
    /// A class in a full lane counts as not waiting.
    FullWantsNothing,
    /// A full lane begins no background chunk, even if the class is owed beside demand.
    FullLacksItsShare,
    /// A class that is owed on a shared link may go, but goes no sooner in its lane.
    SharedOnlyVetoes,
    /// Other lanes begin chunks although a class is owed on the shared link.
    OthersNotHeldBack,
}

#[cfg(feature = "planted")]
impl crate::Links {
    /// Plants one bug or none. Called before the first chunk.
    pub fn plant(&mut self, flaw: Option<Flaw>) {
        self.planted = flaw;
        self.links.iter_mut().for_each(|link| link.planted = flaw);
    }

    /// Returns the turn of a class whose being owed only vetoes, for `SharedOnlyVetoes`.
    pub(crate) fn turn_by_veto(&self, now: Duration, at: usize, class: CopyClass) -> Turn {
        let link = &self.links[at];
        let goes_out_of_order = link.is_owed(class) || link.is_starved(now, class);
        match !goes_out_of_order && link.holds_back(now, class) {
            true => Turn::HeldBack,
            false => Turn::InOrder,
        }
    }
}

#[cfg(feature = "planted")]
impl crate::WaitingClasses {
    /// Forgets the background classes of a full lane, for `FullWantsNothing`.
    pub(crate) fn without_background(self, is_full: bool) -> Self {
        let wants = |class: &CopyClass| self.contains(*class) && (*class == CopyClass::Demand || !is_full);
        CopyClass::ALL.into_iter().filter(wants).collect()
    }
}
