//! The binary `outbox`: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    outbox_relay::cli::main()
}
