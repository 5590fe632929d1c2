//! The stand-in CUDA driver (`tests/cuda_driver`) for this test process.
//!
//! With `REQUIRE_CUDA=1` in the environment nothing is put in: the tests use the machine's driver and its GPU.
//! `SAYFA_CUDA_BUILD` chooses how the stand-in is built: `plain`, or `asan` and `tsan` in a process that was started with
//! the sanitizer's library loaded (`scripts/test.sh` does it).

use std::collections::hash_map::DefaultHasher;
use std::ffi::{CStr, CString, c_void};
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::mem::transmute;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// In which order threads and blocks run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    Forward,
    Reverse,
    Random { seed: u64 },
}

/// What a test may ask of the stand-in that no real driver offers.
pub struct StandIn {
    poison: Range,
    unpoison: Range,
    launches: Count,
    order: SetOrder,
}

type Range = unsafe extern "C" fn(u64, usize);
type Count = unsafe extern "C" fn() -> usize;
type SetOrder = unsafe extern "C" fn(i32, u64);

impl StandIn {
    /// Marks device memory as nobody's: what is read there is NaN, and under AddressSanitizer the access ends the process.
    pub fn poison(&self, address: u64, bytes: usize) {
        // SAFETY: the stand-in's device memory is memory of this process; a test names what it allocated.
        unsafe { (self.poison)(address, bytes) }
    }

    /// The memory may be used again; what was in it is lost.
    pub fn unpoison(&self, address: u64, bytes: usize) {
        // SAFETY: as above.
        unsafe { (self.unpoison)(address, bytes) }
    }

    /// Kernels run so far in this process.
    pub fn launches(&self) -> usize {
        // SAFETY: reads a number behind the stand-in's lock.
        unsafe { (self.launches)() }
    }

    /// For every launch from now on, in the whole process.
    pub fn order(&self, order: Order) {
        let (which, seed) = match order {
            Order::Forward => (0, 1),
            Order::Reverse => (1, 1),
            Order::Random { seed } => (2, seed),
        };
        // SAFETY: writes two numbers behind the stand-in's lock.
        unsafe { (self.order)(which, seed) }
    }
}

/// Call it before anything that could look for a driver. None when the tests are to use the real one.
pub fn install() -> Option<&'static StandIn> {
    static INSTALLED: OnceLock<Option<StandIn>> = OnceLock::new();
    INSTALLED.get_or_init(|| (!real_driver_wanted()).then(load)).as_ref()
}

/// Whether `REQUIRE_CUDA=1` asks for the machine's driver.
pub fn real_driver_wanted() -> bool {
    std::env::var_os("REQUIRE_CUDA").is_some_and(|value| value == "1")
}

/// The folder with the stand-in, for the `LD_LIBRARY_PATH` of a program under test.
pub fn library_dir() -> PathBuf {
    let variant = std::env::var("SAYFA_CUDA_BUILD").unwrap_or_else(|_| "plain".to_string());
    build(&variant, &root().join("kernels/sayfa.cu"))
}

fn load() -> StandIn {
    let path = CString::new(library_dir().join("libcuda.so").into_os_string().into_encoded_bytes()).unwrap();
    // glibc knows a library by its SONAME (libcuda.so) once it is loaded, so that cudarc gets this one. It is never
    // unloaded.
    // SAFETY: runs the constructors of a library of our own.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        // SAFETY: dlopen failed, so there is a message.
        let message = unsafe { CStr::from_ptr(libc::dlerror()) };
        panic!("the stand-in CUDA driver does not load: {}", message.to_string_lossy());
    }
    let symbol = |name: &CStr| {
        // SAFETY: `library` is loaded for good.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!address.is_null(), "the stand-in CUDA driver lacks {name:?}");
        address
    };
    // SAFETY: the signatures are those in tests/cuda_driver.
    unsafe {
        StandIn {
            poison: transmute::<*mut c_void, Range>(symbol(c"sayfa_cuda_poison")),
            unpoison: transmute::<*mut c_void, Range>(symbol(c"sayfa_cuda_unpoison")),
            launches: transmute::<*mut c_void, Count>(symbol(c"sayfa_cuda_launches")),
            order: transmute::<*mut c_void, SetOrder>(symbol(c"sayfa_cuda_order")),
        }
    }
}

/// The library that a process under `asan` or `tsan` must be started with in `LD_PRELOAD`.
pub fn sanitizer_library(name: &str) -> PathBuf {
    let output = Command::new("g++").arg(format!("-print-file-name={name}")).output().expect("g++ starts");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of `libcuda.so` with these kernels, built if no test has done so for the sources as they are.
pub fn build(variant: &str, kernels: &Path) -> PathBuf {
    let builds = root().join("target/cuda_driver");
    let built = builds.join(format!("{variant}-{:016x}", hash_of_sources(kernels)));
    fs::create_dir_all(&builds).unwrap();
    // One process builds, the others wait for it.
    let lock = File::create(builds.join("lock")).unwrap();
    lock.lock().unwrap();
    if built.join("libcuda.so").exists() {
        return built;
    }
    assert!(
        Command::new("g++").arg("--version").output().is_ok_and(|output| output.status.success()),
        "the CUDA tests compile the kernels for the CPU and need g++ (Debian package g++), which is not there"
    );
    // Under another name until it is whole.
    let unfinished = builds.join("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    let output = Command::new(root().join("tests/cuda_driver/build.sh"))
        .arg(&unfinished)
        .arg(variant)
        .arg(kernels)
        // A sanitizer is for this process, not for the compiler.
        .env_remove("LD_PRELOAD")
        .output()
        .expect("tests/cuda_driver/build.sh starts");
    assert!(
        output.status.success(),
        "the stand-in driver does not build:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(&unfinished, &built).unwrap();
    built
}

fn hash_of_sources(kernels: &Path) -> u64 {
    let mut files = vec![kernels.to_path_buf()];
    for folder in ["tests/cuda_driver", "kernels"] {
        let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| {
            path.extension()
                .is_some_and(|extension| ["cpp", "h", "sh", "cu", "cuh"].iter().any(|known| extension == *known))
        }));
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        fs::read(&file).unwrap().hash(&mut hasher);
    }
    hasher.finish()
}
