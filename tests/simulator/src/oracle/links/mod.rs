//! Copies in the lanes of links: their order, their shares and their classes.

mod awaited;
mod needed_room;
pub(super) mod shares;
