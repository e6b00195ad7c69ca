//! Clients and surroundings that mean harm, or have bad luck.

mod files;
mod unread_log;
