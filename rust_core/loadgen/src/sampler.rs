//! CPU and memory of the server, and CPU of the sender's own threads, from the kernel's accounts.
//!
//! Linux only; elsewhere there is nothing to read, and the result says nothing of it.

use std::fs;

use parking_lot::Mutex;

/// CPU and memory of a process at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Of all its threads, µs; the kernel counts in hundredths of a second.
    pub user_us: f64,
    /// In the kernel on its behalf, µs.
    pub system_us: f64,
    /// Memory in use.
    pub rss_bytes: u64,
}

/// Reads a process; `None` where there is none.
pub fn process(pid: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let memory = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    // The name may hold spaces; what follows its closing parenthesis does not.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks_us = || Some(fields.next()?.parse::<f64>().ok()? * tick_us());
    let pages: u64 = memory.split_whitespace().nth(1)?.parse().ok()?;
    Some(Usage { user_us: ticks_us()?, system_us: ticks_us()?, rss_bytes: pages * page_bytes() })
}

/// Several processes of one server, summed; `None` where one of them is not there.
pub fn processes(pids: &[u32]) -> Option<Usage> {
    let (first, others) = pids.split_first()?;
    let mut all = process(*first)?;
    for other in others {
        let usage = process(*other)?;
        all.user_us += usage.user_us;
        all.system_us += usage.system_us;
        all.rss_bytes += usage.rss_bytes;
    }
    Some(all)
}

#[cfg(target_os = "linux")]
fn tick_us() -> f64 {
    1e6 / rustix::param::clock_ticks_per_second() as f64
}

#[cfg(target_os = "linux")]
fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(not(target_os = "linux"))]
fn tick_us() -> f64 {
    0.0
}

#[cfg(not(target_os = "linux"))]
fn page_bytes() -> u64 {
    0
}

/// The sender's threads: each tells of itself when it starts.
#[derive(Debug, Default)]
pub struct Threads {
    ids: Mutex<Vec<i32>>,
}

impl Threads {
    /// Adds the calling thread.
    pub fn add_this(&self) {
        #[cfg(target_os = "linux")]
        self.ids.lock().push(rustix::thread::gettid().as_raw_nonzero().get());
    }

    /// CPU of them all so far, µs.
    pub fn cpu_us(&self) -> Option<f64> {
        let mut total_ns = 0;
        for id in self.ids.lock().iter() {
            let accounts = fs::read_to_string(format!("/proc/self/task/{id}/schedstat")).ok()?;
            total_ns += accounts.split_whitespace().next()?.parse::<u64>().ok()?;
        }
        (total_ns > 0).then_some(total_ns as f64 / 1e3)
    }
}

/// What was read in the course of a run.
#[derive(Debug, Default, Clone, Copy)]
pub struct Samples {
    /// The server when the measured part began, and last.
    pub server: Option<(Usage, Usage)>,
    /// The most memory that was seen.
    pub rss_bytes_max: u64,
    /// The sender's CPU when the measured part began.
    pub own_begin_us: Option<f64>,
    /// When the last call was sent.
    pub own_sent_us: Option<f64>,
    /// When the last reply had come.
    pub own_end_us: Option<f64>,
}

impl Samples {
    /// The measured part begins.
    pub fn begin(&mut self, pids: &[u32], own_us: Option<f64>) {
        self.own_begin_us = own_us;
        self.server = processes(pids).map(|usage| (usage, usage));
        self.rss_bytes_max = self.server.map_or(0, |(usage, _)| usage.rss_bytes);
    }

    /// Reads the server once more. A process that has gone takes its figures with it: those of
    /// another one under its name would be no continuation.
    pub fn look(&mut self, pids: &[u32]) {
        let Some((begin, _)) = self.server else { return };
        self.server = processes(pids).map(|usage| (begin, usage));
        if let Some((_, now)) = self.server {
            self.rss_bytes_max = self.rss_bytes_max.max(now.rss_bytes);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_server_are_summed_and_one_that_is_missing_leaves_no_figure() {
        let own = std::process::id();
        let one = process(own).unwrap();
        let both = processes(&[own, own]).unwrap();
        assert!(both.rss_bytes > one.rss_bytes && both.user_us >= 2.0 * one.user_us);
        assert_eq!(processes(&[own, u32::MAX]), None);
        assert_eq!(processes(&[]), None);
    }
}
