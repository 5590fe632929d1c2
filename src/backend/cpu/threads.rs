//! A crew of threads for one forward pass: one rayon broadcast, inside it regions that cost a fraction of a microsecond.
//!
//! The leader runs the decoder as plain sequential code; at each region it publishes a closure, every worker runs it for
//! its own share, and the leader goes on when all have arrived. Entering the pool costs about 15 us once per forward,
//! a region 0.2 us; a rayon call per region from outside would cost 10 to 20 us each, 2 to 4 ms a token.
//! Whoever waits spins for a while (regions follow each other within microseconds), then sleeps: where a second busy
//! process has taken a core, the thread it keeps away gets ours. To yield instead would cost a whole slice of the
//! scheduler, milliseconds, each time. Outside a forward pass no thread spins.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::anyhow;

/// Looks before a waiting thread sleeps, 25 to 50 us by processor: about what waking it costs. Longer would do no good on
/// a quiet machine, where waits are shorter, and harm on a busy one, where two threads on one core spin against each other.
const SPINS: u32 = 1_000;

/// The threads of a backend. They sleep between forward passes.
pub struct Team {
    pool: Option<rayon::ThreadPool>,
    n: usize,
}

impl Team {
    pub fn new(n: usize) -> anyhow::Result<Team> {
        assert!(n > 0, "a team needs a thread");
        let pool = match n {
            1 => None,
            _ => {
                let builder = rayon::ThreadPoolBuilder::new().num_threads(n).thread_name(|i| format!("sayfa-{i}"));
                Some(builder.build().map_err(|error| anyhow!("cannot start {n} threads: use a smaller -t ({error})"))?)
            }
        };
        Ok(Team { pool, n })
    }

    /// Runs `leader` on one thread while the others serve its regions.
    pub fn run<R: Send>(&self, leader: impl FnOnce(&Crew) -> R + Send) -> R {
        let Some(pool) = &self.pool else { return leader(&Crew { shared: None, n: 1 }) };
        let shared = Shared::new(self.n as u32);
        let task = Mutex::new((Some(leader), None));
        pool.broadcast(|context| {
            if context.index() > 0 {
                return shared.serve(context.index());
            }
            let _stop = StopOnDrop(&shared);
            let mut task = task.lock().expect("only the leader locks this");
            let leader = task.0.take().expect("the leader runs once");
            task.1 = Some(leader(&Crew { shared: Some(&shared), n: self.n }));
        });
        task.into_inner().expect("the broadcast has ended").1.expect("the leader has returned")
    }
}

/// The closure of a region, as a raw pointer that outlives the region.
type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    workers: u32,
    /// Counts regions. Workers wait for it to move, from 0.
    region: AtomicU32,
    published: Bell,
    arrived: AtomicU32,
    all_arrived: Bell,
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written by the leader before it moves `region` (release) and read by workers after they saw it move
// (acquire); the leader writes again only after all workers arrived. The other fields are Sync themselves.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(threads: u32) -> Shared {
        Shared {
            workers: threads - 1,
            region: AtomicU32::new(0),
            published: Bell::default(),
            arrived: AtomicU32::new(0),
            all_arrived: Bell::default(),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
        }
    }

    /// A worker's life in a forward pass: run each region once, leave when the leader publishes no job.
    fn serve(&self, worker: usize) {
        let mut seen = 0;
        loop {
            self.published.wait_until(|| self.region.load(Ordering::SeqCst) != seen);
            seen = seen.wrapping_add(1);
            // SAFETY: `region` moved, so the leader has written `job` and will not touch it until this worker arrived.
            let Some(job) = (unsafe { *self.job.get() }) else { return };
            // SAFETY: the leader keeps the closure alive until all workers arrived.
            let run = AssertUnwindSafe(|| unsafe { (*job)(worker) });
            if let Err(panic) = catch_unwind(run) {
                *self.panic.lock().expect("never held across a panic") = Some(panic);
            }
            if self.arrived.fetch_add(1, Ordering::SeqCst) + 1 == self.workers {
                self.all_arrived.ring();
            }
        }
    }

    fn publish(&self, job: Option<Job>) {
        // SAFETY: all workers have arrived from the last region, so none reads `job` until `region` moves.
        unsafe { *self.job.get() = job };
        self.arrived.store(0, Ordering::Relaxed);
        self.region.fetch_add(1, Ordering::SeqCst);
        self.published.ring();
    }

    fn wait_for_workers(&self) {
        self.all_arrived.wait_until(|| self.arrived.load(Ordering::SeqCst) == self.workers);
    }
}

