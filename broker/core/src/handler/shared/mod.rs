//! Questions and notes of more than one subject. Nothing here calls a subject, and most of it only reads.
//!
//! - `parts`, `mappers`: where a part lies, and which sessions map it
//! - `room`, `batch_room`: whether a waiter or a batch fits now, or ever could; refusals in a user's terms
//! - `access`: which session asks, and what it may see
//! - `usage`, `levels`: the use of parts, and the fill of places
//! - `facts`: facts with the conditions under which they hold
//! - `survey`: surveys of devices
//! - `shell`, `notice`: commands, deadlines, and notices for operators

mod access;
mod batch_room;
mod facts;
mod levels;
mod mappers;
pub(super) mod notice;
mod parts;
mod room;
mod shell;
pub(crate) mod survey;
mod usage;
