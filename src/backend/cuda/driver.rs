//! The driver: looked for at run time, asked for a device, given the kernels. Nothing is linked, so that the same program
//! starts where there is none.
//!
//! One stream a device, and every buffer is used on it alone, so that cudarc's tracking by events is switched off: it would
//! cost two events a buffer and forbid graphs.

use std::cell::Cell;
use std::panic;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdevice_attribute, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaModule, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError,
    LaunchArgs, LaunchConfig, PinnedHostSlice, PushKernelArg, ValidAsZeroBits,
};
use cudarc::nvrtc::Ptx;

use super::params::Ptr;
use crate::backend::Stage;

/// The kernels for GPUs of compute capability 7.5, and of 8.0 and later.
const PTX_75: &str = include_str!("../../../kernels/sayfa_75.ptx");
const PTX_80: &str = include_str!("../../../kernels/sayfa_80.ptx");

/// Why there is no device to compute on.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    #[error("no NVIDIA driver was found (libcuda.so)")]
    NoDriver,
    #[error("the NVIDIA driver finds no GPU")]
    NoDevice,
    /// There is one, but not for this program.
    #[error("{0}")]
    Unusable(String),
}

/// What a device is, before anything is loaded on it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    pub ordinal: usize,
    pub name: String,
    pub compute_capability: (i32, i32),
    pub free_bytes: u64,
    pub multiprocessors: usize,
}

/// A device that the kernels can run on.
pub struct Usable {
    pub info: DeviceInfo,
    /// Kept, since it takes the driver some tenths of a second to make one.
    _context: Arc<CudaContext>,
}

/// The device of that number, unless it or its driver is too old; nothing is loaded on it yet.
pub fn device(ordinal: usize) -> Result<Usable, Unavailable> {
    let context = context(ordinal)?;
    let info = info(&context, ordinal)?;
    kernels_for(&info)?;
    Ok(Usable { info, _context: context })
}

/// The kernels that a device can run.
fn kernels_for(info: &DeviceInfo) -> Result<&'static str, Unavailable> {
    if driver_version().is_some_and(|version| version < (12, 0)) {
        return Err(too_old(info));
    }
    match info.compute_capability {
        (8.., _) => Ok(PTX_80),
        (7, 5..) => Ok(PTX_75),
        (major, minor) => {
            let what = format!("{} has compute capability {major}.{minor}, 7.5 or more is needed", info.name);
            Err(Unavailable::Unusable(what))
        }
    }
}

fn too_old(info: &DeviceInfo) -> Unavailable {
    Unavailable::Unusable(format!(
        "the NVIDIA driver for {} is too old for sayfa's kernels (PTX 8.0, of CUDA 12.0): it says that it supports CUDA {}; \
         driver 525 or newer is needed",
        info.name,
        driver_version().map_or("an unknown version".to_string(), |(major, minor)| format!("{major}.{minor}"))
    ))
}

/// cudarc panics where the library or one of its functions is missing; nobody shall see that.
fn guarded<T>(call: impl FnOnce() -> Result<T, DriverError> + panic::UnwindSafe) -> Result<T, Unavailable> {
    // SAFETY: loads the library and runs its initializers, as the driver's vendor intends.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoDriver);
    }
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let answer = panic::catch_unwind(call);
    panic::set_hook(hook);
    match answer {
        Err(_) => Err(Unavailable::Unusable(
            "the NVIDIA driver lacks functions that sayfa needs: version 525 or newer is needed".to_string(),
        )),
        Ok(Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE))) => Err(Unavailable::NoDevice),
        Ok(Err(error)) => Err(Unavailable::Unusable(format!("the NVIDIA driver fails to start: {}", describe(error)))),
        Ok(Ok(value)) => Ok(value),
    }
}

fn context(ordinal: usize) -> Result<Arc<CudaContext>, Unavailable> {
    let count = guarded(CudaContext::device_count)? as usize;
    if count == 0 {
        return Err(Unavailable::NoDevice);
    }
    if ordinal >= count {
        let there = if count == 1 { "only cuda:0 is".to_string() } else { format!("cuda:0 to cuda:{} are", count - 1) };
        return Err(Unavailable::Unusable(format!("there is no device cuda:{ordinal}, {there}")));
    }
    guarded(|| CudaContext::new(ordinal))
}

fn info(context: &CudaContext, ordinal: usize) -> Result<DeviceInfo, Unavailable> {
    let unusable = |error| Unavailable::Unusable(format!("cuda:{ordinal} does not answer: {}", describe(error)));
    let attribute = |which| context.attribute(which).map_err(unusable);
    let (free, _) = context.mem_get_info().map_err(unusable)?;
    Ok(DeviceInfo {
        ordinal,
        name: context.name().map_err(unusable)?,
        compute_capability: context.compute_capability().map_err(unusable)?,
        free_bytes: free as u64,
        multiprocessors: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
    })
}

/// What the driver says of an error.
fn describe(error: DriverError) -> String {
    let text = error.error_string().ok().and_then(|text| text.to_str().ok()).unwrap_or("no description");
    format!("{text} (CUDA error {})", error.0 as u32)
}

