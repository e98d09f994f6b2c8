//! Bytes as the journal's segment files. Decides nothing: the check is the property tests' too.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| labeler_core::journal::checks::any_files(data));
