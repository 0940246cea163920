//! A server in this process, and clients of it over real sockets.

pub(crate) mod chance;
pub(crate) mod chat;
pub(crate) mod http;
pub(crate) mod rig;
pub(crate) mod scrape;
pub(crate) mod stream;
pub(crate) mod wait;
