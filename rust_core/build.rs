//! Compiles the protos to Rust with a compiler written in Rust, so that no `protoc` is needed.

use prost::Message as _;
use std::{env, fs, path::PathBuf};

const PROTOS: [&str; 4] = [
    "labeler/v1/types.proto",
    "labeler/v1/label.proto",
    "labeler/v1/model.proto",
    "labeler/journal/v1/record.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../protos");
    println!("cargo::rerun-if-changed={}", root.display());
    let descriptors = protox::compile(PROTOS, [&root])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
