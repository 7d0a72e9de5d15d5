//! Stands in for `openssl-sys`, so that libssh2 uses the cryptography that TLS uses.
//!
//! The real crate compiles OpenSSL from source, a third of the time of a first build, beside the AWS-LC that rustls brings. libssh2
//! supports AWS-LC (`SSH2_CRYPTO_ENGINE_NAME "AWS-LC"` in its `openssl.h`), so this crate hands it those headers and that library.
//! `libssh2-sys` asks the real crate for nothing but [`init`].

// Linked for its `libcrypto`, which libssh2 calls.
use aws_lc_sys as _;

/// Does nothing: AWS-LC initialises itself.
pub fn init() {}
