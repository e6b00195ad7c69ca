//! All of them are one program: each of its own would be compiled as long as this.

#![allow(clippy::indexing_slicing, reason = "a test that goes out of bounds has failed")]

mod world;

mod advised_order;
mod bounded_work;
mod cache;
mod cache_hit_rates;
mod cached_under_pressure;
mod classes;
mod clean_backing;
mod client_requests;
mod critical_pressure;
mod discardable;
mod disk;
mod driver_out_of_memory;
mod feasibility;
mod files;
mod in_place;
mod large_orders;
mod larger_than_device;
mod late_backing;
mod layers;
mod line;
mod making_room;
mod managed;
mod managed_orders;
mod map_failures;
mod migrations;
mod notices;
mod operator_advice;
mod operator_holds;
mod operators;
mod owner_evicts;
mod pins;
mod placement;
mod prefetch;
mod pressure;
mod pressure_outlook;
mod purity;
mod revocations;
mod sequences;
mod sessions;
mod settings;
mod silences;
mod speculation;
mod turns;
mod unpinned;
mod urgency;
mod wait_figures;
mod waiting_parts;
mod write_backs;
