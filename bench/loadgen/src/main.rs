//! `loadgen PLAN.json|- [--histograms DIR]`: one run of the sender, its result as one JSON object.
//!
//! Exit codes: 0 for a run (valid or not: the result says), 1 for a plan or a file that does not
//! do, 69 when nobody answers.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::{fs, io::Read as _, path::PathBuf, process::ExitCode, time::Duration};

use labeler_loadgen::{Error, Sender};

const USAGE: &str = "usage: loadgen PLAN.json|- [--histograms DIR]";
const EXIT_UNAVAILABLE: u8 = 69;
const LOOK: Duration = Duration::from_secs(3_600);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (plan, histograms) = match arguments.as_slice() {
        [plan] => (plan, None),
        [plan, flag, directory] if flag == "--histograms" => (plan, Some(PathBuf::from(directory))),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    match run(plan, histograms) {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(Failure::Run(error @ Error::NotReady { .. })) => {
            eprintln!("loadgen: {error}");
            ExitCode::from(EXIT_UNAVAILABLE)
        }
        Err(Failure::Run(error)) => {
            eprintln!("loadgen: {error}");
            ExitCode::FAILURE
        }
        Err(Failure::Read(error)) => {
            eprintln!("loadgen: {plan}: {error}");
            ExitCode::FAILURE
        }
    }
}

enum Failure {
    Run(Error),
    Read(std::io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Run(error)
    }
}

/// As many open files as may be: each connection is one.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Where it stays as it is, a connection that is too many says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn run(plan: &str, histograms: Option<PathBuf>) -> Result<String, Failure> {
    raise_open_files();
    let sender = Sender::new(&read(plan).map_err(Failure::Read)?)?;
    sender.connect()?;
    sender.fire()?;
    while !sender.wait(LOOK) {}
    if let Some(directory) = histograms {
        sender.write_histograms(&directory)?;
    }
    Ok(serde_json::json!(sender.result()?).to_string())
}

fn read(plan: &str) -> std::io::Result<String> {
    if plan != "-" {
        return fs::read_to_string(plan);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}
