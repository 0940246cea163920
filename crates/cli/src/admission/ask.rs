//! One question to a gateway's operator listener.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long the gateway may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer that is read, in bytes.
const ANSWER_MAX: u64 = 16 << 20;

/// The body of what is at `path`.
pub(super) fn get(address: SocketAddr, path: &str, key: Option<&str>) -> Result<String, String> {
    let answer = exchange(address, path, key);
    let answer = answer.map_err(|error| {
        format!("{address} does not answer: {error}; give --admin as admin.listen says")
    })?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split_whitespace().nth(1).unwrap_or("nothing");
    if status != "200" {
        let body: String = body.chars().take(400).collect();
        return Err(format!("{address} answers {status}: {body}"));
    }
    Ok(body.to_owned())
}

fn exchange(address: SocketAddr, path: &str, key: Option<&str>) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let key = key.map_or_else(String::new, |key| {
        format!("Authorization: Bearer {key}\r\n")
    });
    // HTTP/1.0: the answer is as it is, without chunks, and ends with the connection.
    write!(
        stream,
        "GET {path} HTTP/1.0\r\nHost: {address}\r\n{key}Connection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}
