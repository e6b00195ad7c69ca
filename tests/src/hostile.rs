//! A client on the daemon's gRPC sockets that keeps no rule but those of HTTP/2: it leaves requests unfinished and
//! answers unread, many at once.

use std::path::Path;

use anyhow::Result;
use h2::{
    RecvStream, SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::Request;
use tokio::{
    io::AsyncWriteExt as _,
    net::UnixStream,
    runtime::{Builder, Runtime},
};

/// The first bytes of each HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const EMPTY_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const HEADERS: u8 = 1;

/// Connections and calls that last until this is dropped.
#[derive(Debug)]
pub struct Hostile {
    runtime: Runtime,
    connections: Vec<SendRequest<bytes::Bytes>>,
    calls: Vec<Call>,
    silent: Vec<UnixStream>,
}

/// One call, which stays open.
#[derive(Debug)]
struct Call {
    _request: SendStream<bytes::Bytes>,
    answer: Option<ResponseFuture>,
    body: Option<RecvStream>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this gRPC code, in the head of the answer.
    Code(i32),
    /// The daemon answers.
    Answered,
    /// The daemon has ended the stream or its connection.
    Cut,
}

impl Default for Hostile {
    fn default() -> Self {
        Self::new()
    }
}

impl Hostile {
    pub fn new() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime can be built");
        Self { runtime, connections: Vec::new(), calls: Vec::new(), silent: Vec::new() }
    }

    /// Opens connections. The daemon may send at most `window` bytes of each answer.
    pub fn connect(&mut self, socket: &Path, count: usize, window: u32) -> Result<()> {
        for _ in 0..count {
            let connected = self.runtime.block_on(async {
                let stream = UnixStream::connect(socket).await?;
                let mut builder = h2::client::Builder::new();
                builder.initial_window_size(window);
                anyhow::Ok(builder.handshake(stream).await?)
            });
            let (client, connection) = connected?;
            self.runtime.spawn(connection);
            self.connections.push(client);
        }
        Ok(())
    }

    /// Begins calls on every connection, each with these bytes in its request. Calls that the daemon does not take are
    /// left out.
    pub fn call(&mut self, count: usize, method: &str, bytes: &bytes::Bytes, ends: bool) {
        for connection in &self.connections {
            for _ in 0..count {
                let Ok(mut client) = self.runtime.block_on(connection.clone().ready()) else { break };
                let request = Request::post(format!("http://localhost/{method}"))
                    .header("content-type", "application/grpc")
                    .header("te", "trailers")
                    .body(())
                    .expect("the request is well formed");
                let Ok((answer, mut request)) = client.send_request(request, false) else { break };
                // The bytes are shared, so a million of them cost this process nothing.
                if request.send_data(bytes.clone(), ends).is_ok() {
                    self.calls.push(Call { _request: request, answer: Some(answer), body: None });
                }
            }
        }
    }

    /// Connects and sends these bytes, and nothing more.
    pub fn send(&mut self, socket: &Path, count: usize, bytes: &[u8]) -> Result<()> {
        for _ in 0..count {
            let stream = self.runtime.block_on(async {
                let mut stream = UnixStream::connect(socket).await?;
                // A daemon that refuses the connection has closed it.
                let _ = stream.write_all(bytes).await;
                anyhow::Ok(stream)
            })?;
            self.silent.push(stream);
        }
        Ok(())
    }

    /// Waits for the heads of all answers.
    pub fn heads(&mut self) -> Vec<Ended> {
        let Self { runtime, calls, .. } = self;
        let heads = calls.iter_mut().filter_map(|call| {
            let answer = call.answer.take()?;
            Some(match runtime.block_on(answer) {
                Ok(response) => {
                    let code = response.headers().get("grpc-status").and_then(|code| code.to_str().ok());
                    let ended = code.and_then(|code| code.parse().ok()).map_or(Ended::Answered, Ended::Code);
                    call.body = Some(response.into_body());
                    ended
                }
                Err(_) => Ended::Cut,
            })
        });
        heads.collect()
    }

    /// Counts the silent connections that the daemon has closed.
    pub fn closed(&self) -> usize {
        let is_closed = |stream: &&UnixStream| {
            let mut buffer = [0; 4096];
            loop {
                match stream.try_read(&mut buffer) {
                    Ok(0) => return true,
                    Ok(_) => {}
                    Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
                }
            }
        };
        self.silent.iter().filter(is_closed).count()
    }
}

/// The beginning of a connection.
pub fn preface() -> Vec<u8> {
    [PREFACE, &EMPTY_SETTINGS].concat()
}

/// The beginning of a connection whose first request has headers of this size that never end.
pub fn unfinished_headers(size: u16) -> Vec<u8> {
    let [high, low] = size.to_be_bytes();
    let frame = [0, high, low, HEADERS, 0, 0, 0, 0, 1];
    // Each byte names one header of the static table.
    let block = vec![0x82; usize::from(size)];
    [preface(), frame.to_vec(), block].concat()
}

/// The first bytes of a gRPC message with this length.
pub fn message_head(length: usize) -> [u8; 5] {
    let [a, b, c, d] = u32::try_from(length).expect("gRPC's lengths have 32 bits").to_be_bytes();
    [0, a, b, c, d]
}
