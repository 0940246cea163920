//! A wish to stop early, from a person at the keyboard or from a test.

use std::time::Duration;

use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

/// Asks a run to stop; clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct Stop(CancellationToken);

impl Stop {
    /// Nobody has asked yet, and nobody will but through this.
    pub fn new() -> Self {
        Self::default()
    }

    /// Is pulled by Ctrl-C, or SIGTERM, from now on. Where the system gives no thread for that, it
    /// never is, and Ctrl-C ends the process as it does by itself.
    pub fn on_signal() -> Self {
        let stop = Self::new();
        let pulled = stop.clone();
        let waits = move || {
            let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(signalled());
            pulled.pull();
        };
        // Err: said above.
        let _ = std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(waits);
        stop
    }

    /// Asks for it.
    pub fn pull(&self) {
        self.0.cancel();
    }

    /// Whether it has been asked for.
    pub fn is_pulled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Ends when it is asked for.
    pub async fn pulled(&self) {
        self.0.cancelled().await;
    }

    /// Waits until it is asked for.
    pub fn wait(&self) {
        while !self.is_pulled() {
            self.sleep(Duration::MAX);
        }
    }

    /// Waits for so long, or until it is asked for.
    pub(crate) fn sleep(&self, span: Duration) {
        /// How long somebody at the keyboard waits at most.
        const NOTICED_WITHIN: Duration = Duration::from_millis(100);
        let mut left = span;
        while !left.is_zero() && !self.is_pulled() {
            let piece = left.min(NOTICED_WITHIN);
            std::thread::sleep(piece);
            left -= piece;
        }
    }
}

async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        }
        // Err: then by Ctrl-C alone.
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
