//! The SDK's half of CUDA against a driver that writes down what is asked of it.

mod fake;
mod loading;
mod managed_orders;
mod mapping;
mod registering;
mod streams;

use fake::FakeDriver;
