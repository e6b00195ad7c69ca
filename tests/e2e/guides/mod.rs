//! Runs the commands and the code of the README, the tutorial and the guides.

pub(crate) mod commands;
pub(crate) mod pages;
pub(crate) mod programs;
pub(crate) mod stack;