/// Wakes those who sleep until a condition holds. The change that makes it hold, the look at it and `sleepers` are all
/// sequentially consistent: either the sleeper sees the change, or whoever rings sees the sleeper.
#[derive(Default)]
struct Bell {
    sleepers: AtomicU32,
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Spins for a while, then sleeps.
    fn wait_until(&self, ready: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleep_until(ready);
    }

    #[cold]
    fn sleep_until(&self, ready: impl Fn() -> bool) {
        let mut guard = self.locked();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !ready() {
            guard = self.rung.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// After the change that a condition waits for. Costs one load while nobody sleeps.
    fn ring(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Whoever holds the lock has not yet fallen asleep, and must not miss the ring.
            drop(self.locked());
            self.rung.notify_all();
        }
    }

    fn locked(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the workers home when the leader returns or panics.
struct StopOnDrop<'a>(&'a Shared);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.publish(None);
    }
}

/// The threads inside a forward pass, as the leader sees them.
pub struct Crew<'a> {
    shared: Option<&'a Shared>,
    n: usize,
}

impl Crew<'_> {
    /// One region: `work(worker)` on every thread; returns when all are done.
    pub fn each(&self, work: impl Fn(usize) + Sync) {
        let Some(shared) = self.shared else { return work(0) };
        let job: &(dyn Fn(usize) + Sync) = &work;
        // SAFETY: only the lifetime changes; this function does not return or unwind before all workers arrived.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(job) };
        shared.publish(Some(job));
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        shared.wait_for_workers();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        if let Some(panic) = shared.panic.lock().expect("never held across a panic").take() {
            resume_unwind(panic);
        }
    }

    /// Splits `items` into one contiguous range per worker.
    pub fn split(&self, items: usize, work: impl Fn(usize, Range<usize>) + Sync) {
        if items == 1 || self.n == 1 {
            return work(0, 0..items);
        }
        self.each(|worker| {
            let range = share(items, self.n, worker, 1);
            if !range.is_empty() {
                work(worker, range);
            }
        });
    }

    /// Splits two buffers of the same number of rows: `work(worker, rows, a_rows, b_rows)`.
    pub fn split_rows<A: Send, B: Send>(
        &self,
        (a, a_len): (&mut [A], usize),
        (b, b_len): (&mut [B], usize),
        work: impl Fn(usize, Range<usize>, &mut [A], &mut [B]) + Sync,
    ) {
        let rows = a.len() / a_len;
        assert!(a.len() == rows * a_len && b.len() == rows * b_len, "buffers differ in rows");
        let (a, b) = (SendPtr(a.as_mut_ptr()), SendPtr(b.as_mut_ptr()));
        self.split(rows, |worker, range| {
            // SAFETY: ranges of different workers are disjoint and lie within `rows`, whose buffers are borrowed mutably.
            let (a, b) = unsafe {
                (
                    std::slice::from_raw_parts_mut(a.get().add(range.start * a_len), range.len() * a_len),
                    std::slice::from_raw_parts_mut(b.get().add(range.start * b_len), range.len() * b_len),
                )
            };
            work(worker, range, a, b);
        });
    }

    /// The same for one buffer.
    pub fn split_chunks<A: Send>(
        &self,
        (a, a_len): (&mut [A], usize),
        work: impl Fn(usize, Range<usize>, &mut [A]) + Sync,
    ) {
        // units take no memory
        let mut units = vec![(); a.len() / a_len];
        self.split_rows((a, a_len), (&mut units, 1), |worker, range, a, _| work(worker, range, a));
    }

    /// Splits the columns of a row-major matrix `out` (rows, cols) among the workers, in multiples of `step` columns.
    pub fn split_columns(&self, out: &mut [f32], cols: usize, step: usize, work: impl Fn(&mut ColumnBlock) + Sync) {
        assert!(out.len().is_multiple_of(cols), "not a whole number of rows");
        let (rows, base) = (out.len() / cols, SendPtr(out.as_mut_ptr()));
        self.each(|worker| {
            let columns = share(cols, self.n, worker, step);
            if !columns.is_empty() {
                let of = (worker, self.n);
                work(&mut ColumnBlock { base: base.get(), rows, stride: cols, columns, of, lifetime: PhantomData });
            }
        });
    }
}

/// The part of worker `worker` of `items`, in multiples of `step`.
fn share(items: usize, workers: usize, worker: usize, step: usize) -> Range<usize> {
    let steps = items.div_ceil(step);
    let bound = |w: usize| (steps * w / workers * step).min(items);
    bound(worker)..bound(worker + 1)
}

/// A pointer that may cross threads; whoever uses it says why the accesses are disjoint.
struct SendPtr<T>(*mut T);

impl<T> SendPtr<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: only a number; each use is justified where it is made, and T itself may cross threads.
unsafe impl<T: Send> Sync for SendPtr<T> {}

