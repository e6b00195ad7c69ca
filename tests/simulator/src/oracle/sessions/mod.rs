//! Sessions: their deadlines, their mistakes, and what ends with them.

mod deadlines;
mod kills;
mod lies;
mod lifetimes;
