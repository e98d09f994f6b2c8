//! What stands on the disk of the double, what of it is durable, and what a power cut leaves.
//!
//! Knows no trait of the journal and injects no fault by itself: `faulty.rs` does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::{Calls, Faults};

/// What is written to one sector at once; a cut keeps or loses whole sectors.
const SECTOR_BYTES: usize = 512;

pub(super) struct Disk {
    pub(super) inodes: Vec<Inode>,
    /// What a running process sees.
    pub(super) names: BTreeMap<PathBuf, usize>,
    /// What survives a power cut for sure.
    durable_names: BTreeMap<PathBuf, usize>,
    pub(super) directories: BTreeSet<PathBuf>,
    durable_directories: BTreeSet<PathBuf>,
    /// Changes of names since their directory was synced.
    changes: Vec<Change>,
    pub(super) locks: BTreeMap<PathBuf, u64>,
    pub(super) locks_made: u64,
    pub(super) ids_made: u64,
    pub(super) epoch: u64,
    pub(super) faults: Faults,
    pub(super) calls: Calls,
    /// The most bytes that the files of each directory have held together.
    pub(super) bytes_peak: BTreeMap<PathBuf, u64>,
    pub(super) read_bytes_max: usize,
}

#[derive(Default, Clone)]
pub(super) struct Inode {
    pub(super) now: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) dirty: BTreeSet<usize>,
}

#[derive(Clone)]
pub(super) enum Change {
    Directory(PathBuf),
    Name(PathBuf, usize),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, usize),
}

impl Default for Disk {
    /// Empty but for `/state`, which others have made.
    fn default() -> Self {
        let given = BTreeSet::from(["/".into(), "/state".into()]);
        Disk {
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            directories: given.clone(),
            durable_directories: given,
            changes: Vec::new(),
            locks: BTreeMap::new(),
            locks_made: 0,
            ids_made: 0,
            epoch: 0,
            faults: Faults::default(),
            calls: Calls::default(),
            bytes_peak: BTreeMap::new(),
            read_bytes_max: 0,
        }
    }
}

impl Inode {
    pub(super) fn write(&mut self, bytes: &[u8], start: usize) {
        let end = start + bytes.len();
        lengthen(&mut self.now, end);
        self.now[start..end].copy_from_slice(bytes);
        self.dirty.extend(start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
    }

    pub(super) fn sync(&mut self) {
        lengthen(&mut self.durable, self.now.len());
        for sector in std::mem::take(&mut self.dirty) {
            self.keep(sector);
        }
    }

    fn keep(&mut self, sector: usize) {
        let start = sector * SECTOR_BYTES;
        let end = (start + SECTOR_BYTES).min(self.now.len()).min(self.durable.len());
        if start < end {
            self.durable[start..end].copy_from_slice(&self.now[start..end]);
        }
    }

    /// Unsynced sectors are kept or lost one by one.
    fn cut(&mut self, keep: &mut impl FnMut() -> bool) {
        let dirty = std::mem::take(&mut self.dirty);
        if self.now.len() != self.durable.len() && keep() {
            lengthen(&mut self.durable, self.now.len());
        }
        for sector in dirty {
            if keep() {
                self.keep(sector);
            }
        }
        self.now.clone_from(&self.durable);
    }
}

/// `Vec::resize` goes byte by byte in a debug build, and files are long.
fn lengthen(bytes: &mut Vec<u8>, length: usize) {
    bytes.extend_from_slice(&vec![0; length.saturating_sub(bytes.len())]);
}

impl Change {
    fn directory(&self) -> Option<&Path> {
        match self {
            Change::Directory(path)
            | Change::Name(path, _)
            | Change::Remove(path)
            | Change::Rename(_, path, _) => path.parent(),
        }
    }
}

impl Disk {
    /// Counts a call that changes something, and fails it if the power is gone or its time came.
    pub(super) fn change(&mut self) -> io::Result<()> {
        self.calls.changes += 1;
        if let Some(left) = &mut self.faults.changes_until_cut {
            if *left == 0 {
                return Err(io::Error::other("the power is gone"));
            }
            *left -= 1;
        }
        countdown(&mut self.faults.changes_until_failure)
    }

    pub(super) fn note(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Makes the names in a directory durable.
    pub(super) fn sync_names(&mut self, directory: &Path) {
        let changes = std::mem::take(&mut self.changes);
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| change.directory() == Some(directory));
        self.changes = elsewhere;
        for change in here {
            self.apply(change);
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Directory(path) => {
                self.durable_directories.insert(path);
            }
            Change::Name(path, inode) => {
                self.durable_names.insert(path, inode);
            }
            Change::Remove(path) => {
                self.durable_names.remove(&path);
            }
            Change::Rename(from, to, inode) => {
                self.durable_names.remove(&from);
                self.durable_names.insert(to, inode);
            }
        }
    }

    /// Keeps any subset of what was not synced; every open file and lock is gone.
    pub(super) fn cut(&mut self, mut keep: impl FnMut() -> bool) {
        self.epoch += 1;
        self.locks.clear();
        self.faults = self.faults.mended();
        for inode in &mut self.inodes {
            inode.cut(&mut keep);
        }
        for change in std::mem::take(&mut self.changes) {
            if keep() {
                self.apply(change);
            }
        }
        // Whose directory is gone is gone with it.
        let (names, directories) = (&mut self.durable_names, &mut self.durable_directories);
        while let Some(lost) = directories
            .iter()
            .find(|path| path.parent().is_some_and(|parent| !directories.contains(parent)))
        {
            let lost = lost.clone();
            directories.remove(&lost);
        }
        names.retain(|path, _| path.parent().is_some_and(|parent| directories.contains(parent)));
        self.directories = self.durable_directories.clone();
        self.names = self.durable_names.clone();
        let named: BTreeSet<usize> = self.names.values().copied().collect();
        for (id, inode) in self.inodes.iter_mut().enumerate() {
            if !named.contains(&id) {
                *inode = Inode::default();
            }
        }
    }

    /// Everything that is there now, with nothing open on it.
    pub(super) fn copy(&self) -> Disk {
        Disk {
            inodes: self.inodes.clone(),
            names: self.names.clone(),
            durable_names: self.durable_names.clone(),
            directories: self.directories.clone(),
            durable_directories: self.durable_directories.clone(),
            changes: self.changes.clone(),
            ids_made: self.ids_made,
            ..Disk::default()
        }
    }

    pub(super) fn note_peak(&mut self) {
        let mut held: BTreeMap<&Path, u64> = BTreeMap::new();
        for (path, inode) in &self.names {
            let directory = path.parent().unwrap_or(path);
            *held.entry(directory).or_default() += self.inodes[*inode].now.len() as u64;
        }
        for (directory, bytes) in held {
            match self.bytes_peak.get_mut(directory) {
                Some(peak) => *peak = bytes.max(*peak),
                None => drop(self.bytes_peak.insert(directory.to_path_buf(), bytes)),
            }
        }
    }
}

/// Fails once, when the count has come to its end.
pub(super) fn countdown(left: &mut Option<u64>) -> io::Result<()> {
    match left {
        Some(0) => {
            *left = None;
            Err(io::Error::other("Input/output error"))
        }
        Some(left) => {
            *left -= 1;
            Ok(())
        }
        None => Ok(()),
    }
}
