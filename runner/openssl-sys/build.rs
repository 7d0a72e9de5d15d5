//! Tells libssh2 where the headers of AWS-LC are, which `aws-lc-sys` has built.

use std::env;

fn main() {
    // Cargo names the variable after the `links` key of `aws-lc-sys`, which has its version in it.
    let is_headers = |name: &str| name.starts_with("DEP_AWS_LC_") && name.ends_with("_INCLUDE");
    let (_, path) = env::vars()
        .find(|(name, _)| is_headers(name))
        .expect("aws-lc-sys publishes the folder of its headers as `include`");
    println!("cargo::metadata=include={path}");
}
