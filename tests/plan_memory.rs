//! The plan's scratch against what opening a backend really allocates. Alone in its program, because it counts every
//! allocation of the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

#[allow(dead_code)] // a part of it is for other tests
#[path = "support/models.rs"]
mod models;

use models::{Setting, data, default_model, load, options};
use sayfa::backend::cpu::{self, Widths};
use sayfa::kv::layout::KvType;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn opening_a_backend_allocates_what_the_plan_says() {
    let settings = [
        Setting::default(),
        Setting { kv_type: KvType::Int8, threads: 3, ..Setting::default() },
        Setting { batch_tokens: 64, batch_logits: 128, kv_type: KvType::F32, ..Setting::default() },
    ];
    for path in [default_model(), data("variants/experts.gguf"), data("variants/bias.gguf")] {
        let model = load(&path);
        for setting in settings {
            let before = HELD.load(Ordering::Relaxed);
            let backend = cpu::open(model.clone(), &options(setting)).unwrap();
            let allocated = (HELD.load(Ordering::Relaxed) - before) as u64;
            drop(backend);
            let planned = cpu::scratch_bytes(&Widths::of(&model.config), &options(setting)).fixed;
            // threads, names and the like are not scratch
            let other = allocated.checked_sub(planned);
            assert!(other.is_some_and(|other| other < 64 << 10), "{}: {planned} planned, {allocated}", path.display());
        }
    }
}
