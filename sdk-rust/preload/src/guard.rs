//! Whether this thread is inside of the library: what it calls then is its own business, and goes to the driver.

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks the thread as inside until it is dropped.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Inside {
    /// `None` if the thread is inside already.
    pub(crate) fn enter() -> Option<Self> {
        INSIDE.with(|inside| (!inside.replace(true)).then_some(Self(())))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(false));
    }
}

pub(crate) fn is_inside() -> bool {
    INSIDE.with(Cell::get)
}
