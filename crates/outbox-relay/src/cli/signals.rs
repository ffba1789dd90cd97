//! SIGTERM and SIGINT: the first asks to stop, the second does not ask.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{EXIT_RUNTIME, Failure};

/// A token that the first signal cancels. The second ends the process at once; what was in flight is then left to
/// its lease.
pub(super) fn shutdown() -> Result<CancellationToken, Failure> {
    let token = CancellationToken::new();
    let terminate = signal(SignalKind::terminate()).map_err(anyhow::Error::from)?;
    let interrupt = signal(SignalKind::interrupt()).map_err(anyhow::Error::from)?;
    tokio::spawn(listen(terminate, interrupt, token.clone()));
    Ok(token)
}

async fn listen(mut terminate: Signal, mut interrupt: Signal, token: CancellationToken) {
    let name = next(&mut terminate, &mut interrupt).await;
    tracing::info!(signal = name, "stopping; a second signal stops at once");
    token.cancel();
    let name = next(&mut terminate, &mut interrupt).await;
    tracing::warn!(signal = name, "stopped at once; what was in flight is left to its lease");
    std::process::exit(EXIT_RUNTIME.into());
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