/// A GPU with the kernels loaded and the one stream that everything runs on.
pub struct Device {
    pub info: DeviceInfo,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    /// Kernels launched or captured so far.
    launches: Cell<usize>,
    /// What is being queued, for errors.
    stage: Cell<Option<(Stage, usize)>>,
}

// SAFETY: the driver may be called from any thread; a device is used by one at a time (`Cell` is not shared).
unsafe impl Send for Device {}

impl Device {
    pub fn open(ordinal: usize) -> Result<Device, Unavailable> {
        let context = context(ordinal)?;
        let info = info(&context, ordinal)?;
        let ptx = kernels_for(&info)?;
        // SAFETY: nothing has been allocated yet, and all that will be is used on one stream.
        unsafe { context.disable_event_tracking() };
        let unusable = |error: DriverError| match error.0 {
            CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => too_old(&info),
            _ => Unavailable::Unusable(format!("{} does not take the kernels: {}", info.name, describe(error))),
        };
        let module = context.load_module(Ptx::from_src(ptx)).map_err(unusable)?;
        let stream = context.new_stream().map_err(unusable)?;
        Ok(Device { info, context, stream, module, launches: Cell::new(0), stage: Cell::new(None) })
    }

    /// Free memory now.
    pub fn free_bytes(&self) -> Result<usize> {
        Ok(self.context.mem_get_info().map_err(|error| self.error("asking for free memory", error))?.0)
    }

    /// Kernels launched so far, those in graphs each time.
    pub fn launches(&self) -> usize {
        self.launches.get()
    }

    /// Names the stage and the layer of what is launched from here on.
    pub fn set_stage(&self, stage: Option<(Stage, usize)>) {
        self.stage.set(stage);
    }

    pub fn kernel(&self, name: &'static str) -> Result<Kernel> {
        let function = self.module.load_function(name).map_err(|error| self.error(name, error))?;
        Ok(Kernel { name, function })
    }

    /// Memory for `len` elements, not initialized. Kernels that read before they write are wrong.
    pub fn alloc<T: DeviceRepr>(&self, len: usize) -> Result<Buffer<T>> {
        // SAFETY: every element type is a number or a struct of numbers, so that any bits are valid.
        let slice = unsafe { self.stream.alloc::<T>(len.max(1)) };
        let slice = slice.map_err(|error| {
            let mib = (len * size_of::<T>()).div_ceil(1 << 20);
            self.error(&format!("allocating {mib} MiB"), error)
        })?;
        let address = slice.device_ptr(&self.stream).0;
        Ok(Buffer { slice, address, len })
    }

    pub fn upload<T: DeviceRepr>(&self, values: &[T]) -> Result<Buffer<T>> {
        let buffer = self.alloc(values.len())?;
        self.write(&buffer, 0, values)?;
        Ok(buffer)
    }

    /// Copies to the device, and waits: the source may be anything.
    pub fn write<T: DeviceRepr>(&self, buffer: &Buffer<T>, at: usize, values: &[T]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let target = buffer.at(at, values.len()).address();
        // This thread may be another than the one that opened the device.
        self.context.bind_to_thread().map_err(|error| self.error("copying to the device", error))?;
        // SAFETY: the target lies in a buffer of this device, whose memory no reference on the host leads to.
        let copied = unsafe { result::memcpy_htod_async(target, values, self.stream.cu_stream()) };
        copied.map_err(|error| self.error("copying to the device", error))?;
        self.synchronize("copying to the device")
    }

