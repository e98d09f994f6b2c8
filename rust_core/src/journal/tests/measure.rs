//! One figure: CPU a record, kernel included, for append, commit, take and confirm together.
//!
//! Ignored, since it measures and asserts nothing. Run it in release, by its name, with
//! `--nocapture`.

use std::time::Instant;

use super::*;

const BODY_BYTES: usize = 250;

fn cpu_us() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    ticks * 10_000
}

#[allow(clippy::print_stdout, reason = "the figure is its purpose")]
fn measure(rate_per_s: u64, group_rows: u64, duration: Duration) {
    let directory = tempfile::tempdir().unwrap();
    let config = JournalConfig {
        directory: directory.path().to_path_buf(),
        segment_bytes: 16 << 20,
        disk_bytes_max: 512 << 20,
        memory_bytes_max: 16 << 20,
        commit_gap_us_min: 1000,
        copy_forward_live_pct: 25,
        reserve_bytes: 1 << 20,
        pending_age_ms_max: 0,
    };
    let Opened { journal, committer, .. } = open(config, Arc::new(SystemFiles)).unwrap();
    let thread = std::thread::spawn(move || committer.run());
    let taker = journal.clone();
    let writer = std::thread::spawn(move || {
        while let Ok(rows) = taker.take(250, 1 << 20, Duration::from_millis(100)) {
            let numbers: Vec<u64> = rows.iter().map(|(number, _)| *number).collect();
            taker.confirm(&numbers, Outcome::Stored);
            // A store takes its time; batches fill meanwhile.
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let (began, cpu) = (Instant::now(), cpu_us());
    let (mut rows, mut refused) = (0, 0);
    while began.elapsed() < duration {
        let due = Duration::from_micros(rows * 1_000_000 / rate_per_s);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let reservations: Result<Vec<_>> =
            (0..group_rows).map(|_| journal.reserve(BODY_BYTES)).collect();
        let bodies = (0..group_rows).map(|row| vec![row as u8; BODY_BYTES]).collect();
        match reservations {
            Ok(held) => drop(journal.append(bodies, held, Box::new(|_| {})).unwrap()),
            Err(_) => refused += group_rows,
        }
        rows += group_rows;
    }
    let spent = cpu_us() - cpu;
    let stats = journal.stats();
    let quantile = |q| stats.commit_us.value_at_quantile(q);
    println!(
        "{rate_per_s}/s in groups of {group_rows}: {:.1} µs CPU a record, {} commits, p50 {} \
         p99 {} p99.9 {} µs, refused {refused}, {} segments",
        spent as f64 / rows as f64,
        stats.commits_total,
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
        stats.segments,
    );
    journal.close(Duration::from_secs(10)).unwrap();
    thread.join().unwrap().unwrap();
    writer.join().unwrap();
}

#[test]
#[ignore = "measures, asserts nothing"]
fn measures_cpu_a_record() {
    measure(20_000, 10, Duration::from_secs(10));
    measure(2_300, 2, Duration::from_secs(10));
}
