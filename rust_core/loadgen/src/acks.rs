//! The acknowledgement file: one line of CSV for each label that the server promised.
//!
//! Lines are gathered on the hot path and written by a thread of their own. A disk that does not
//! keep up costs lines, which are counted, and never holds the sender up.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Write as _},
    mem,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{Builder, JoinHandle},
};

use labeler_core::proto::Durability;

use crate::{
    error::{Error, Result},
    plan::Plan,
    wire::Key,
};

const GROUP_BYTES: usize = 64 << 10;
/// Groups that wait for the disk, at most: 16 MiB.
const GROUPS_MAX: usize = 256;
const HEADER: &str = "robot_id,sequence,label,durability\n";

/// The open file.
pub struct Acks {
    path: String,
    prefix: String,
    group: String,
    lines: u64,
    missing: u64,
    groups: SyncSender<String>,
    writer: JoinHandle<io::Result<()>>,
}

impl Acks {
    /// Creates the plan's file anew. Errors: `Disk`, `Machine`.
    pub fn create(plan: &Plan) -> Result<Self> {
        let path = plan.acks_file.clone();
        let file = File::create(&path).map_err(|e| failed("create", &path, &e))?;
        let (groups, waiting) = sync_channel(GROUPS_MAX);
        let writer = Builder::new()
            .name("acks".to_owned())
            .spawn(move || write(file, waiting))
            .map_err(Error::machine)?;
        let group = HEADER.to_owned();
        let prefix = plan.robot_prefix.clone();
        Ok(Self { path, prefix, group, lines: 0, missing: 0, groups, writer })
    }

    /// Adds a line.
    pub fn write(&mut self, key: Key, label: &str, durability: Durability) {
        let level = durability.as_str_name().trim_start_matches("DURABILITY_");
        let Key { robot, sequence } = key;
        let quoted = |text: &str| text.contains([',', '"', '\n', '\r']);
        // Writing to a string does not fail.
        let _ = if quoted(&self.prefix) || quoted(label) {
            let doubled = |text: &str| text.replace('"', "\"\"");
            let (prefix, label) = (doubled(&self.prefix), doubled(label));
            writeln!(self.group, "\"{prefix}{robot}\",{sequence},\"{label}\",{level}")
        } else {
            writeln!(self.group, "{}{robot},{sequence},{label},{level}", self.prefix)
        };
        self.lines += 1;
        if self.group.len() >= GROUP_BYTES {
            let group = mem::replace(&mut self.group, String::with_capacity(2 * GROUP_BYTES));
            if self.groups.try_send(group).is_err() {
                self.missing += self.lines;
            }
            self.lines = 0;
        }
    }

    /// Writes out what is left. Lines that are missing, and what the disk said.
    pub fn close(self) -> (u64, Result<()>) {
        // The writer takes until its channel closes, so this waits for the disk and no longer.
        let last = self.groups.send(self.group);
        drop(self.groups);
        let written = self.writer.join();
        let missing = self.missing + if last.is_err() { self.lines } else { 0 };
        let result = match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(failed("write", &self.path, &error)),
            Err(_) => Err(failed("write", &self.path, &io::Error::other("its thread panicked"))),
        };
        (missing, result)
    }
}

fn write(mut file: File, groups: Receiver<String>) -> io::Result<()> {
    for group in groups {
        file.write_all(group.as_bytes())?;
    }
    Ok(())
}

/// The error of a file operation.
pub fn failed(operation: &'static str, path: &str, error: &io::Error) -> Error {
    Error::Disk { operation, path: path.to_owned(), reason: error.to_string() }
}
