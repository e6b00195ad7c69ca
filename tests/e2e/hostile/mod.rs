//! Clients and surroundings that mean harm, or have bad luck.

mod unread_log;
