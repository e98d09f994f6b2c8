//! A whole journal, damaged as the bytes say. Decides nothing: the check is the property tests'.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| labeler_core::journal::checks::damaged(data));
