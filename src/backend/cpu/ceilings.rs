//! The limits of this machine, measured: what its memory and its arithmetic units give to some threads at best.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::simd::{Peaks, Simd, peaks};
use super::threads::Team;

/// How long arithmetic is measured at a time, and how often: the fastest counts. Two threads of a virtual machine may
/// start out on one core and take up to 30 ms to be moved apart.
const LAP: Duration = Duration::from_millis(20);
const LAPS: usize = 5;
/// Rounds of an arithmetic loop between two looks at the clock: 10 to 100 us, but for scalar code.
const ROUNDS: usize = 10_000;

/// Measures with so many threads, and with the instructions of one table of kernels.
pub struct Meter {
    team: Team,
    threads: usize,
    simd: &'static str,
    peaks: Peaks,
}

impl Meter {
    pub fn new(threads: usize, simd: Option<Simd>) -> Result<Meter> {
        let (simd, peaks) = peaks(simd)?;
        Ok(Meter { team: Team::new(threads)?, threads, simd, peaks })
    }

    /// Name of the table.
    pub fn simd(&self) -> &'static str {
        self.simd
    }

    /// Bytes per second when all threads together read `parts` once, in order: each its share of every part, as they
    /// share the rows of matrices.
    pub fn read(&self, parts: &[&[u8]]) -> f64 {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let share = |part: &[u8], worker: usize| part.len() * worker / self.threads / 64 * 64;
        let seconds = self.team.run(|crew| {
            // Threads that slept are awake from here on.
            crew.each(|_| ());
            let start = Instant::now();
            crew.each(|worker| {
                for part in parts {
                    let end = if worker + 1 == self.threads { part.len() } else { share(part, worker + 1) };
                    std::hint::black_box((self.peaks.read)(&part[share(part, worker)..end]));
                }
            });
            start.elapsed().as_secs_f64()
        });
        bytes as f64 / seconds
    }

    /// Multiplications and additions of bytes per second, of all threads together.
    pub fn int8_ops_per_second(&self) -> f64 {
        self.fastest(self.peaks.int8, self.peaks.int8_ops_per_round)
    }

    /// The same in f32.
    pub fn float_ops_per_second(&self) -> f64 {
        self.fastest(self.peaks.float, self.peaks.float_ops_per_round)
    }

    /// Each thread for itself, as a barrier would make all wait for one that the system has stopped.
    fn fastest(&self, work: fn(usize) -> u64, ops_per_round: usize) -> f64 {
        let lap = |_| {
            let rounds = AtomicUsize::new(0);
            let start = Instant::now();
            self.team.run(|crew| {
                crew.each(|_| {
                    while start.elapsed() < LAP {
                        std::hint::black_box(work(ROUNDS));
                        rounds.fetch_add(ROUNDS, Ordering::Relaxed);
                    }
                });
            });
            (rounds.into_inner() * ops_per_round) as f64 / start.elapsed().as_secs_f64()
        };
        (0..LAPS).map(lap).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_limits() {
        for simd in Simd::ALL.into_iter().filter(|simd| simd.is_available()) {
            let meter = Meter::new(2, Some(simd)).unwrap();
            assert_eq!(meter.simd(), simd.name());
            let speeds =
                [meter.int8_ops_per_second(), meter.float_ops_per_second(), meter.read(&[&[1; 1000], &[], &[2]])];
            assert!(speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0), "{speeds:?}");
        }
    }
}
