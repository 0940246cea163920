//! How much memory the bodies of requests may take at once, all together.
//!
//! A request may be large and wait for long, and its body is kept until an engine has begun to
//! answer, since another may have to be asked. So large bodies share a bounded room: one that says
//! how long it is waits until there is room for all of it before any of it is read, and one that
//! does not is refused where it finds none. Who waits holds no memory here. Small ones are not
//! counted: the number of connections bounds them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bodies up to this size are not counted: nearly all, and all that are read in one piece.
const SMALL: usize = 64 << 10;

/// Room is given out in pages of so many bytes.
const PAGE: usize = 4 << 10;

/// The room that bodies share.
#[derive(Clone, Debug)]
pub(crate) struct BodyRoom(Arc<Semaphore>);

/// The room that one body takes; dropped, it is free again.
#[derive(Debug, Default)]
pub(crate) struct Room(Option<OwnedSemaphorePermit>);

/// There is no room for a body that had not said how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

impl BodyRoom {
    /// Room for so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let pages = bytes.div_ceil(PAGE).min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Semaphore::new(pages)))
    }

    /// Whether a body of this length takes any.
    pub(crate) const fn counts(bytes: usize) -> bool {
        bytes > SMALL
    }

    /// Room for a body of this length, once there is some. First come, first served, so that a
    /// large one gets its turn.
    ///
    /// # Cancel safety
    /// Dropped, it has taken nothing, and has lost its turn.
    pub(crate) async fn take(&self, bytes: usize) -> Room {
        if !Self::counts(bytes) {
            return Room::default();
        }
        let taken = Arc::clone(&self.0).acquire_many_owned(pages(bytes)).await;
        Room(taken.ok()) // Err: never, as the semaphore is not closed.
    }

    /// Makes `room` large enough for a body that has come to `bytes`, if that is to be had at once.
    pub(crate) fn grow(&self, room: &mut Room, bytes: usize) -> Result<(), NoRoom> {
        let held = room.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = usize::try_from(pages(bytes)).map_or(0, |pages| pages.saturating_sub(held));
        if !Self::counts(bytes) || more == 0 {
            return Ok(());
        }
        let more = u32::try_from(more).map_err(|_| NoRoom)?;
        let taken = Arc::clone(&self.0).try_acquire_many_owned(more);
        let taken = taken.map_err(|_| NoRoom)?;
        match &mut room.0 {
            Some(own) => own.merge(taken),
            None => room.0 = Some(taken),
        }
        Ok(())
    }
}

fn pages(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PAGE)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MIB: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_waits_for_it_and_the_first_comes_first() {
        let all = BodyRoom::new(10 * MIB);
        let first = all.take(6 * MIB).await;
        let mut large = std::pin::pin!(all.take(9 * MIB));
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, large.as_mut()).await.is_err());
        let mut later = std::pin::pin!(all.take(MIB));
        assert!(tokio::time::timeout(soon, later.as_mut()).await.is_err());
        drop(first);
        let large = large.await;
        let _later = later.await;
        assert!(large.0.is_some());
    }

    #[tokio::test]
    async fn small_ones_need_no_room() {
        let all = BodyRoom::new(MIB);
        let _full = all.take(MIB).await;
        assert!(all.take(SMALL).await.0.is_none());
        assert_eq!(all.grow(&mut Room::default(), SMALL), Ok(()));
    }

    #[tokio::test]
    async fn one_that_grows_is_refused_where_there_is_none_and_gives_back_what_it_had() {
        let all = BodyRoom::new(4 * MIB);
        let mut growing = Room::default();
        for bytes in [MIB / 2, MIB, MIB, 3 * MIB] {
            assert_eq!(all.grow(&mut growing, bytes), Ok(()));
        }
        let mut other = Room::default();
        assert_eq!(all.grow(&mut other, MIB), Ok(()));
        assert_eq!(all.grow(&mut growing, 3 * MIB + 1), Err(NoRoom));
        drop(growing);
        assert_eq!(all.grow(&mut other, 4 * MIB), Ok(()));
        assert_eq!(all.0.available_permits(), 0);
    }
}