    /// Copies from page-locked memory behind what is queued, without waiting: the source must stay as it is until
    /// `synchronize`.
    pub fn write_queued<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        buffer: &mut Buffer<T>,
        values: &Pinned<T>,
        len: usize,
    ) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let source = values.slice.as_slice().map_err(|error| self.error("reading page-locked memory", error))?;
        let mut target = buffer.slice.slice_mut(..len);
        let copied = self.stream.memcpy_htod(&source[..len], &mut target);
        copied.map_err(|error| self.error("copying to the device", error))
    }

    /// Copies to the host, and waits for it and all that was queued before.
    pub fn read<T: DeviceRepr>(&self, buffer: &Buffer<T>, at: usize, values: &mut [T]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let source = buffer.slice.slice(at..at + values.len());
        let copied = self.stream.memcpy_dtoh(&source, values);
        copied.map_err(|error| self.error("copying from the device", error))?;
        self.synchronize("copying from the device")
    }

    /// Copies inside a buffer, to a place that does not overlap.
    pub fn copy_within<T: DeviceRepr>(&self, buffer: &mut Buffer<T>, from: usize, to: usize, len: usize) -> Result<()> {
        assert!(from + len <= to || to + len <= from, "a copy of {len} from {from} to {to} overlaps");
        let (low, high) = buffer.slice.split_at_mut(from.max(to));
        let (mut low, mut high) = (low, high);
        let copied = if from < to {
            self.stream.memcpy_dtod(&low.slice(from..from + len), &mut high.slice_mut(..len))
        } else {
            self.stream.memcpy_dtod(&high.slice(..len), &mut low.slice_mut(to..to + len))
        };
        copied.map_err(|error| self.error("copying on the device", error))
    }

    /// Page-locked host memory: copies from it are queued, copies into it need no staging.
    pub fn pinned<T: DeviceRepr>(&self, len: usize) -> Result<Pinned<T>> {
        // SAFETY: as for `alloc`; flags 0: cached, since the host reads it too.
        let slice = unsafe { self.context.alloc_pinned_with_flags::<T>(len.max(1), 0) };
        Ok(Pinned { slice: slice.map_err(|error| self.error("locking memory of the host", error))? })
    }

    /// Waits for everything queued. Errors of kernels show here: `what` names what was done.
    pub fn synchronize(&self, what: &str) -> Result<()> {
        self.stream.synchronize().map_err(|error| self.error(what, error))
    }

    /// What `queue` launches, as a graph that is replayed as one.
    pub fn capture(&self, queue: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(|error| self.error("capturing a graph", error))?;
        let before = self.launches.get();
        let queued = queue();
        let launches = self.launches.replace(before) - before;
        // The capture must be ended whatever happened in it.
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0));
        queued?;
        let graph = graph.map_err(|error| self.error("capturing a graph", error))?;
        Ok(Graph { graph: graph.context("a graph of nothing was captured")?, launches })
    }

    pub fn replay(&self, graph: &Graph) -> Result<()> {
        self.launches.set(self.launches.get() + graph.launches);
        graph.graph.launch().map_err(|error| self.error("replaying a graph", error))
    }

    /// # Safety
    /// `args` are those of the kernel in number, order and type, every address in them leads to as many elements as the
    /// kernel touches with this grid, and what it writes nobody else uses meanwhile.
    pub unsafe fn launch(&self, kernel: &Kernel, config: LaunchConfig, args: &impl KernelArgs) -> Result<()> {
        let mut builder = self.stream.launch_builder(&kernel.function);
        args.push(&mut builder);
        self.launches.set(self.launches.get() + 1);
        // SAFETY: passed on to the caller.
        unsafe { builder.launch(config) }.map_err(|error| {
            let (grid, block) = (config.grid_dim, config.block_dim);
            let stage = self.stage.get().map_or("a test", |(stage, _)| stage.name());
            let layer = self.stage.get().map_or(0, |(_, layer)| layer);
            let what = format!("{stage} of layer {layer}: launching {} on {grid:?} blocks of {block:?}", kernel.name);
            self.error(&what, error)
        })?;
        Ok(())
    }

    fn error(&self, what: &str, error: DriverError) -> anyhow::Error {
        anyhow!("cuda:{} ({}): {what}: {}", self.info.ordinal, self.info.name, describe(error))
    }
}

/// (major, minor) of CUDA that the driver supports.
fn driver_version() -> Option<(i32, i32)> {
    let mut version = 0;
    // SAFETY: writes one number.
    let result = unsafe { sys::cuDriverGetVersion(&mut version) };
    (result == CUresult::CUDA_SUCCESS).then_some((version / 1000, version % 1000 / 10))
}

/// A kernel of the module.
pub struct Kernel {
    pub name: &'static str,
    function: CudaFunction,
}

/// A captured step.
pub struct Graph {
    graph: CudaGraph,
    launches: usize,
}

// SAFETY: graphs are replayed by whoever has the device, one thread at a time.
unsafe impl Send for Graph {}

/// Device memory of one element type.
pub struct Buffer<T> {
    slice: CudaSlice<T>,
    address: u64,
    len: usize,
}

impl<T> Buffer<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where element `at` lies, with `len` elements from there on: panics if there are fewer.
    pub fn at(&self, at: usize, len: usize) -> Ptr<T> {
        assert!(at + len <= self.len, "elements {at}..{} of {}", at + len, self.len);
        Ptr::new(self.address + (at * size_of::<T>()) as u64)
    }

    pub fn ptr(&self) -> Ptr<T> {
        Ptr::new(self.address)
    }
}

/// Page-locked memory of the host.
pub struct Pinned<T> {
    slice: PinnedHostSlice<T>,
}

impl<T: DeviceRepr + ValidAsZeroBits> Pinned<T> {
    /// For writing, when nothing that was queued reads it any more.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.slice.as_mut_slice().map_err(|error| anyhow!("page-locked memory: {}", describe(error)))
    }
}

/// Arguments of a kernel, as a tuple.
pub trait KernelArgs {
    fn push<'a>(&'a self, builder: &mut LaunchArgs<'a>);
}

macro_rules! tuples {
    ($($name:ident)+) => {
        impl<$($name: DeviceRepr),+> KernelArgs for ($($name,)+) {
            fn push<'a>(&'a self, builder: &mut LaunchArgs<'a>) {
                #[expect(non_snake_case, reason = "one variable a type")]
                let ($($name,)+) = self;
                $( builder.arg($name); )+
            }
        }
    };
}
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
tuples!(A B C D E F G H I);

/// A launch of blocks of threads, with dynamic shared memory in bytes.
pub const fn blocks(grid: (u32, u32, u32), threads: u32, shared_bytes: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: grid, block_dim: (threads, 1, 1), shared_mem_bytes: shared_bytes }
}
