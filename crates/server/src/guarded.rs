//! A future whose panic is a value: one request that panics ends alone, with a 500, not with a cut
//! connection.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// What is left of a future that panicked. The panic itself has been reported by its hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

/// Runs `future`, and gives [`Panicked`] where it panics. It is dropped while it unwinds, as guards
/// rely on.
pub(crate) async fn guarded<F: Future>(future: F) -> Result<F::Output, Panicked> {
    Guarded {
        future: pin!(Some(future)),
    }
    .await
}

struct Guarded<'f, F> {
    /// `None` once it panicked.
    future: Pin<&'f mut Option<F>>,
}

impl<F: Future> Future for Guarded<'_, F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut future = self.future.as_mut();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let inner = future.as_mut().as_pin_mut();
            inner.map(|inner| inner.poll(cx))
        }));
        match polled {
            Ok(Some(Poll::Ready(output))) => Poll::Ready(Ok(output)),
            Ok(Some(Poll::Pending)) => Poll::Pending,
            Ok(None) => Poll::Ready(Err(Panicked)),
            Err(_) => {
                self.future.set(None);
                Poll::Ready(Err(Panicked))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct SetOnDrop(Arc<AtomicBool>);

    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.store(std::thread::panicking(), Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn what_a_future_gives_comes_through() {
        let work = async {
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(guarded(work).await, Ok(7));
    }

    #[tokio::test]
    async fn a_panic_is_a_value_also_after_an_await() {
        for awaits in 0..3 {
            let work = async {
                for _ in 0..awaits {
                    tokio::task::yield_now().await;
                }
                panic!("as asked");
            };
            assert_eq!(guarded::<_>(work).await, Err::<(), _>(Panicked));
        }
    }

    #[tokio::test]
    async fn what_a_future_holds_is_dropped_while_it_unwinds() {
        let unwound = Arc::new(AtomicBool::new(false));
        let held = SetOnDrop(Arc::clone(&unwound));
        let work = async move {
            let _held = held;
            tokio::task::yield_now().await;
            panic!("as asked");
        };
        assert_eq!(guarded::<_>(work).await, Err::<(), _>(Panicked));
        assert!(
            unwound.load(Ordering::Relaxed),
            "a guard can tell a panic from a leave"
        );
    }
}
