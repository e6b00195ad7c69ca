//! Flaws on purpose. The simulator must find each of them, or it could not find one that nobody planted.
//!
//! Without the feature `planted` the question whether there is one is the constant `false`.

/// Whether the link has that flaw.
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

/// What can be planted.
#[cfg(feature = "planted")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A prefetch goes before demand.
    PrefetchBeforeDemand,
    /// What was lent is not given back.
    ShareLentForEver,
    /// Who wants nothing saves it up.
    ShareSavedUp,
    /// What waits in a lane that is full wants nothing.
    FullWantsNothing,
    /// A lane that is full begins nothing of what nobody waits for, whatever it lacks beside demand.
    FullLacksItsShare,
    /// Who lacks its share of a link that lanes share may go, and goes no sooner in its lane.
    SharedOnlyVetoes,
    /// Who lacks its share of such a link has other lanes' chunks begun all the same.
    OthersNotHeldBack,
}

#[cfg(feature = "planted")]
impl crate::Links {
    /// Makes one flaw active, or none. Before the first chunk.
    pub fn plant(&mut self, flaw: Option<Flaw>) {
        self.planted = flaw;
        self.links.iter_mut().for_each(|link| link.planted = flaw);
    }
}
