//! Where the label path allocates: the stack of each allocation of its threads, while it is asked
//! for. For people; no figure is made of it.

use std::{
    backtrace::Backtrace,
    cell::Cell,
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::threads;

static ON: AtomicBool = AtomicBool::new(false);
static SEEN: Mutex<Vec<(&'static str, Backtrace)>> = Mutex::new(Vec::new());

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Places of the allocator and of the collections that call it, which say nothing of a site.
const MACHINERY: [&str; 3] = ["bench/micro/src/", "/library/", "/hashbrown-"];

/// An allocation of this thread; called by the allocator.
pub fn seen() {
    if !ON.load(Ordering::Relaxed) || INSIDE.replace(true) {
        return;
    }
    let kind = std::thread::current().name().map_or("other", threads::kind_of);
    if kind != "other" {
        SEEN.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((kind, Backtrace::force_capture()));
    }
    INSIDE.set(false);
}

/// What `run` allocates on the label path's threads, by site: a line each, the most first, with the
/// number for each of `labels`.
pub fn of(labels: u64, run: impl FnOnce()) -> String {
    ON.store(true, Ordering::Relaxed);
    run();
    ON.store(false, Ordering::Relaxed);
    let seen = std::mem::take(&mut *SEEN.lock().unwrap_or_else(PoisonError::into_inner));
    let mut sites: BTreeMap<(&str, String), u64> = BTreeMap::new();
    for (kind, trace) in &seen {
        *sites.entry((kind, site(&trace.to_string()))).or_default() += 1;
    }
    let mut sites: Vec<_> = sites.into_iter().collect();
    sites.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut text = String::new();
    for ((kind, site), count) in sites {
        let _ = writeln!(text, "{:6.2} {kind:<9} {site}", count as f64 / labels as f64);
    }
    text
}

/// The first frame that is no machinery, and the first of the core.
fn site(trace: &str) -> String {
    let mut lines = trace.lines().map(str::trim).peekable();
    let (mut first, mut ours) = (None, None);
    while let Some(line) = lines.next() {
        let Some((number, name)) = line.split_once(": ") else { continue };
        if number.parse::<u32>().is_err() {
            continue;
        }
        let at = lines.next_if(|next| next.starts_with("at ")).unwrap_or_default();
        let name = name.split_once('<').map_or(name, |(name, _)| name);
        let frame = || format!("{name} {}", short(at));
        let machinery = at.is_empty() || MACHINERY.iter().any(|part| at.contains(part));
        if first.is_none() && !machinery {
            first = Some(frame());
        }
        if ours.is_none() && at.contains("rust_core/src/") {
            ours = Some(frame());
        }
    }
    let (first, ours) = (first.unwrap_or_default(), ours.unwrap_or_default());
    if first == ours { first } else { format!("{first} <- {ours}") }
}

/// File and line, without the folders before the crate.
fn short(at: &str) -> &str {
    let at = at.trim_start_matches("at ");
    at.rfind("/src/").and_then(|end| at[..end].rfind('/')).map_or(at, |begin| &at[begin + 1..])
}
