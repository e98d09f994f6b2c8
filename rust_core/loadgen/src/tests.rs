//! Runs on tokio's virtual clock against a target with known delays: an hour of load takes as long
//! as its computing, and each figure has one right value.

use serde_json::{Value, json};
use tokio::time::{Duration, advance, sleep};
use tonic::Code;

use crate::{
    error::Error,
    result::{Latency, RunResult},
    testing::{Answer, Run, Target, run},
};

const BASE: Duration = Duration::from_millis(5);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn plan(rpc: &str, rate_per_s: u32, duration_s: u32) -> Value {
    json!({
        "rpc": rpc, "robots": 20, "connections": 4, "duration_s": duration_s, "width": 4,
        "schedule": {"shape": "constant", "rate_per_s": rate_per_s},
    })
}

fn with(mut plan: Value, changes: Value) -> Value {
    if let (Some(plan), Value::Object(changes)) = (plan.as_object_mut(), changes) {
        plan.extend(changes);
    }
    plan
}

fn near(found: u64, expected_ms: u64) {
    let expected = expected_ms as f64 * 1e3;
    let off = (found as f64 - expected).abs() / expected;
    assert!(off <= 0.02, "{found} µs is not {expected_ms} ms within 2 %");
}

fn accounted(result: &RunResult) {
    let errors: u64 = result.errors.values().sum();
    assert_eq!(result.planned, result.answered + errors + result.unsent, "{result:?}");
    let heard = result.acknowledged_total + result.unheard_total;
    assert!(heard <= result.sent_total, "{result:?}");
}

/// Delays of 100, 101, … 1,099 ms, each as often as the others.
fn known_delays() -> Target {
    Target::new(|n, _| Answer::After(ms(100 + n % 1_000)))
}

fn known(latency: &Latency) {
    near(latency.p50, 599);
    near(latency.p95, 1_049);
    near(latency.p99, 1_089);
    near(latency.p999, 1_098);
    near(latency.max, 1_099);
    assert!((latency.mean / 599_500.0 - 1.0).abs() <= 0.02, "{}", latency.mean);
}

