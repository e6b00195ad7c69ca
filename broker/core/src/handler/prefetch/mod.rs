//! Prefetch requests: a client asks for parts ahead of their use, and is told how far they are.
//!
//! - `request`: requests are taken, cancelled and ended
//! - `classes`: what the class and the weight of tenants decide about requests
//! - `deadlines`: requests that cannot be ready in time let others pass
//! - `begin`: the next request of each device begins, once it has room
//! - `progress`: its parts arrive, are used, or leave again
//! - `list`: requests as operators see them
//!
//! Demand goes first, in four ways. No request begins while clients wait for room on its device. Its copies are of
//! class prefetch, which waits for demand on every link. A part that a client pins meanwhile is copied as demand, with
//! the rest of its request. Only parts that are worth less leave for it ([`Broker::plan_for_prefetch`]).
//!
//! [`Broker::plan_for_prefetch`]: crate::Broker

mod begin;
mod classes;
mod deadlines;
mod list;
mod progress;
mod request;
mod speculate;
