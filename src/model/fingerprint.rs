//! Tells apart what is written to files: FNV-1a in 64 bits, the same for every build and machine. (The hashers of the
//! standard library promise that for one build only.)

/// Of pieces of bytes; where one ends and the next begins counts too.
#[derive(Clone, Debug)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    pub fn add(&mut self, piece: &[u8]) {
        let len = (piece.len() as u64).to_le_bytes();
        for &byte in len.iter().chain(piece) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub fn add_number(&mut self, number: u64) {
        self.add(&number.to_le_bytes());
    }

    pub fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[&[u8]]) -> u64 {
        let mut fingerprint = Fingerprint::default();
        pieces.iter().for_each(|piece| fingerprint.add(piece));
        fingerprint.finish()
    }

    #[test]
    fn it_is_the_same_everywhere_and_sees_every_byte_and_border() {
        // Files written by earlier builds depend on this very number.
        assert_eq!(of(&[b"sayfa"]), 0xde72_69cb_04a3_2c8a);
        let distinct = [of(&[]), of(&[b""]), of(&[b"ab"]), of(&[b"a", b"b"]), of(&[b"", b"ab"]), of(&[b"ac"])];
        for (i, a) in distinct.iter().enumerate() {
            assert!(distinct[i + 1..].iter().all(|b| a != b));
        }
    }
}
