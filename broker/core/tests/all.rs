//! All of them are one program: each of its own would be compiled as long as this.

#![allow(clippy::indexing_slicing, reason = "a test that goes out of bounds has failed")]

mod world;

mod backed_late;
mod cached_under_pressure;
mod critical;
mod demands;
mod discards;
mod disk;
mod ever;
mod fence;
mod figures;
mod files;
mod gauges;
mod hastened;
mod hit_rates;
mod holds;
mod in_place;
mod larger;
mod line;
mod many;
mod many_parts;
mod migrations;
mod need;
mod notices;
mod operators;
mod paths;
mod pins;
mod pressure;
mod ran_out;
mod recycling;
mod revocations;
mod sessions;
mod settings;
mod shadows;
mod unheld;
mod unmappable;
mod write_backs;
