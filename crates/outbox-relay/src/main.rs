//! The binary `outbox`: everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    give_large_blocks_back();
    outbox_relay::cli::main()
}

/// From this size on a block of memory is the system's own, and is given back when it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BLOCK: libc::c_int = 1024 * 1024;

/// Left to itself, glibc raises that size with each large block that is freed, and after some events of megabytes keeps
/// twice the memory that the relay needs. Kafka's client is C: a Rust allocator would not do.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
fn give_large_blocks_back() {
    // SAFETY: takes two numbers, and no other thread runs yet. When it refuses nothing is changed.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK) };
}
