#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| florence2_core::dev::differential_target(data));
