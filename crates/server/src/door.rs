//! Where requests come in: connections, what of HTTP is decided before there is a request, its
//! paths, and its body. What is answered, and by whom, others know.

pub(crate) mod body_room;
pub(crate) mod line;
pub(crate) mod linger;
pub(crate) mod listen;
pub(crate) mod malformed;
pub(crate) mod patience;
pub(crate) mod receive;
pub(crate) mod routes;
