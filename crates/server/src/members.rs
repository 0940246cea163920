//! Who may call, and for how much: callers, the tenants and keys there are, and budgets.

pub mod budget;
pub(crate) mod identity;
pub(crate) mod membership;
