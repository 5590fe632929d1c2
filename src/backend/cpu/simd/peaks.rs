//! What a core gives at best: a plain read of memory, and multiply-add instructions on registers alone. No kernel can beat
//! these; `sayfa bench` shows how near the stages of a step come.
//!
//! Plain loops over the chains: a closure handed to `map` would not be compiled into a function with other features.

use super::{LANES, Simd};

/// How far ahead memory is asked for: long enough for any latency, short enough to stay in the L2 cache.
const PREFETCH_BYTES: usize = 32 << 10;
/// Bytes summed between two looks ahead.
const STEP: usize = 256;
/// Independent chains of one instruction, so that its latency does not show.
pub const CHAINS: usize = 12;

/// Loops of the instruction set of a table. Each returns a number that depends on all of its work.
pub struct Peaks {
    /// Reads all bytes once.
    pub read: fn(bytes: &[u8]) -> u64,
    /// `rounds` times `int8_ops_per_round` multiplications and additions of bytes.
    pub int8: fn(rounds: usize) -> u64,
    pub int8_ops_per_round: usize,
    /// The same in f32.
    pub float: fn(rounds: usize) -> u64,
    pub float_ops_per_round: usize,
}

/// The loops that belong to the table of `choose`, and its name.
pub fn peaks(asked: Option<Simd>) -> anyhow::Result<(&'static str, Peaks)> {
    let name = super::choose(asked)?.name;
    #[cfg(target_arch = "x86_64")]
    match name {
        "avx512" => return Ok((name, x86::avx512())),
        "avx2" => return Ok((name, x86::avx2())),
        _ => {}
    }
    #[cfg(target_arch = "aarch64")]
    if name == Simd::Neon.name() {
        return Ok((name, super::neon::peaks()));
    }
    Ok((name, PLAIN))
}

/// The compiler's best for a processor it knows nothing of: the bytes lie in the L1 cache, as plain loops need them.
pub const PLAIN: Peaks = Peaks {
    read: |bytes| sum(bytes, |_| ()),
    int8: plain_int8,
    int8_ops_per_round: 2 * PLAIN_LEN,
    float: plain_float,
    float_ops_per_round: 2 * CHAINS * LANES,
};

const PLAIN_LEN: usize = 4096;

fn plain_int8(rounds: usize) -> u64 {
    let (a, b) = ([3i8; PLAIN_LEN], [5i8; PLAIN_LEN]);
    let mut sum = 0;
    for _ in 0..rounds {
        let (a, b) = (std::hint::black_box(&a), std::hint::black_box(&b));
        sum += a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum::<i32>();
    }
    sum as u64
}

fn plain_float(rounds: usize) -> u64 {
    let (mut sums, factor) = ([[1f32; LANES]; CHAINS], std::hint::black_box([0.5f32; LANES]));
    for _ in 0..rounds {
        for sums in &mut sums {
            sums.iter_mut().zip(&factor).for_each(|(sum, factor)| *sum = *sum * factor + factor);
        }
    }
    sums.iter().flatten().map(|sum| u64::from(sum.to_bits())).sum()
}

