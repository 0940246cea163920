//! Connections to the endpoint: kept while they are idle, opened when none is.
//!
//! No request ever waits for another's connection, or an open loop would close itself.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::rows::Failure;
use crate::secure::Secure;

/// A connection that can take a request.
pub(crate) type Connection = SendRequest<Full<Bytes>>;

/// `EMFILE` and `ENFILE` (no file left), `EADDRNOTAVAIL` (no port left) on Linux.
const OUT_OF_FILES_OR_PORTS: [i32; 3] = [24, 23, 99];

/// The connections to one address.
#[derive(Debug)]
pub(crate) struct Connections {
    address: SocketAddr,
    secure: Option<Secure>,
    /// The last used last: it is the likeliest to be alive.
    idle: Mutex<Vec<Connection>>,
    runtime: Handle,
}

impl Connections {
    pub(crate) fn new(address: SocketAddr, secure: Option<Secure>, runtime: Handle) -> Self {
        Self {
            address,
            secure,
            idle: Mutex::default(),
            runtime,
        }
    }

    /// Sends the request; gives the head of the answer and the connection that its body comes over.
    ///
    /// A kept connection that the other side closed in the meantime is the client's own affair: a
    /// request that never left it goes out once more, over a fresh one.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        let mut request = request;
        if let Some(mut kept) = self.kept().await {
            match kept.try_send_request(request).await {
                Ok(response) => return Ok((response, kept)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(Failure::Reset),
                },
            }
        }
        let mut fresh = self.open().await.map_err(|error| {
            let code = error.raw_os_error();
            let own = code.is_some_and(|code| OUT_OF_FILES_OR_PORTS.contains(&code));
            if own {
                Failure::ClientLimit
            } else {
                Failure::Connect
            }
        })?;
        match fresh.send_request(request).await {
            Ok(response) => Ok((response, fresh)),
            Err(_) => Err(Failure::Reset),
        }
    }

    /// Keeps a connection whose answer has been read to its end.
    pub(crate) fn keep(&self, connection: Connection) {
        if !connection.is_closed() {
            self.idle().push(connection);
        }
    }

    async fn kept(&self) -> Option<Connection> {
        loop {
            let mut connection = self.idle().pop()?;
            if !connection.is_closed() && connection.ready().await.is_ok() {
                return Some(connection);
            }
        }
    }

    /// Opens one, whatever is kept.
    pub(crate) async fn open(&self) -> io::Result<Connection> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        match &self.secure {
            None => self.speak(stream).await,
            Some(secure) => self.speak(secure.over(stream).await?).await,
        }
    }

    async fn speak<S>(&self, stream: S) -> io::Result<Connection>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (connection, driver) = handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        // It ends when the connection does; what it failed of, the request hears too.
        drop(self.runtime.spawn(driver));
        Ok(connection)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn a_kept_connection_that_the_other_side_closed_costs_no_request() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 1_024]).unwrap() > 0);
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    .unwrap();
            }
        });
        let connections = Connections::new(address, None, Handle::current());
        let request = || {
            Request::get("/")
                .header("host", "h")
                .body(Full::default())
                .unwrap()
        };
        let (response, connection) = connections.send(request()).await.unwrap();
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "ok"
        );
        connections.idle().push(connection);
        while !connections.idle().iter().all(SendRequest::is_closed) {
            tokio::task::yield_now().await;
        }
        let (response, _) = connections.send(request()).await.unwrap();
        assert_eq!(response.status(), 200);
        answering.join().unwrap();
    }
}
