//! The CUDA backend: the layers of a model that lie on a GPU, their part of the paged KV cache, and the output head.

mod driver;
mod params;

pub use driver::{DeviceInfo, Unavailable, Usable, device, devices};

/// What tests of single kernels need; nothing else outside this room does.
#[doc(hidden)]
pub mod testing {
    pub use super::driver::{Buffer, Device, Kernel, KernelArgs, Pinned, blocks};
    pub use super::params::*;
}
