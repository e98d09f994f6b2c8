//! The sender: unary `Label` calls, open loop at a rate or closed loop at a concurrency.
//!
//! `load ADDRESS PID SECONDS DURABILITY rate=N|concurrency=N`. Latency counts from the *intended*
//! send time, so a late send does not hide. Server CPU is read from the process' own accounts.
//! Prints one JSON object.

#![allow(clippy::print_stdout)]

use std::{
    env,
    error::Error,
    fs,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use hdrhistogram::Histogram;
use labeler_core::proto::{self, label_service_client::LabelServiceClient};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

const CONNECTIONS: usize = 16;
const WIDTH: usize = 24;
/// Kernel clock ticks a second, which Linux fixes at 100 for user space.
const TICK_US: f64 = 10_000.0;

type Client = LabelServiceClient<Channel>;
type Failure = Box<dyn Error + Send + Sync>;

#[derive(Clone, Copy)]
enum Load {
    Rate(u64),
    Concurrency(usize),
}

struct Seen {
    latency_us: Histogram<u64>,
    lag_us: Histogram<u64>,
    errors: u64,
}

impl Seen {
    fn new() -> Result<Self, Failure> {
        let new = || Histogram::new_with_max(60_000_000, 3);
        Ok(Self { latency_us: new()?, lag_us: new()?, errors: 0 })
    }

    fn add(&mut self, other: &Seen) -> Result<(), Failure> {
        self.latency_us.add(&other.latency_us)?;
        self.lag_us.add(&other.lag_us)?;
        self.errors += other.errors;
        Ok(())
    }
}

fn main() -> Result<(), Failure> {
    const USAGE: &str = "usage: load ADDRESS PID SECONDS DURABILITY rate=N|concurrency=N";
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address, pid, seconds, durability, load] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let load = match load.split_once('=') {
        Some(("rate", n)) => Load::Rate(n.parse()?),
        Some(("concurrency", n)) => Load::Concurrency(n.parse()?),
        _ => return Err(USAGE.into()),
    };
    let durability = proto::Durability::from_str_name(&format!("DURABILITY_{durability}"))
        .ok_or("DURABILITY is BUFFERED, JOURNALED or STORED")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(address, pid, Duration::from_secs_f64(seconds.parse()?), durability, load))
}

async fn run(
    address: &str,
    pid: &str,
    time: Duration,
    durability: proto::Durability,
    load: Load,
) -> Result<(), Failure> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
        clients.push(LabelServiceClient::new(endpoint.connect().await?));
    }
    let first = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64;
    let template = Arc::new(proto::LabelRequest {
        durability: durability.into(),
        timeout_us: 5_000_000,
        ..proto::LabelRequest::default()
    });
    let sender = |robot: usize| Sender { template: template.clone(), robot, first };
    let before = Cpu::of(pid)?;
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    match load {
        Load::Rate(rate) => {
            let every = Duration::from_secs_f64(CONNECTIONS as f64 / rate as f64);
            for (robot, client) in clients.into_iter().enumerate() {
                let offset = every.mul_f64(robot as f64 / CONNECTIONS as f64);
                tasks.spawn(open_loop(client, sender(robot), begin + offset, every, begin + time));
            }
        }
        Load::Concurrency(concurrency) => {
            for robot in 0..concurrency {
                let client = clients[robot % CONNECTIONS].clone();
                tasks.spawn(closed_loop(client, sender(robot), begin + time));
            }
        }
    }
    let mut seen = Seen::new()?;
    while let Some(one) = tasks.join_next().await {
        seen.add(&one??)?;
    }
    let (took, after) = (begin.elapsed(), Cpu::of(pid)?);
    let total_us = after.total_us - before.total_us;
    print(&seen, took, Cpu { total_us, path_us: after.path_us - before.path_us });
    Ok(())
}

struct Sender {
    template: Arc<proto::LabelRequest>,
    robot: usize,
    first: u64,
}

