//! What somebody else's words, bytes and connections can do: nothing. `docs/security.md` says what is promised.

mod emitted;
mod folders;
mod injection;
mod peers;
mod secrets;
mod state;
mod submitted;
mod trap;
mod words;
