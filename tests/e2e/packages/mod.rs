//! Operators install container images, and pods use them.

mod containers;
