//! Bytes as one `LabelBatchRequest`. Decides nothing: the check is the property tests' too.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| labeler_core::transport::checks::label_batch(data));
