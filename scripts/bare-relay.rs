//! What a gateway can't cost less than: a relay that moves a request and its answer, and looks at
//! neither. Built with `rustc -O`; arguments: the port to listen on, and those of engines. It takes
//! what one read gives for a whole message, so it is for `instant-engine` and wrk and nothing else.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn main() {
    let mut ports = std::env::args().skip(1).map(|port| port.parse::<u16>().expect("a port"));
    let listener = TcpListener::bind(("127.0.0.1", ports.next().expect("a port"))).expect("free");
    let engines: Vec<_> = ports.collect();
    for (client, engine) in listener.incoming().flatten().zip(engines.iter().cycle()) {
        let engine = TcpStream::connect(("127.0.0.1", *engine)).expect("an engine");
        std::thread::Builder::new()
            .stack_size(64 * 1024)
            .spawn(move || carry(client, engine))
            .expect("a thread");
    }
}

/// Ends with the first that is read to its end, or fails.
fn carry(mut client: TcpStream, mut engine: TcpStream) {
    for stream in [&client, &engine] {
        stream.set_nodelay(true).expect("nodelay");
    }
    let mut buffer = vec![0; 16 * 1024];
    loop {
        if !pass(&mut client, &mut engine, &mut buffer) {
            return;
        }
        if !pass(&mut engine, &mut client, &mut buffer) {
            return;
        }
    }
}

fn pass(from: &mut TcpStream, to: &mut TcpStream, buffer: &mut [u8]) -> bool {
    match from.read(buffer) {
        Ok(0) | Err(_) => false,
        Ok(count) => to.write_all(&buffer[..count]).is_ok(),
    }
}
