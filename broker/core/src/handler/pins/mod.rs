//! Pin calls, and what sessions say in their pin words.
//!
//! - `pin_call`: a pin call from request to answer
//! - `stall`: pin calls that wait only for each other
//! - `refusals`: calls whose parts cannot come
//! - `harvest`: which parts sessions have used, and which they pin
//! - `pin_costs`: tests of what pin calls cost

mod harvest;
mod pin_call;
#[cfg(test)]
mod pin_costs;
mod refusals;
mod stall;
