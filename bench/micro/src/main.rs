//! `micro LIBRARY ROOT [sites]`: what a label costs in allocations and calls, counted, not timed.
//!
//! The real engine answers labels over loopback in this process, whose allocator and whose calls to
//! the system are counted by thread. Prints one JSON object; with `sites`, where the label path
//! allocates. LIBRARY is ONNX Runtime's, ROOT the project, whose packaged model answers.

use std::{path::Path, process::ExitCode};

use serde_json::{Map, Value, json};

mod calls;
mod client;
mod heap;
mod loads;
mod served;
mod sites;
mod threads;

use client::Failure;
use loads::LOADS;
use served::Served;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

#[allow(clippy::print_stdout, clippy::print_stderr)]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = match arguments.as_slice() {
        [library, root] => counted(library, root),
        [library, root, "sites"] => sites(library, root),
        _ => Err("usage: micro LIBRARY ROOT [sites]".into()),
    };
    match said {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("micro: {error}");
            ExitCode::FAILURE
        }
    }
}

fn counted(library: &str, root: &str) -> Result<String, Failure> {
    let served = Served::start(Path::new(library), Path::new(root))?;
    let mut found = Map::new();
    for load in &LOADS {
        found.insert(load.name.to_owned(), loads::counted(&served, load)?);
    }
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    Ok(json!({ "profile": profile, "loads": Value::Object(found) }).to_string())
}

fn sites(library: &str, root: &str) -> Result<String, Failure> {
    let served = Served::start(Path::new(library), Path::new(root))?;
    let of = |load: &loads::Load| {
        let sites = loads::allocation_sites(&served, load)?;
        Ok::<_, Failure>(format!("{}: allocations a label by site\n{sites}", load.name))
    };
    Ok(LOADS.iter().map(of).collect::<Result<Vec<_>, _>>()?.join("\n"))
}
