//! Random numbers that depend on a key alone, so that a search can be repeated.

use dtrain_protocol::shuffle::splitmix64;
use rand::RngCore;

/// A stream of random numbers that depends on its key alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchRng {
    key: u64,
    drawn: u64,
}

impl SearchRng {
    /// Returns the stream of random numbers for a key.
    pub(crate) fn new(key: u64) -> Self {
        Self { key, drawn: 0 }
    }

    /// Returns a uniformly distributed number from 0 to `n - 1`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n
    }

    /// Returns a uniformly distributed index into a list of length `n`.
    pub(crate) fn pick(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).expect("it is below a length")
    }
}

impl RngCore for SearchRng {
    fn next_u32(&mut self) -> u32 {
        u32::try_from(self.next_u64() >> 32).expect("the upper half has 32 bits")
    }

    fn next_u64(&mut self) -> u64 {
        self.drawn += 1;
        splitmix64(self.key, self.drawn)
    }

    fn fill_bytes(&mut self, to: &mut [u8]) {
        for part in to.chunks_mut(8) {
            part.copy_from_slice(&self.next_u64().to_le_bytes()[..part.len()]);
        }
    }
}