#[tokio::test(start_paused = true)]
async fn percentiles_of_known_delays_are_right_within_two_percent() {
    for rpc in ["label", "label_stream"] {
        let result = run(&known_delays(), plan(rpc, 200, 10)).await;
        assert_eq!((result.planned, result.answered), (2_000, 2_000), "{rpc}");
        known(&result.latency_us);
        known(&result.latency_uncorrected_us);
        known(&result.server_us);
        assert!(result.valid, "{rpc}: {:?}", result.invalid_because);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_server_s_clock_does_not_see_is_told_call_by_call() {
    for rpc in ["label", "label_stream", "label_batch"] {
        let far = known_delays().with_transit(ms(30));
        let result = run(&far, with(plan(rpc, 100, 10), json!({"batch_rows": 1}))).await;
        assert_eq!(result.network_us.count, 1_000, "{rpc}");
        near(result.network_us.p50, 30);
        near(result.network_us.max, 30);
    }
}

#[tokio::test(start_paused = true)]
async fn robots_ask_the_plan_s_models_in_turn() {
    for rpc in ["label", "label_stream", "label_batch"] {
        let target = Target::new(|_, _| Answer::After(BASE));
        let changes = json!({"batch_rows": 20, "models": ["a", "b", "c", "d"]});
        let result = run(&target, with(plan(rpc, 100, 10), changes)).await;
        let shares: Vec<u64> = result.models.values().copied().collect();
        assert_eq!(result.models.keys().collect::<Vec<_>>(), ["a 1", "b 1", "c 1", "d 1"], "{rpc}");
        assert_eq!(shares, [result.answered / 4; 4], "{rpc}");
    }
}

/// Answers in `BASE`, but nothing in the second from 8 s on.
fn stalling() -> Target {
    Target::new(|_, at| {
        let stalled = at >= ms(8_000) && at < ms(9_000);
        Answer::After(BASE + if stalled { ms(9_000) - at } else { Duration::ZERO })
    })
}

#[tokio::test(start_paused = true)]
async fn a_stall_of_a_second_shows_in_full_where_the_uncorrected_figure_hides_it() {
    // The server takes five calls at once, so that those behind them are not sent in the stall.
    let target = stalling().with_streams_max(5);
    let plan = with(plan("label", 100, 20), json!({"connections": 1}));
    let result = run(&target, plan).await;
    assert_eq!(result.answered, 2_000);
    near(result.latency_us.max, 1_005);
    // One call in twenty is due in the stall; the worst fifth of those waits for 0.8 s and more.
    assert!(result.latency_us.p99 >= 800_000, "{:?}", result.latency_us);
    assert!(result.latency_uncorrected_us.p99 <= 10_000, "{:?}", result.latency_uncorrected_us);
    assert!(result.valid, "the server's stall is not the sender's: {:?}", result.invalid_because);
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_stood_still_shows_it_in_lag_and_latency_and_is_not_believed() {
    let target = Target::new(|_, _| Answer::After(BASE));
    let run = Run::ready(&target, plan("label", 100, 20)).await.unwrap();
    tokio::spawn(async {
        sleep(ms(5_000)).await;
        advance(ms(1_000)).await;
    });
    let result = run.fire().await;
    assert_eq!(result.answered, 2_000);
    assert!(result.latency_us.p99 >= 790_000, "{:?}", result.latency_us);
    assert!(result.latency_uncorrected_us.p99 <= 10_000, "{:?}", result.latency_uncorrected_us);
    assert!(result.schedule_lag_us.max >= 990_000, "{:?}", result.schedule_lag_us);
    let [reason] = result.invalid_because.as_slice() else { panic!("{result:?}") };
    assert!(reason.contains("lag_limit_ms"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_rate_that_was_not_reached_is_not_believed() {
    let target = Target::new(|_, _| Answer::After(BASE));
    let plan = with(plan("label", 200, 10), json!({"lag_limit_ms": 100_000}));
    let run = Run::ready(&target, plan).await.unwrap();
    tokio::spawn(async {
        sleep(ms(9_000)).await;
        advance(ms(2_000)).await;
    });
    let result = run.fire().await;
    let [reason] = result.invalid_because.as_slice() else { panic!("{result:?}") };
    assert!(reason.contains("labels/s were sent of 200.0 planned"), "{reason}");
    assert_eq!(result.planned, 2_000);
    assert!(result.unsent >= 190, "{}", result.unsent);
    accounted(&result);
}

#[tokio::test(start_paused = true)]
async fn rows_that_come_late_are_counted_and_the_run_is_not_believed() {
    let target = Target::new(|_, _| Answer::After(BASE));
    let changes = json!({"rows": "fed", "labels": ["stop", "go"], "lag_limit_ms": 100_000});
    let run = Run::ready(&target, with(plan("label", 10, 2), changes)).await.unwrap();
    let feed = run.shared.feed.clone().unwrap();
    let row = [0; 16];
    tokio::spawn(async move {
        for n in 0..20_i16 {
            // Each a tick before its time, but the fifth.
            feed.add(&row, &(n % 2).to_le_bytes(), &[]).unwrap();
            if n == 3 {
                sleep(ms(500)).await;
            } else if n > 4 {
                sleep(ms(90)).await;
            }
        }
    });
    let result = run.fire().await;
    let [reason] = result.invalid_because.as_slice() else { panic!("{result:?}") };
    assert!(reason.contains("fed rows came late"), "{reason}");
    assert_eq!((result.answered, result.judged, result.correct), (20, 20, 10));
    assert_eq!(result.accuracy, Some(0.5));
    assert_eq!(result.by_label["stop"]["stop"], 10);
    assert_eq!(result.by_label["go"]["stop"], 10);
}

#[tokio::test(start_paused = true)]
async fn a_busy_sender_is_not_believed() {
    let target = Target::new(|_, _| Answer::After(BASE));
    let run = Run::ready(&target, plan("label", 100, 1)).await.unwrap();
    let shared = run.shared.clone();
    run.fire().await;
    let used = |us| {
        let mut samples = shared.samples.lock();
        (samples.own_begin_us, samples.own_sent_us) = (Some(0.0), Some(us));
        drop(samples);
        crate::result::result(&shared, 0)
    };
    assert_eq!(used(800_000.0).invalid_because, Vec::<String>::new());
    let result = used(950_000.0);
    let [reason] = result.invalid_because.as_slice() else { panic!("{result:?}") };
    assert!(reason.contains("95 %"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_feed_that_ends_early_ends_the_run_and_the_rest_is_unfed() {
    let target = Target::new(|_, _| Answer::After(BASE));
    let run = Run::ready(&target, with(plan("label_stream", 10, 2), json!({"rows": "fed"})));
    let run = run.await.unwrap();
    let feed = run.shared.feed.clone().unwrap();
    feed.add(&[0; 16 * 7], &[0; 14], &[]).unwrap();
    feed.end();
    let result = run.fire().await;
    assert_eq!((result.planned, result.answered), (20, 7));
    assert_eq!(result.errors["UNFED"], 13);
    assert_eq!(target.received(), 7);
    accounted(&result);
}

#[tokio::test(start_paused = true)]
async fn the_warm_up_is_sent_and_left_out_of_all_figures() {
    // It is slow in the warm-up alone.
    let target = Target::new(|n, _| Answer::After(if n < 100 { ms(900) } else { ms(100) }));
    let result = run(&target, with(plan("label", 50, 4), json!({"warmup_s": 2}))).await;
    assert_eq!(target.received(), 300);
    assert_eq!((result.planned, result.answered), (200, 200));
    assert_eq!((result.acknowledged_total, result.sent_total, result.unheard_total), (300, 300, 0));
    near(result.latency_us.max, 100);
    assert_eq!(result.elapsed_s, 4.0);
    assert_eq!(result.rate_reached_per_s, 50.0);
}

#[tokio::test(start_paused = true)]
async fn errors_are_counted_by_their_kind() {
    let codes = [Code::ResourceExhausted, Code::DeadlineExceeded, Code::Internal];
    for rpc in ["label", "label_stream", "label_batch"] {
        let target = Target::new(move |n, _| match n % 4 {
            0 => Answer::After(BASE),
            k => Answer::Refuse(codes[k as usize - 1]),
        });
        let result = run(&target, with(plan(rpc, 10, 4), json!({"batch_rows": 10}))).await;
        let each = if rpc == "label_batch" { 100 } else { 10 };
        assert_eq!(result.answered, each, "{rpc}");
        for kind in ["RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "INTERNAL"] {
            assert_eq!(result.errors[kind], each, "{rpc}");
        }
        assert_eq!(result.unheard_total, 0, "{rpc}: the server said so");
        accounted(&result);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_never_answered_times_out_and_the_run_ends_on_time() {
    // Of a call this server says itself that its time is over, in its own way.
    for (rpc, kind) in [("label", "CANCELLED"), ("label_stream", "TIMEOUT")] {
        let target =
            Target::new(|n, _| if n % 2 == 0 { Answer::After(BASE) } else { Answer::Never });
        let ready = Run::ready(&target, with(plan(rpc, 100, 3), json!({"timeout_ms": 400})));
        let run = ready.await.unwrap();
        let shared = run.shared.clone();
        let result = run.fire().await;
        assert_eq!((result.answered, result.errors[kind]), (150, 150), "{rpc}");
        assert_eq!(result.unheard_total, if kind == "TIMEOUT" { 150 } else { 0 }, "{rpc}");
        // The last call was due at 2,990 ms; the server gives it up 400 ms later, the sender 450.
        let end_ms = shared.clock().now_ns() / 1_000_000;
        assert!((3_390..=3_700).contains(&end_ms), "{rpc}: {end_ms}");
        accounted(&result);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_waits_for_what_is_under_way() {
    let target = Target::new(|_, _| Answer::After(ms(700)));
    let run = Run::ready(&target, plan("label", 100, 60)).await.unwrap();
    let stop = run.stop.clone();
    tokio::spawn(async move {
        sleep(ms(2_020)).await;
        stop.send_replace(true);
    });
    let result = run.fire().await;
    assert!((195..=205).contains(&result.planned), "{}", result.planned);
    assert_eq!(result.answered, result.planned);
    assert!(result.valid, "{:?}", result.invalid_because);
}

#[tokio::test(start_paused = true)]
async fn a_closed_loop_keeps_its_calls_under_way_and_says_that_it_is_one() {
    for rpc in ["label", "label_stream"] {
        let target = Target::new(|_, _| Answer::After(ms(100)));
        let schedule = json!({"schedule": {"shape": "saturate", "in_flight": 32}});
        let result = run(&target, with(plan(rpc, 1, 10), schedule)).await;
        // 32 every 100 ms, within the milliseconds of tokio's clock.
        assert!((3_100..=3_232).contains(&result.answered), "{rpc}: {}", result.answered);
        assert!(result.closed_loop);
        assert!(result.valid, "{rpc}: {:?}", result.invalid_because);
        accounted(&result);
    }
}

#[tokio::test(start_paused = true)]
async fn labels_are_read_back_where_that_is_served_and_counted_where_it_is_not() {
    let target = Target::new(|_, _| Answer::Never);
    let get = run(&target, with(plan("get_label", 10, 2), json!({"first_sequence": 5}))).await;
    assert_eq!((get.answered, get.latency_us.count), (20, 20));
    let list = run(&target, plan("list_labels", 10, 2)).await;
    assert_eq!((list.answered, list.errors["UNIMPLEMENTED"]), (0, 20));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_too_few_streams_says_how_many_connections_it_needs() {
    let target = Target::new(|_, _| Answer::After(BASE)).with_streams_max(3);
    match Run::ready(&target, plan("label_stream", 10, 2)).await.map(drop) {
        Err(Error::NotReady { reason, .. }) => {
            assert!(reason.contains("use 7 connections"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_counted_and_made_again() {
    for rpc in ["label", "label_stream"] {
        let target = Target::new(|_, _| Answer::After(ms(50))).with_life(ms(1_000));
        let result = run(&target, plan(rpc, 200, 4)).await;
        // Under way when it broke, and due before it was up again: some of each at every break.
        for kind in ["TRANSPORT", "UNAVAILABLE"] {
            assert!((3..=100).contains(&result.errors[kind]), "{rpc}: {:?}", result.errors);
        }
        assert_eq!(result.unheard_total, result.errors["TRANSPORT"], "{rpc}");
        assert!(result.answered > 600, "{rpc}: {}", result.answered);
        assert!(result.valid, "{rpc}: {:?}", result.invalid_because);
        accounted(&result);
    }
}
