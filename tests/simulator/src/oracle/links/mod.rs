//! Copies in the lanes of links: their order, their shares and their classes.

mod awaited;
pub(super) mod shares;
