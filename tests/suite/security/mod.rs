//! Untrusted text, bytes and connections have no effect. `docs/security.md` lists the promises.

mod data_keys;
mod emitted;
mod folders;
mod injection;
mod peers;
mod secrets;
mod state;
mod submitted;
mod trap;
mod words;
