//! How long what happens on a connection may take.
//!
//! A request has several bounds on its time, and nearly always keeps them all. A timer for each
//! would cost more than most of what is done for it. So a connection has one timer, which is set
//! when it rings: a bound is a deadline that is compared with it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use hyper_util::rt::TokioTimer;

/// The timer of one connection. Whoever waits for it waits in the connection's own task: it wakes
/// no other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience(Arc<Mutex<Alarm>>);

/// Set once somebody has had to wait.
type Alarm = Option<Pin<Box<tokio::time::Sleep>>>;

impl Patience {
    /// What `future` gives, if it does so in time.
    pub(crate) async fn wait<F: Future>(&self, span: Duration, future: F) -> Option<F::Output> {
        let deadline = (self.now() + span).into();
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => self.poll_until(deadline, cx).map(|()| None),
        })
        .await
    }

    /// Ready at `deadline`.
    pub(crate) fn poll_until(
        &self,
        deadline: tokio::time::Instant,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut alarm = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let alarm = alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if alarm.deadline() > deadline {
            alarm.as_mut().reset(deadline);
        }
        loop {
            ready!(alarm.as_mut().poll(cx));
            // It may ring for another bound, an earlier one.
            if alarm.deadline() >= deadline {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(deadline);
        }
    }
}

/// The HTTP layer begins a timer with each request, and drops it when the head has come.
impl Timer for Patience {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Until {
            deadline: deadline.into(),
            patience: self.clone(),
        })
    }

    fn now(&self) -> Instant {
        TokioTimer::new().now()
    }
}

/// Until a moment.
#[derive(Debug)]
struct Until {
    deadline: tokio::time::Instant,
    patience: Patience,
}

impl Sleep for Until {}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.patience.poll_until(self.deadline, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn waited(patience: &Patience, secs: u64) -> u64 {
        let before = patience.now();
        patience.sleep(Duration::from_secs(secs)).await;
        patience.now().duration_since(before).as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn each_waits_for_its_own_time_whichever_came_before() {
        let patience = Patience::default();
        for secs in [30, 30, 10, 60] {
            assert_eq!(waited(&patience, secs).await, secs);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_shorter_of_two_bounds_ends_first_and_the_longer_keeps_its_time() {
        let patience = Patience::default();
        let before = patience.now();
        let secs = || patience.now().duration_since(before).as_secs();
        let never = std::future::pending::<()>;
        let inner = patience.wait(Duration::from_secs(20), async {
            for wait in [3, 4] {
                let ended = patience.wait(Duration::from_secs(wait), never()).await;
                assert_eq!(ended, None);
            }
            let at = secs();
            never().await;
            at
        });
        assert_eq!(inner.await, None);
        assert_eq!(secs(), 20);
        let done = patience.wait(Duration::from_secs(1), async { 7 }).await;
        assert_eq!(done, Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_was_dropped_ends_no_later_one_early() {
        let patience = Patience::default();
        for _ in 0..100 {
            let sleep = patience.sleep(Duration::from_secs(30));
            let soon = Duration::from_secs(1);
            assert!(tokio::time::timeout(soon, sleep).await.is_err());
        }
        assert_eq!(waited(&patience, 30).await, 30);
    }
}
