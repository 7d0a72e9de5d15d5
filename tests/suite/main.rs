//! One test binary for everything that needs more than one crate.

/// That of the program, which the layouts stand for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod broken;
mod bundles;
mod cargo_lines;
mod check;
mod checkpoint;
mod children;
mod cluster;
mod cuda;
mod damaged;
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
mod imports;
mod inputs;
mod interop;
mod kill;
mod lab;
mod layouts;
mod leftovers;
mod library;
mod lora;
mod memory;
mod output;
mod parity;
mod plans;
mod power;
mod published;
mod saved_plans;
mod scripts;
mod security;
mod signals;
mod slurm;
mod special_files;
mod ssh;
mod store;
mod studies;
mod tidy;
mod test_runner;
mod tokenizers;
mod tune;
mod using_models;
mod viewers;
mod watch;
mod weights_of_recipe;
