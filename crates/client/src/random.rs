//! Random numbers of the operating system, for masking keys, nonces and jitter.

use std::io;

/// Bytes fetched in one system call: 256 masking keys.
const CHUNK: usize = 1024;

/// A source of unpredictable numbers, which fetches them in chunks
/// ([RFC 6455 section 5.3](https://www.rfc-editor.org/rfc/rfc6455#section-5.3)).
pub(crate) struct Entropy {
    bytes: Box<[u8; CHUNK]>,
    used: usize,
}

impl Entropy {
    /// Creates a source.
    ///
    /// # Errors
    /// The operating system has no random numbers.
    pub(crate) fn new() -> io::Result<Self> {
        let mut source = Self { bytes: Box::new([0; CHUNK]), used: CHUNK };
        source.refill()?;
        Ok(source)
    }

    fn refill(&mut self) -> io::Result<()> {
        getrandom::fill(&mut self.bytes[..]).map_err(io::Error::other)?;
        self.used = 0;
        Ok(())
    }

    /// Returns `N` random bytes; `N` divides the size of a chunk.
    pub(crate) fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        if self.used + N > CHUNK {
            self.refill()?;
        }
        let mut taken = [0; N];
        taken.copy_from_slice(&self.bytes[self.used..self.used + N]);
        self.used += N;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_not_repeat_within_and_between_chunks() {
        let mut source = Entropy::new().unwrap();
        let mut keys: Vec<[u8; 8]> = (0..1000).map(|_| source.take().unwrap()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 1000);
    }
}
