//! What a gateway can't cost less than: a relay that moves bytes both ways and looks at none. It is
//! built with `rustc -O`; arguments: the port to listen on, and those of engines. A connection of a
//! client has one to an engine, the next one in turn, and a thread for each way.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

fn main() {
    let mut ports = std::env::args().skip(1).map(|port| port.parse::<u16>().expect("a port"));
    let listener = TcpListener::bind(("127.0.0.1", ports.next().expect("a port"))).expect("free");
    let engines: Vec<_> = ports.collect();
    for (client, engine) in listener.incoming().flatten().zip(engines.iter().cycle()) {
        let engine = TcpStream::connect(("127.0.0.1", *engine)).expect("an engine");
        for stream in [&client, &engine] {
            stream.set_nodelay(true).expect("nodelay");
        }
        let (from, to) = (engine.try_clone().expect("a file"), client.try_clone().expect("a file"));
        begin(client, engine);
        begin(from, to);
    }
}

fn begin(from: TcpStream, to: TcpStream) {
    std::thread::Builder::new()
        .stack_size(64 * 1024)
        .spawn(move || carry(from, to))
        .expect("a thread");
}

/// Until one of them is over; then neither goes on.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // Err: it is over already.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
