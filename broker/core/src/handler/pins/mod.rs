//! Pin calls, and what pin words tell.
//!
//! - `pin_call`: pin calls from request to answer
//! - `stall`: pin calls that wait for each other
//! - `harvest`: which parts sessions have used
//! - `pin_costs`: tests: what pin calls cost

mod harvest;
mod pin_call;
#[cfg(test)]
mod pin_costs;
mod stall;
