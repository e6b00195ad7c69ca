//! Clients and surroundings that mean harm, or have bad luck.

mod files;
mod interrupts;
mod unread_log;
