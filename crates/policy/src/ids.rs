//! Names for things, as small integers that the tables which issue them can index by.
//!
//! An id is only ever made by its table (or, for a request, by the driver's counter), so indexing
//! with one cannot miss.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($repr);

        impl $name {
            /// The id with this number; only the table that counts them should call it.
            pub const fn new(number: $repr) -> Self {
                Self(number)
            }

            /// The number, for a log line or a wire format.
            pub const fn get(self) -> $repr {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// Who pays.
    TenantId(u32)
}
id! {
    /// One of a tenant's keys, where keys have names.
    KeyId(u32)
}
id! {
    /// One request, unique in the life of the process and never used again.
    RequestId(u64)
}
id! {
    /// One model by its configured name, and with it the queue and the pool that serve it.
    ModelId(u32)
}
id! {
    /// One engine.
    ReplicaId(u32)
}
id! {
    /// One of the engine's sequence slots; reused as sequences end.
    SeqId(u32)
}

/// Where the entry of an id with this number stands in the table that issued it.
pub(crate) fn position(number: u32) -> usize {
    // Lossless wherever Tollgate builds: pointers have at least 32 bits, wasm32 included.
    usize::try_from(number).unwrap_or(usize::MAX)
}
