//! One attempt of one rank, from the assignment to the last event.
