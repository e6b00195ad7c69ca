//! A minimal HTTP client for servers on this node.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Sends a GET request, and closes the connection after the answer.
pub fn try_get(server: SocketAddr, path: &str) -> io::Result<Answer> {
    try_get_accepting(server, path, "*/*")
}

fn try_get_accepting(server: SocketAddr, path: &str, accepted: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {server}\r\nAccept: {accepted}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let parsed = answer.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
    });
    parsed.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, answer))
}

#[track_caller]
pub fn get(server: SocketAddr, path: &str) -> Answer {
    try_get(server, path).unwrap_or_else(|why| panic!("GET http://{server}{path}: {why}"))
}

/// The same, with the media types that the client accepts.
#[track_caller]
pub fn get_accepting(server: SocketAddr, path: &str, accepted: &str) -> Answer {
    try_get_accepting(server, path, accepted).unwrap_or_else(|why| panic!("GET http://{server}{path}: {why}"))
}

/// The JSON answer of an API.
pub fn try_json(server: SocketAddr, path: &str) -> Option<Value> {
    let answer = try_get(server, path).ok()?;
    (answer.status == 200).then(|| serde_json::from_str(&answer.body).ok()).flatten()
}

/// A port of this node without a listener.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("a listener has an address")
}
