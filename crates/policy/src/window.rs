//! What a replica may hold at once. Requests beyond it wait with us, where their order can still be
//! chosen.

use crate::units::KvBlocks;

/// What a replica can hold, as it said when it came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences that may run at once.
    pub sequences: u32,
    /// KV blocks in its pool.
    pub kv: KvBlocks,
}

/// Why a request must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// As many sequences run as the replica can hold.
    Sequences,
    /// What it is expected to hold of KV does not fit beside the others.
    Kv,
}

/// What one replica holds of what it may.
///
/// Reservations are estimates: a sequence may outgrow its own, and the engine then preempts. But a
/// request that is alone always fits, however large its estimate, since the door turned away what
/// the pool cannot hold.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    capacity: Capacity,
    sequences: u32,
    kv: KvBlocks,
}

impl Window {
    /// An empty window.
    pub const fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            sequences: 0,
            kv: KvBlocks::ZERO,
        }
    }

    /// Changes what may be held; what is held stays held.
    pub const fn resize(&mut self, capacity: Capacity) {
        self.capacity = capacity;
    }

    /// Whether `kv` more would fit, for one more sequence.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn room_for(&self, kv: KvBlocks) -> Result<(), Blocked> {
        if self.sequences >= self.capacity.sequences {
            return Err(Blocked::Sequences);
        }
        if self.sequences > 0 && self.kv + kv > self.capacity.kv {
            return Err(Blocked::Kv);
        }
        Ok(())
    }

    /// Holds `kv` for one more sequence.
    pub fn hold(&mut self, kv: KvBlocks) {
        self.sequences += 1;
        self.kv += kv;
    }

    /// Lets go of what [`Window::hold`] held.
    ///
    /// # Panics
    /// When nothing is held: a request ended twice.
    pub fn release(&mut self, kv: KvBlocks) {
        assert!(self.sequences > 0, "released a window that holds nothing");
        self.sequences -= 1;
        self.kv -= kv;
        debug_assert!(
            self.sequences > 0 || self.kv == KvBlocks::ZERO,
            "KV held for nobody"
        );
    }

    /// Sequences held.
    pub const fn sequences(&self) -> u32 {
        self.sequences
    }

    /// KV blocks held.
    pub const fn kv(&self) -> KvBlocks {
        self.kv
    }

    /// What may be held.
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> Window {
        Window::new(Capacity {
            sequences: 2,
            kv: KvBlocks::new(10),
        })
    }

    #[test]
    fn sequences_and_blocks_both_bound_what_is_held() {
        let mut window = window();
        window.hold(KvBlocks::new(6));
        assert_eq!(window.room_for(KvBlocks::new(5)), Err(Blocked::Kv));
        assert_eq!(window.room_for(KvBlocks::new(4)), Ok(()));
        window.hold(KvBlocks::new(1));
        assert_eq!(window.room_for(KvBlocks::new(1)), Err(Blocked::Sequences));
    }

    #[test]
    fn a_request_that_is_alone_fits_whatever_it_is_expected_to_grow_to() {
        assert_eq!(window().room_for(KvBlocks::new(1_000)), Ok(()));
    }

    #[test]
    fn what_was_held_is_given_back_whole() {
        let mut window = window();
        window.hold(KvBlocks::new(6));
        window.release(KvBlocks::new(6));
        assert_eq!((window.sequences(), window.kv()), (0, KvBlocks::ZERO));
    }
}
