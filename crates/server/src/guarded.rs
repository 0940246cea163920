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
