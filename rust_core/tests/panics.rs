//! A panic in each stage and in each long-lived thread or task, one by one (TRAPS 13): who waits is
//! told, what ends is said, and nothing is alive and deaf.
//!
//! The hook is `labeler_core::faults`, which only the feature `faults` arms: no release can.
//! The engine and its transport are the real ones, in this process: what is tested is what runs.

mod support;

use std::time::Duration;

use labeler_core::{
    account::{Counts, Method},
    control::Ask,
    life::State,
    proto,
};
use support::{Client, Ended, Served, eventually, failure, request, within};

const OK: Option<i32> = Some(0);
const INTERNAL: Option<i32> = Some(13);

/// A label that nobody else's panic touches.
fn goes_on(served: &Served, client: &Client, sequence: u64) {
    assert_eq!(client.label(sequence), OK, "the next call on the same connection");
    assert_eq!(Client::connect(served).label(sequence + 1), OK, "a call on another");
    assert_eq!(served.engine.life.state(), State::Serving);
    balanced(served);
}

fn balanced(served: &Served) {
    eventually("nothing is in flight", || served.in_flight() == 0);
    for method in Method::ALL {
        let Counts { received, answered, rejected, expired, cancelled, failed, in_flight } =
            served.engine.shared.accounts.counts(method);
        let parts = answered + rejected + expired + cancelled + failed + in_flight;
        assert_eq!(received, parts, "{}", method.name());
    }
}

fn failed(served: &Served, method: Method) -> u64 {
    served.engine.shared.accounts.counts(method).failed
}

#[test]
fn a_panic_in_a_stage_fails_its_request_alone() {
    let Some(served) = Served::start() else { return };
    let client = Client::connect(&served);
    for (n, point) in ["decode", "admit", "cache", "queue", "infer", "encode"].iter().enumerate() {
        let sequence = 10 * (n as u64 + 1);
        assert_eq!(served.hit(point, || client.label(sequence)), INTERNAL, "{point}");
        assert_eq!(failed(&served, Method::Label), n as u64 + 1, "{point} is counted");
        goes_on(&served, &client, sequence + 1);
    }
}

#[test]
fn a_panic_in_a_row_fails_that_row_of_its_batch() {
    let Some(served) = Served::start() else { return };
    let client = Client::connect(&served);
    for (n, point) in ["admit", "cache", "queue", "encode"].iter().enumerate() {
        let first = 100 * (n as u64 + 1);
        let requests = (first..first + 5).map(request).collect();
        let batch = proto::LabelBatchRequest { requests };
        let ended: Ended<proto::LabelBatchResponse> =
            served.hit(point, || client.unary("LabelBatch", &batch));
        assert_eq!(ended.code, OK, "{point}");
        let codes = ended.messages[0].results.iter().map(|row| match &row.result {
            Some(proto::label_result::Result::Error(error)) => error.code as i32,
            _ => 0,
        });
        let mut codes: Vec<_> = codes.collect();
        codes.sort_unstable();
        assert_eq!(codes, [0, 0, 0, 0, 13], "{point}");
        goes_on(&served, &client, first + 50);
    }
}

#[test]
fn a_panic_in_a_message_fails_that_message_of_its_stream() {
    let Some(served) = Served::start() else { return };
    let client = Client::connect(&served);
    for (n, point) in ["decode", "admit", "cache", "queue", "encode"].iter().enumerate() {
        let first = 100 * (n as u64 + 1);
        let messages: Vec<_> = (first..first + 5).map(request).collect();
        let ended = served.hit(point, || client.stream(&messages));
        assert_eq!((ended.code, ended.messages.len()), (OK, 5), "{point}");
        let failed = ended.messages.iter().filter_map(|message| match &message.result {
            Some(proto::label_stream_response::Result::Error(error)) => Some(error.code),
            _ => None,
        });
        assert_eq!(failed.collect::<Vec<_>>(), [13], "{point}");
        goes_on(&served, &client, first + 50);
    }
}

#[test]
fn a_stream_whose_task_panics_ends_with_an_error_and_not_as_if_all_were_answered() {
    let Some(served) = Served::start() else { return };
    let client = Client::connect(&served);
    let ended = served.hit("stream", || client.stream(&[request(1)]));
    assert_eq!((ended.code, ended.messages.len()), (INTERNAL, 0));
    goes_on(&served, &client, 10);
}

#[test]
fn a_panic_in_a_connections_own_code_ends_that_connection() {
    let Some(served) = Served::start() else { return };
    let lasting = Client::connect(&served);
    assert_eq!(lasting.label(1), OK);
    served.hit("connection", || Client::try_connect(&served.engine.grpc_address()));
    goes_on(&served, &lasting, 2);
    let gauges = &served.engine.shared.gauges;
    let open = || gauges.connections.load(std::sync::atomic::Ordering::Acquire);
    eventually("its place is free again", || open() <= 2);
}

