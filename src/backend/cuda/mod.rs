//! The CUDA backend: the layers of a model that lie on a GPU, their part of the paged KV cache, and the output head.

mod driver;
mod forms;
mod params;
mod repack;

pub use driver::{DeviceInfo, Unavailable, devices};

/// What tests of single kernels need; nothing else outside this room does.
#[doc(hidden)]
pub mod testing {
    pub use super::driver::{Buffer, Device, Kernel, KernelArgs, Pinned, blocks};
    pub use super::forms::{Form, Layout, PLANES};
    pub use super::params::*;
    pub use super::repack::repack;
}
