//! Instructions of the label path's parts, counted by valgrind: decode, encode, batch assembly,
//! the journal's framing and its commit.
//!
//! Each measures the function that serves, on inputs that are the same in every run. A time is
//! never taken here: counts are steadier than times.

#![allow(missing_docs, reason = "a benchmark's macros make public items")]

use std::hint::black_box;

use bytes::Bytes;
use gungraun::{library_benchmark, library_benchmark_group, main};
use labeler_core::{
    journal::format::{GroupBuilder, Place},
    label::{Priority, Request},
    path::{Batches as _, Entry, Formed, batch::Queue},
    row_record,
    transport::{codec::Received, wire},
};

mod inputs;

use inputs::{Commit, Incoming, Outgoing, Waiting};

#[library_benchmark]
#[bench::floats(args = [inputs::floats()], setup = inputs::incoming)]
#[bench::doubles(args = [inputs::doubles()], setup = inputs::incoming)]
#[bench::raw_float32(args = [inputs::raw(false)], setup = inputs::incoming)]
#[bench::raw_float64(args = [inputs::raw(true)], setup = inputs::incoming)]
fn decode(mut incoming: Incoming) -> (Request, Incoming) {
    let Received { message: Ok(message), .. } = incoming.message() else {
        unreachable!("the message is a request")
    };
    let request = wire::request(message, Priority::Robot);
    (black_box(request).unwrap_or_else(|error| unreachable!("{error}")), incoming)
}

#[library_benchmark]
#[bench::unary(setup = inputs::unary)]
#[bench::stream_message(setup = inputs::stream_message)]
#[bench::batch_of_100(setup = inputs::rows)]
fn encode(outgoing: Outgoing) -> Bytes {
    black_box(outgoing.encoded())
}

#[library_benchmark]
#[bench::rows_1(args = [1], setup = inputs::waiting)]
#[bench::rows_8(args = [8], setup = inputs::waiting)]
fn batch(waiting: Waiting) -> (Formed, Queue) {
    let Waiting { queue, entries, mut formed } = waiting;
    entries.into_iter().for_each(|entry: Entry| assert!(queue.push(entry).is_ok()));
    assert!(queue.next(&mut formed), "rows wait");
    (black_box(formed), queue)
}

#[library_benchmark]
#[bench::of_a_row(setup = inputs::answered)]
fn record(row: inputs::Answered) -> (Vec<u8>, inputs::Answered) {
    let mut body = Vec::new();
    row_record::encode(&row.0.asked, &row.1, 1_700_000_000_000_000, &mut body);
    (black_box(body), row)
}

#[library_benchmark]
#[bench::records_8(args = [8], setup = inputs::bodies)]
fn frame(bodies: Vec<Vec<u8>>) -> (GroupBuilder, Vec<Vec<u8>>) {
    let mut group = GroupBuilder::default();
    bodies.iter().for_each(|body| group.record(body));
    let place = Place { segment: 1, offset: 4096 };
    black_box(group.finish(7, place, 1, place));
    (group, bodies)
}

#[library_benchmark]
#[bench::records_1(args = [1], setup = inputs::commit)]
#[bench::records_8(args = [8], setup = inputs::commit)]
fn commit(commit: Commit) -> Commit {
    black_box(commit.committed())
}

#[library_benchmark]
#[bench::floats(setup = inputs::payload)]
fn values(
    (version, mut payload): (inputs::SharedVersion, labeler_core::label::Payload),
) -> (Vec<f32>, inputs::SharedVersion, labeler_core::label::Payload) {
    let values = version.values(&mut payload);
    (black_box(values).unwrap_or_else(|error| unreachable!("{error}")), version, payload)
}

library_benchmark_group!(
    name = path,
    benchmarks = [decode, values, batch, record, frame, commit, encode]
);
main!(library_benchmark_groups = path);
