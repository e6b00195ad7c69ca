//! Pins of parts that lie elsewhere.

pub(crate) mod advised_order;
pub(crate) mod clean_backing;
pub(crate) mod fetch;
pub(crate) mod in_place;
pub(crate) mod interruptions;
pub(crate) mod operator_advice;
pub(crate) mod unasked;
pub(crate) mod use_order;
