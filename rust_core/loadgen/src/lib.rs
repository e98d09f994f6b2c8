//! `labeler-loadgen`: the open-loop sender, for robots that are not there.
//!
//! plan ▸ schedule ▸ rows ▸ wire ▸ connections ▸ tally ▸ result; `run` is the wiring and `Sender`
//! what users hold. Calls are sent at times that were fixed before the first of them, whatever the
//! server does, and latency counts from those. Of the core it knows the messages of the protos and
//! nothing else; it takes them from there, since what uses it links the core already, and a second
//! copy of the generated code would be larger than what the linker leaves of the rest.

#![forbid(unsafe_code)]

mod acks;
mod calls;
mod connection;
mod error;
mod fire;
mod flag;
mod http1;
mod kinds;
mod kserve;
mod pace;
mod plan;
mod result;
mod rows;
mod run;
mod sampler;
mod schedule;
mod sender;
mod streams;
mod tally;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod wire;

pub use error::{Error, Result};
pub use plan::Plan;
pub use result::{RunResult, Snapshot};
pub use sender::Sender;