/// The sum of the whole words of `bytes`; `look_ahead` gets an address for each cache line, which may lie behind the end.
#[inline(always)]
pub fn sum(bytes: &[u8], look_ahead: impl Fn(*const u8)) -> u64 {
    let mut sums = [0u64; STEP / 8];
    let (steps, rest) = bytes.as_chunks::<STEP>();
    for step in steps {
        for line in 0..STEP / 64 {
            look_ahead(step.as_ptr().wrapping_add(PREFETCH_BYTES + 64 * line));
        }
        for (sum, word) in sums.iter_mut().zip(step.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums.iter().chain(&[rest.iter().map(|&byte| u64::from(byte)).sum()]).fold(0, |all, sum| all.wrapping_add(*sum))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{CHAINS, Peaks, sum};

    // SAFETY of both tables: `peaks` hands one out only for a table of kernels that this CPU runs, with the same features.
    pub fn avx512() -> Peaks {
        Peaks {
            // SAFETY: see above.
            read: |bytes| unsafe { read_avx512(bytes) },
            // SAFETY: see above.
            int8: |rounds| unsafe { int8_avx512(rounds) },
            int8_ops_per_round: 2 * CHAINS * 64,
            // SAFETY: see above.
            float: |rounds| unsafe { float_avx512(rounds) },
            float_ops_per_round: 2 * CHAINS * 16,
        }
    }

    pub fn avx2() -> Peaks {
        Peaks {
            // SAFETY: see above.
            read: |bytes| unsafe { read_avx2(bytes) },
            // SAFETY: see above.
            int8: |rounds| unsafe { int8_avx2(rounds) },
            int8_ops_per_round: 2 * CHAINS * 32,
            // SAFETY: see above.
            float: |rounds| unsafe { float_avx2(rounds) },
            float_ops_per_round: 2 * CHAINS * 8,
        }
    }

    #[inline(always)]
    fn look_ahead(address: *const u8) {
        // SAFETY: a prefetch is a hint; it does nothing for an address that is not mapped.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn read_avx512(bytes: &[u8]) -> u64 {
        sum(bytes, look_ahead)
    }

    #[target_feature(enable = "avx2")]
    fn read_avx2(bytes: &[u8]) -> u64 {
        sum(bytes, look_ahead)
    }

    /// VPDPBUSD: 64 products and their sums.
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn int8_avx512(rounds: usize) -> u64 {
        let (a, b) = std::hint::black_box((_mm512_set1_epi8(3), _mm512_set1_epi8(5)));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        let mut all = 0u64;
        for sum in sums {
            all = all.wrapping_add(_mm512_reduce_add_epi32(sum) as u64);
        }
        all
    }

    /// VPMADDUBSW and VPMADDWD: 32 products and most of their sums. The rest has a port of its own.
    #[target_feature(enable = "avx2")]
    fn int8_avx2(rounds: usize) -> u64 {
        let (b, ones) = std::hint::black_box((_mm256_set1_epi8(5), _mm256_set1_epi16(1)));
        let mut sums = [_mm256_set1_epi8(3); CHAINS];
        for _ in 0..rounds {
            // Each takes the last one's result, or the compiler would compute it once.
            for sum in &mut sums {
                *sum = _mm256_madd_epi16(_mm256_maddubs_epi16(*sum, b), ones);
            }
        }
        let mut all = 0u64;
        for sum in sums {
            all = all.wrapping_add(_mm256_extract_epi64::<0>(sum) as u64);
        }
        all
    }

    #[target_feature(enable = "avx512f")]
    fn float_avx512(rounds: usize) -> u64 {
        let factor = std::hint::black_box(_mm512_set1_ps(0.5));
        let mut sums = [factor; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, factor);
            }
        }
        let mut all = 0;
        for sum in sums {
            all += u64::from(_mm512_reduce_add_ps(sum).to_bits());
        }
        all
    }

    #[target_feature(enable = "avx2,fma")]
    fn float_avx2(rounds: usize) -> u64 {
        let factor = std::hint::black_box(_mm256_set1_ps(0.5));
        let mut sums = [factor; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, factor);
            }
        }
        let mut all = 0;
        for sum in sums {
            all += u64::from(_mm256_cvtss_f32(sum).to_bits());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_reads_every_byte() {
        let bytes: Vec<u8> = (0..3 * STEP + 13).map(|i| i as u8).collect();
        let (words, rest) = bytes[..3 * STEP].as_chunks::<8>();
        assert!(rest.is_empty());
        let tail: u64 = bytes[3 * STEP..].iter().map(|&byte| u64::from(byte)).sum();
        let want = words.iter().fold(tail, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
        for simd in Simd::ALL.into_iter().filter(|simd| simd.is_available()) {
            let (name, peaks) = peaks(Some(simd)).unwrap();
            assert_eq!(name, simd.name());
            assert_eq!((peaks.read)(&bytes), want, "{name}");
        }
    }

    #[test]
    fn the_loops_do_what_they_count() {
        for simd in Simd::ALL.into_iter().filter(|simd| simd.is_available()) {
            let (name, peaks) = peaks(Some(simd)).unwrap();
            // x = x / 2 + 1 / 2 has the limit 1
            assert!((peaks.float)(100) > 0, "{name}");
            if name != "avx2" {
                assert_eq!((peaks.int8)(7), 7 * 15 * peaks.int8_ops_per_round as u64 / 2, "{name}");
            }
        }
    }
}
