//! Planted bugs. The simulator must find each of them, or it could not find a real one.
//!
//! Without the feature `planted` the macro is the constant `false`.

/// Whether that bug is planted.
#[cfg(feature = "planted")]
macro_rules! planted {
    ($at:expr, $flaw:ident) => {
        $at.planted == Some(crate::Flaw::$flaw)
    };
}

#[cfg(not(feature = "planted"))]
macro_rules! planted {
    ($at:expr, $flaw:ident) => {
        false
    };
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
}