/// The columns of a row-major f32 matrix that one worker owns during a region.
pub struct ColumnBlock<'a> {
    base: *mut f32,
    rows: usize,
    stride: usize,
    columns: Range<usize>,
    /// (worker, workers)
    of: (usize, usize),
    lifetime: PhantomData<&'a mut [f32]>,
}

impl ColumnBlock<'_> {
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The columns of another matrix that this worker would own.
    pub fn share_of(&self, cols: usize, step: usize) -> Range<usize> {
        share(cols, self.of.1, self.of.0, step)
    }

    /// The cells of row `row` in `columns`, which must lie in this block.
    pub fn cells(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        let within = self.columns.start <= columns.start && columns.end <= self.columns.end;
        assert!(row < self.rows && within && columns.start <= columns.end, "cells outside the block");
        // SAFETY: the range lies in the matrix and in this worker's columns; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.stride + columns.start), columns.len()) }
    }
}

/// One value per worker, taken by its worker during a region.
pub struct PerWorker<T>(Vec<Mutex<T>>);

impl<T> PerWorker<T> {
    pub fn new(workers: usize, make: impl Fn() -> T) -> PerWorker<T> {
        PerWorker((0..workers).map(|_| Mutex::new(make())).collect())
    }

    pub fn with<R>(&self, worker: usize, work: impl FnOnce(&mut T) -> R) -> R {
        let mut own = self.0[worker].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        work(&mut own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work that outlasts the spinning, now of the leader, now of a worker: each side falls asleep and is woken.
    #[test]
    fn whoever_waits_long_sleeps_and_is_woken() {
        const LONG: std::time::Duration = std::time::Duration::from_micros(200);
        let team = Team::new(3).unwrap();
        let rounds = AtomicU32::new(0);
        team.run(|crew| {
            for round in 0..60 {
                std::thread::sleep(LONG * (round % 3));
                crew.each(|worker| {
                    std::thread::sleep(LONG * ((round + worker as u32) % 4));
                    rounds.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(rounds.into_inner(), 60 * 3);
    }

    #[test]
    fn a_sleeper_uses_no_time_and_hears_the_bell() {
        let (bell, done) = (Bell::default(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| bell.wait_until(|| done.load(Ordering::SeqCst) == 1));
            while bell.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            // A ring without the change wakes nobody for good.
            bell.ring();
            assert!(!waiter.is_finished());
            done.store(1, Ordering::SeqCst);
            bell.ring();
            waiter.join().unwrap();
        });
        assert_eq!(bell.sleepers.into_inner(), 0);
    }

    #[test]
    fn every_cell_is_written_once_for_any_number_of_threads() {
        for threads in [1, 2, 3, 5] {
            let team = Team::new(threads).unwrap();
            let mut rows = vec![0u32; 7 * 3];
            let mut marks = vec![0u8; 7];
            let mut matrix = vec![0f32; 2 * 37];
            team.run(|crew| {
                for _ in 0..50 {
                    crew.split_rows((&mut rows, 3), (&mut marks, 1), |_, range, rows, marks| {
                        for (i, row) in range.clone().zip(rows.chunks_mut(3)) {
                            row.iter_mut().for_each(|cell| *cell += i as u32);
                        }
                        marks.iter_mut().for_each(|m| *m += 1);
                    });
                    crew.split_columns(&mut matrix, 37, 8, |block| {
                        for row in 0..2 {
                            let columns = block.columns();
                            block.cells(row, columns).iter_mut().for_each(|cell| *cell += 1.0);
                        }
                    });
                }
            });
            assert!(rows.chunks(3).enumerate().all(|(i, row)| row.iter().all(|&cell| cell == 50 * i as u32)));
            assert_eq!(marks, [50; 7]);
            assert!(matrix.iter().all(|&cell| cell == 50.0));
        }
    }

    #[test]
    fn a_panic_in_a_region_reaches_the_caller_and_the_team_lives_on() {
        let team = Team::new(3).unwrap();
        for bad in 0..3 {
            let run = || team.run(|crew| crew.each(|worker| assert_ne!(worker, bad, "seeded")));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            assert_eq!(team.run(|crew| crew.n), 3);
        }
    }

    #[test]
    fn shares_cover_everything() {
        for (items, workers, step) in [(100, 3, 8), (5, 8, 1), (16, 2, 16), (0, 4, 8)] {
            let mut next = 0;
            for worker in 0..workers {
                let range = share(items, workers, worker, step);
                assert!(range.is_empty() || range.start == next);
                next = range.end.max(next);
            }
            assert_eq!(next, items);
        }
    }
}