impl Sender {
    fn request(&self, index: u64) -> proto::LabelRequest {
        let value = |i| 0.4 + ((index * 31 + i * 7 + self.robot as u64) % 460) as f32 / 100.0;
        let floats = (0..WIDTH as u64).map(value).collect();
        proto::LabelRequest {
            robot_id: format!("robot-{}", self.robot),
            sequence: Some(self.first + index),
            payload: Some(proto::Payload { floats, ..proto::Payload::default() }),
            ..(*self.template).clone()
        }
    }
}

async fn open_loop(
    client: Client,
    sender: Sender,
    begin: Instant,
    every: Duration,
    end: Instant,
) -> Result<Seen, Failure> {
    let mut seen = Seen::new()?;
    let mut calls = JoinSet::new();
    for index in 0.. {
        let intended = begin + every.mul_f64(index as f64);
        if intended >= end {
            break;
        }
        tokio::time::sleep_until(intended.into()).await;
        seen.lag_us.saturating_record(intended.elapsed().as_micros() as u64);
        let (mut client, request) = (client.clone(), sender.request(index));
        calls.spawn(async move { (client.label(request).await.is_ok(), intended.elapsed()) });
        while let Some(done) = calls.try_join_next() {
            record(&mut seen, done?);
        }
    }
    while let Some(done) = calls.join_next().await {
        record(&mut seen, done?);
    }
    Ok(seen)
}

async fn closed_loop(mut client: Client, sender: Sender, end: Instant) -> Result<Seen, Failure> {
    let mut seen = Seen::new()?;
    for index in 0.. {
        let begin = Instant::now();
        if begin >= end {
            break;
        }
        let ok = client.label(sender.request(index)).await.is_ok();
        record(&mut seen, (ok, begin.elapsed()));
    }
    Ok(seen)
}

fn record(seen: &mut Seen, (ok, latency): (bool, Duration)) {
    seen.latency_us.saturating_record(latency.as_micros() as u64);
    seen.errors += u64::from(!ok);
}

/// CPU of the process so far, and of it that of the label path's own threads; µs.
#[derive(Clone, Copy)]
struct Cpu {
    total_us: f64,
    path_us: f64,
}

impl Cpu {
    fn of(pid: &str) -> Result<Self, Failure> {
        let total_us = thread(&format!("/proc/{pid}/stat"))?.1;
        let mut path_us = 0.0;
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            // A thread may have ended since it was listed.
            let stat = task?.path().join("stat");
            let Ok((name, us)) = thread(&stat.to_string_lossy()) else { continue };
            if PATH_THREADS.iter().any(|prefix| name.starts_with(prefix)) {
                path_us += us;
            }
        }
        Ok(Self { total_us, path_us })
    }
}

const PATH_THREADS: [&str; 3] = ["transport", "infer-", "committer"];

fn thread(stat: &str) -> Result<(String, f64), Failure> {
    let stat = fs::read_to_string(stat)?;
    // The name may hold spaces; what follows its closing parenthesis does not.
    let (name, fields) = stat.rsplit_once(')').ok_or("no name")?;
    let name = name.split_once('(').ok_or("no name")?.1.to_owned();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok((name, ticks * TICK_US))
}

fn print(seen: &Seen, took: Duration, cpu: Cpu) {
    let calls = seen.latency_us.len();
    let at = |q| seen.latency_us.value_at_quantile(q);
    let result = serde_json::json!({
        "calls": calls,
        "errors": seen.errors,
        "calls_per_s": calls as f64 / took.as_secs_f64(),
        "client_latency_us_p50": at(0.5),
        "client_latency_us_p99": at(0.99),
        "client_latency_us_p999": at(0.999),
        "schedule_lag_us_p99": seen.lag_us.value_at_quantile(0.99),
        "server_cpu_us_per_label": cpu.total_us / calls.max(1) as f64,
        "path_cpu_us_per_label": cpu.path_us / calls.max(1) as f64,
    });
    println!("{result}");
}