#[test]
fn a_control_request_that_panics_fails_alone_and_its_place_is_free_again() {
    let Some(served) = Served::start() else { return };
    let client = Client::connect(&served);
    let get = proto::GetLabelRequest { robot_id: "robot".to_owned(), sequence: Some(1) };
    let ended: Ended<proto::GetLabelResponse> =
        served.hit("control", || client.unary("GetLabel", &get));
    assert_eq!(ended.code, INTERNAL);
    assert_eq!(served.engine.shared.control.counts().0, 0);
    goes_on(&served, &client, 10);
}

#[test]
fn a_taker_that_panics_loses_no_control_request() {
    let Some(served) = Served::start() else { return };
    let control = &served.engine.shared.control;
    let client = Client::connect(&served);
    let asking = std::thread::spawn(move || {
        let get = proto::GetLabelRequest { robot_id: "robot".to_owned(), sequence: Some(1) };
        client.unary::<proto::GetLabelResponse>("GetLabel", &get).code
    });
    eventually("it is asked", || control.counts().0 == 1);
    let take = || control.take(8, Duration::from_secs(20));
    let taking = std::panic::AssertUnwindSafe(take);
    assert!(served.hit("control take", || std::panic::catch_unwind(taking)).is_err());
    let taken = take().unwrap();
    assert!(matches!(taken[..], [labeler_core::control::Asked { ask: Ask::Get(_), .. }]));
    control.answer(taken[0].id, Err(labeler_core::Error::Stopped));
    assert_eq!(asking.join().unwrap(), Some(14));
}

#[test]
fn a_model_that_makes_the_loader_panic_is_refused_and_the_service_goes_on() {
    let Some(served) = Served::start() else { return };
    let client = Client::connect(&served);
    let load = || served.engine.serving.load("wall-following", "", false);
    let error = served.hit("load", load).unwrap_err();
    assert!(error.to_string().contains("fault point load"), "{error}");
    goes_on(&served, &client, 1);
    assert!(load().is_ok(), "its name and its thread's place are free again");
}

/// Sends calls that wait in the part that panics; all of them are told, long before their deadline.
fn all_are_told(point: &'static str) {
    let Some(served) = Served::start() else { return };
    let client = Client::connect(&served);
    assert_eq!(client.label(1), OK);
    let batch = proto::LabelBatchRequest { requests: (100..200).map(request).collect() };
    let ended: Ended<proto::LabelBatchResponse> =
        served.hit(point, || client.unary("LabelBatch", &batch));
    let codes = ended.messages[0].results.iter().map(|row| match &row.result {
        Some(proto::label_result::Result::Error(error)) => error.code as i32,
        _ => 0,
    });
    let codes: Vec<_> = codes.collect();
    assert!(codes.contains(&13), "{point}: somebody's part is gone: {codes:?}");
    // Not one waited for its deadline. Those that were answered before are answered.
    assert!(codes.iter().all(|code| [0, 13, 14].contains(code)), "{point}: {codes:?}");
    assert!(failure(&served.engine).contains("fault point"));
    eventually("new calls are refused", || client.label(2) == Some(14));
    balanced(&served);
}

#[test]
fn an_inference_thread_that_ends_tells_who_waits_and_ends_the_service() {
    all_are_told("batch");
}

#[test]
fn a_panic_between_model_and_journal_tells_who_waits_and_ends_the_service() {
    all_are_told("journal");
}

#[test]
fn a_committer_that_ends_before_its_write_tells_who_waits_and_ends_the_service() {
    all_are_told("commit");
}

#[test]
fn a_committer_that_ends_while_it_tells_of_a_commit_tells_all_of_it() {
    all_are_told("settle");
}

#[test]
fn an_accept_loop_that_ends_ends_the_service() {
    let Some(served) = Served::start() else { return };
    let client = Client::connect(&served);
    assert_eq!(client.label(1), OK);
    served.hit("accept", || Client::try_connect(&served.engine.grpc_address()));
    assert!(failure(&served.engine).contains("fault point accept"));
    eventually("new calls are refused", || client.label(2) == Some(14));
}

#[test]
fn the_timers_tick_that_ends_ends_the_service() {
    let Some(served) = Served::start() else { return };
    served.hit("tick", || ());
    assert!(failure(&served.engine).contains("fault point tick"));
}

#[test]
fn a_drain_that_panics_fails_the_service_and_its_stop_returns() {
    let Some(served) = Served::start() else { return };
    let client = Client::connect(&served);
    assert_eq!(client.label(1), OK);
    served.hit("drain", || served.engine.drain());
    assert!(failure(&served.engine).contains("fault point drain"));
    served.engine.stop().unwrap();
}

#[test]
fn a_part_that_ends_in_the_lame_duck_time_ends_admission_too() {
    let Some(served) = Served::with_lame_duck(5_000) else { return };
    let (client, address) = (Client::connect(&served), served.engine.grpc_address());
    served.engine.drain();
    assert_eq!(client.label(1), OK, "still open, as balancers expect");
    served.hit("accept", || Client::try_connect(&address));
    assert!(failure(&served.engine).contains("fault point accept"));
    // At its end the lame duck refuses them anyhow.
    let limit = Duration::from_secs(3);
    within(limit, "new calls are refused", || client.label(2) == Some(14));
}
