//! An allocator that counts: the system's, with each call that gives memory counted for its thread.

use std::alloc::{GlobalAlloc, Layout, System};

use super::{
    sites,
    threads::{What, count},
};

/// The system's allocator, counted.
pub struct Counting;

fn counted(bytes: usize) {
    count(What::Allocations, 1);
    count(What::AllocatedBytes, bytes as u64);
    sites::seen();
}

// SAFETY: each call is the system's with the same arguments; counting touches no memory of others.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        counted(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        counted(bytes);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}
