//! One test binary for everything that needs more than one crate.

/// That of the program, which the layouts stand for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod broken;
mod bundles;
mod check;
mod checkpoint;
mod children;
mod cluster;
mod cuda;
mod digits;
mod docs;
mod elsewhere;
mod emit;
mod examples;
mod exports;
mod failures;
mod fences;
mod first_hour;
mod foreign;
mod gpu;
mod histories;
mod inputs;
mod interop;
mod kill;
mod lab;
mod layouts;
mod library;
mod lora;
mod memory;
mod parity;
mod plans;
mod power;
mod scripts;
mod security;
mod signals;
mod slurm;
mod ssh;
mod store;
mod studies;
mod tidy;
mod tune;
mod using_models;
mod viewers;
mod watch;
