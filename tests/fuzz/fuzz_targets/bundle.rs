#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dtrain_fuzz::bundle(bytes));
