//! The one place that starts tasks, so that shutdown can wait for all of them.

use std::future::Future;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

/// Every task of one server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks(TaskTracker);

impl Tasks {
    /// Starts a task; `name` is in each of its log lines.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that starts tasks"
    )]
    pub(crate) fn spawn_named<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let span = tracing::debug_span!("task", name);
        tokio::spawn(self.0.track_future(task).instrument(span));
    }

    /// Waits until every task has ended.
    pub(crate) async fn ended(&self) {
        self.0.close();
        self.0.wait().await;
    }
}

/// Starts tasks that end when the server stops.
#[derive(Clone, Debug)]
pub(crate) struct UntilStop {
    pub(crate) tasks: Tasks,
    pub(crate) stop: watch::Receiver<bool>,
}

impl UntilStop {
    /// Runs a task that ends with the server.
    pub(crate) fn run(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let mut stop = self.stop.clone();
        self.tasks.spawn_named(name, async move {
            tokio::select! {
                () = task => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        });
    }
}
