//! A library for `LD_PRELOAD`: a program that calls CUDA gets its device memory from the node's daemon, and knows nothing
//! of it.
//!
//! The loader puts this library before the driver's. A program finds the driver's functions through several doors:
//! linked by name, `dlsym`, `dlvsym`, and `cuGetProcAddress`, which the CUDA runtime uses, linked statically or not
//! (`doors`). For each function of one table (`table`) the doors give out a function of this library instead. A function
//! that the table should have, and does not know, is the driver's, and its calls are counted (`doors::unknown`). Every
//! other function is the driver's own, untouched.
//!
//! | Module | What it does |
//! |---|---|
//! | `doors` | gives out this library's functions for the driver's |
//! | `table` | lists them: name, versions, what becomes of a call |
//! | `entries` | what each does, by subject |
//! | `gated` | the rows of launches and copies |
//! | `gate` | where they wait for the turn of the process |
//! | `turns` | takes and yields the turn, and keeps the working set |
//! | `heap` | the memory that was served: by address, by device, by pool |
//! | `streams` | waits for the work that may still use freed memory |
//! | `session` | the one session with the daemon, of this process |
//! | `driver` | the driver's functions that this library calls itself |
//! | `counts` | what was passed on to the driver, by function and reason |
//!
//! **Served memory** is an allocation of the daemon that this process keeps pinned. It lies in the primary context of its
//! device, which the CUDA runtime uses. Memory that other contexts ask for, and memory that a program maps itself, is the
//! driver's own; the daemon charges it to the tenant.
//!
//! **No lock of this library is held** while it calls the daemon or waits for the device: a thread that waits for another
//! rank's kernel must not keep that rank's thread from allocating.

#![cfg_attr(test, allow(dead_code, reason = "only the shared library exports its functions"))]

mod counts;
mod doors;
mod driver;
mod entries;
mod gate;
mod gated;
mod guard;
mod heap;
mod pools;
mod session;
mod streams;
mod table;
mod turns;
