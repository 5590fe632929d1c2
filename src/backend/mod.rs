//! The seam between the engine and the devices.

pub mod cpu;

pub trait Backend {}
