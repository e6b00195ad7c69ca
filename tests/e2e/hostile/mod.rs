//! Clients and surroundings that mean harm, or have bad luck.

mod files;
mod interrupts;
mod lost_sockets;
mod process_ends;
mod unread_log;
