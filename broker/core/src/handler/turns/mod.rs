//! Turns: sessions whose working sets do not fit on a device together have it one after the other.
//!
//! - `declare`: working sets are taken and ended
//! - `request`: turns are requested and yielded
//! - `admit`: which turn comes next
//! - `ask`: which owners are asked to yield, and when
//! - `ahead`: the set that comes next is brought to free room
//! - `progress`: the grant, and what follows if a client does not yield
//! - `list`: working sets as seen from outside
//!
//! A turn is admitted as soon as its set fits beside those of all owners, so sets that fit together cost nothing.
//! Otherwise owners in the way are asked to yield once their quantum is over. An admitted turn makes a pin call of the daemon's
//! own (`pins/pin_call.rs`), so room, victims and copies are those of any pin call.

mod admit;
mod ahead;
mod ask;
mod declare;
mod list;
mod progress;
mod request;
