//! Private servers, relay processes and the harnesses of the store contract, for the tests in `tests/`.

pub mod brokers;
pub mod certificates;
pub mod harness;
pub mod postgres;
pub mod process;
pub mod protocol;
pub mod proxy;

/// Says that the test on this thread could not run, and why, so that it does not count as passed: in the file named by
/// `OUTBOX_TEST_SKIPS`, which `scripts/test` reads, and on stderr. The test returns afterwards.
///
/// # Panics
/// When the file cannot be written, or the thread has no test's name.
#[allow(clippy::print_stderr, reason = "a test that checks nothing must be seen to")]
pub fn skip(reason: &str) {
    use std::io::Write;
    let thread = std::thread::current();
    let test = thread.name().expect("a test's thread has its name");
    eprintln!("SKIPPED: {test}: {reason}");
    if let Some(path) = std::env::var_os("OUTBOX_TEST_SKIPS") {
        let mut file =
            std::fs::File::options().create(true).append(true).open(path).expect("the file of skips");
        file.write_all(format!("{test}: {reason}\n").as_bytes()).expect("the file of skips");
    }
}
