//! The random numbers of the final draw: xoshiro256++ (Blackman and Vigna), seeded by splitmix64 as its authors advise.
//!
//! Integers only until the last step, so a seed gives the same numbers on every machine. Not for secrets.

pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        let mut seeds = SplitMix64(seed);
        Rng { state: std::array::from_fn(|_| seeds.next()) }
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A multiple of 2^-53 in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that other implementations of the two generators publish for these seeds.
    #[test]
    fn published_vectors() {
        let mut seeds = SplitMix64(1234567);
        assert_eq!(
            [(); 5].map(|()| seeds.next()),
            [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
        );
        let mut rng = Rng { state: [1, 2, 3, 4] };
        assert_eq!(
            [(); 6].map(|()| rng.next()),
            [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205, 9973669472204895162]
        );
    }

    #[test]
    fn unit_fills_the_half_open_interval() {
        let mut rng = Rng::new(7);
        let draws: Vec<f64> = (0..10_000).map(|_| rng.unit()).collect();
        assert!(draws.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5).abs() < 0.01, "mean {mean}");
        assert!(draws.iter().any(|&x| x < 0.001) && draws.iter().any(|&x| x > 0.999));
    }
}
