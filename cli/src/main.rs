//! The `dtrain` program.

fn main() {}
