//! Letters to the handler of one request: a few, in order, from whoever has something to say.
//!
//! What a channel for any number of them would set aside costs a short request as much as the rest
//! of its bookkeeping. At the bound a letter is refused; that the bound is never met is up to
//! whoever chose it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::desk::inflight::Letter;

/// A way to write letters; when the last is gone, none come any more.
#[derive(Debug)]
pub(crate) struct Sender(Arc<Mutex<Mail>>);

/// Where they are read.
#[derive(Debug)]
pub(crate) struct Inbox(Arc<Mutex<Mail>>);

#[derive(Debug)]
struct Mail {
    letters: VecDeque<Letter>,
    most: usize,
    senders: usize,
    /// Whether somebody still reads.
    read: bool,
    waker: Option<Waker>,
}

/// A letter that nobody will read: there are too many, or the reader has gone.
#[derive(Debug)]
pub(crate) struct Undelivered;

/// A mailbox for as many letters.
pub(crate) fn mailbox(most: usize) -> (Sender, Inbox) {
    let mail = Arc::new(Mutex::new(Mail {
        letters: VecDeque::new(),
        most,
        senders: 1,
        read: true,
        waker: None,
    }));
    (Sender(Arc::clone(&mail)), Inbox(mail))
}

impl Sender {
    /// Writes a letter.
    ///
    /// # Errors
    /// It is not read.
    pub(crate) fn send(&self, letter: Letter) -> Result<(), Undelivered> {
        let mut mail = lock(&self.0);
        if !mail.read || mail.letters.len() >= mail.most {
            return Err(Undelivered);
        }
        mail.letters.push_back(letter);
        let waker = mail.waker.take();
        drop(mail);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

impl Clone for Sender {
    fn clone(&self) -> Self {
        lock(&self.0).senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut mail = lock(&self.0);
        mail.senders -= 1;
        let waker = if mail.senders == 0 {
            mail.waker.take()
        } else {
            None
        };
        drop(mail);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Inbox {
    /// The next letter; `None` where none is left and nobody can write another.
    pub(crate) async fn next(&self) -> Option<Letter> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same, as far as it is there now.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Letter>> {
        let mut mail = lock(&self.0);
        if let Some(letter) = mail.letters.pop_front() {
            return Poll::Ready(Some(letter));
        }
        if mail.senders == 0 {
            return Poll::Ready(None);
        }
        match &mut mail.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// A letter that is there.
    pub(crate) fn take(&self) -> Option<Letter> {
        lock(&self.0).letters.pop_front()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut mail = lock(&self.0);
        mail.read = false;
        let unread = std::mem::take(&mut mail.letters);
        drop(mail);
        drop(unread);
    }
}

fn lock(mail: &Mutex<Mail>) -> MutexGuard<'_, Mail> {
    mail.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(letter: Option<Letter>) -> Option<u32> {
        let Some(Letter::Vector(number, _)) = letter else {
            return None;
        };
        Some(number)
    }

    fn letter(number: u32) -> Letter {
        Letter::Vector(number, Vec::new())
    }

    #[tokio::test]
    async fn letters_are_read_in_order_also_by_one_who_waits() {
        let (sender, inbox) = mailbox(8);
        let other = sender.clone();
        let write = async {
            for n in 0..20 {
                tokio::task::yield_now().await;
                let by = if n % 2 == 0 { &sender } else { &other };
                by.send(letter(n)).unwrap();
            }
        };
        let read = async {
            for n in 0..20 {
                assert_eq!(number(inbox.next().await), Some(n));
            }
        };
        tokio::join!(read, write);
    }

    #[tokio::test]
    async fn the_last_sender_to_go_ends_it_behind_what_was_written() {
        let (sender, inbox) = mailbox(8);
        let other = sender.clone();
        sender.send(letter(1)).unwrap();
        drop(sender);
        assert_eq!(number(inbox.next().await), Some(1));
        let ended = async { inbox.next().await.is_none() };
        let (ended, ()) = tokio::join!(ended, async { drop(other) });
        assert!(ended);
    }

    #[test]
    fn past_its_bound_and_after_its_reader_it_takes_none() {
        let (sender, inbox) = mailbox(2);
        assert!(sender.send(letter(1)).is_ok() && sender.send(letter(2)).is_ok());
        assert!(sender.send(letter(3)).is_err());
        assert_eq!(number(inbox.take()), Some(1));
        assert!(sender.send(letter(3)).is_ok());
        drop(inbox);
        assert!(sender.send(letter(4)).is_err());
    }
}
