//! The limits of this machine, measured before anything else, and how near a piece of work comes to the nearest one.

use serde::Serialize;

use crate::backend::Work;
use crate::backend::cpu::Meter;
use crate::cli::machine;

/// Least size of what is read to learn the speed of memory, and how much larger than any cache it must be.
const LEAST_READ_BYTES: u64 = 256 << 20;
const CACHES: u64 = 2;
/// Passes over it; the fastest counts.
const PASSES: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ceilings {
    pub read_bytes_per_second: f64,
    /// Of what was read for it: more than twice the largest cache, unless memory is short.
    pub read_buffer_bytes: u64,
    pub int8_ops_per_second: f64,
    pub float_ops_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuCeiling>,
}

/// The GPU's side of it. What it computes at best is not measured: decode waits for its memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GpuCeiling {
    /// Of a copy in its memory, reading and writing counted.
    pub copy_bytes_per_second: f64,
    /// Of the weights: how much of the work lies there.
    pub weights_share: f64,
}

/// What keeps a piece of work from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limit {
    pub name: &'static str,
    /// How much of it is reached.
    pub share: f64,
}

impl Ceilings {
    /// Of the processor, beside what was measured of the GPU.
    pub fn measure(meter: &Meter, gpu: Option<GpuCeiling>) -> Ceilings {
        let wanted = LEAST_READ_BYTES.max(CACHES * machine::largest_cache_bytes().unwrap_or(0));
        let room = machine::available_memory().map_or(u64::MAX, |memory| memory.bytes / 4);
        let read_buffer_bytes = wanted.min(room);
        // Ones, as memory that was never written to is one page of zeros.
        let buffer = vec![1u8; usize::try_from(read_buffer_bytes).unwrap_or(usize::MAX)];
        Ceilings {
            read_bytes_per_second: (0..PASSES).map(|_| meter.read(&[&buffer])).fold(0.0, f64::max),
            read_buffer_bytes,
            int8_ops_per_second: meter.int8_ops_per_second(),
            float_ops_per_second: meter.float_ops_per_second(),
            gpu,
        }
    }

    /// Whether a cache may have helped the reading.
    pub fn read_is_cached(&self) -> bool {
        machine::largest_cache_bytes().is_some_and(|cache| self.read_buffer_bytes < CACHES * cache)
    }

    /// The same with another speed of memory: that of a plain read in the same second, where there is one.
    pub fn with_read(self, read_bytes_per_second: Option<f64>) -> Ceilings {
        Ceilings { read_bytes_per_second: read_bytes_per_second.unwrap_or(self.read_bytes_per_second), ..self }
    }

    /// The nearest limit of work that took so long; `None` if there was nothing to count.
    pub fn nearest(&self, work: Work, seconds: f64) -> Option<Limit> {
        let gpu_share = self.gpu.map_or(0.0, |gpu| gpu.weights_share);
        let gpu_read = self.gpu.map_or(0.0, |gpu| gpu.weights_share * work.bytes / gpu.copy_bytes_per_second);
        let read = gpu_read + (1.0 - gpu_share) * work.bytes / self.read_bytes_per_second;
        let compute = work.int8_ops / self.int8_ops_per_second + work.float_ops / self.float_ops_per_second;
        let compute = (1.0 - gpu_share) * compute;
        let (name, least) = if read >= compute { ("memory", read) } else { ("arithmetic", compute) };
        (least > 0.0 && seconds > 0.0).then(|| Limit { name, share: least / seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_takes_longest_is_the_nearest() {
        let ceilings = Ceilings {
            read_bytes_per_second: 10.0,
            read_buffer_bytes: 1,
            int8_ops_per_second: 100.0,
            float_ops_per_second: 20.0,
            gpu: None,
        };
        let nearest = |bytes, int8_ops, float_ops, seconds| {
            ceilings.nearest(Work { bytes, int8_ops, float_ops }, seconds).map(|limit| (limit.name, limit.share))
        };
        assert_eq!(nearest(20.0, 100.0, 0.0, 4.0), Some(("memory", 0.5)));
        assert_eq!(nearest(10.0, 100.0, 20.0, 4.0), Some(("arithmetic", 0.5)));
        assert_eq!(nearest(0.0, 0.0, 0.0, 1.0), None);
        let slower = ceilings.with_read(Some(5.0));
        assert_eq!(slower.nearest(Work { bytes: 20.0, int8_ops: 100.0, float_ops: 0.0 }, 4.0).unwrap().share, 1.0);
        assert_eq!(ceilings.with_read(None), ceilings);

        // three quarters lie on a GPU that is ten times as fast, whose arithmetic is no limit
        let split =
            Ceilings { gpu: Some(GpuCeiling { copy_bytes_per_second: 100.0, weights_share: 0.75 }), ..ceilings };
        let limit = split.nearest(Work { bytes: 400.0, int8_ops: 4000.0, float_ops: 0.0 }, 26.0).unwrap();
        assert_eq!((limit.name, limit.share), ("memory", (3.0 + 10.0) / 26.0));
    }
}
