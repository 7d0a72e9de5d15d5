//! The spool of a dead agent, as it arrives from its host.

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A stream of a known number of spool bytes from a host. The total time is unlimited as long as bytes
/// arrive.
///
/// Reading fails if they stop or end early, so the end of the stream is the end of the spool.
pub(in crate::launch) struct SpoolRemainder {
    from: UnixStream,
    left: u64,
    patience: Duration,
}

impl SpoolRemainder {
    /// Creates the stream of the next `bytes` bytes of `from`, which has no other reader.
    pub(super) fn new(from: UnixStream, bytes: u64, patience: Duration) -> io::Result<Self> {
        from.set_read_timeout(Some(patience))?;
        Ok(Self { from, left: bytes, patience })
    }
}

impl Read for SpoolRemainder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        match self.from.read(&mut buffer[..most]) {
            Ok(0) => {
                let words = format!("the connection ended {} bytes too soon", self.left);
                Err(io::Error::new(ErrorKind::UnexpectedEof, words))
            }
            Ok(length) => {
                self.left -= length as u64;
                Ok(length)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let words = format!("nothing came for {} s", self.patience.as_secs_f64());
                Err(io::Error::new(ErrorKind::TimedOut, words))
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::timeouts::STALL_TIMEOUT;
    use super::*;
    use std::io::Write;

    fn pair(bytes: u64, patience: Duration) -> (UnixStream, SpoolRemainder) {
        let (far, near) = UnixStream::pair().expect("a pair of sockets");
        (far, SpoolRemainder::new(near, bytes, patience).expect("not zero"))
    }

    #[test]
    fn what_comes_is_told_from_what_stopped_coming_and_from_what_ended_too_soon() {
        let mut got = Vec::new();
        let (mut far, mut all) = pair(3, STALL_TIMEOUT);
        far.write_all(b"one and the answer to the next question").expect("room");
        all.read_to_end(&mut got).expect("as much as was announced");
        assert_eq!(got, b"one");

        let (mut far, mut stalled) = pair(8, Duration::from_millis(20));
        far.write_all(b"half").expect("room");
        let error = stalled.read_to_end(&mut got).expect_err("the rest does not come");
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::TimedOut, "nothing came for 0.02 s".into())
        );
        far.write_all(b"rest").expect("room");
        stalled.read_to_end(&mut got).expect("it came late");
        assert_eq!(got, b"onehalfrest");

        let (mut far, mut cut) = pair(8, STALL_TIMEOUT);
        far.write_all(b"half").expect("room");
        drop(far);
        let error = cut.read_to_end(&mut got).expect_err("the rest never comes");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("4 bytes too soon"), "{error}");
    }
}
