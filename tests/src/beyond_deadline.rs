//! A gRPC client that sends its deadline and waits for the answer beyond it.
//!
//! Every other client gives up by itself at its deadline, and never sees the daemon's answer.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use http::{HeaderMap, Request};
use prost::Message;
use tokio::{net::UnixStream, time::timeout};
use tonic::Status;

use crate::{rpc::runtime, wait::PATIENCE};

/// The status with which the daemon answers a call with this `grpc-timeout`.
#[track_caller]
pub fn status_beyond_deadline(
    socket: &Path,
    method: &str,
    request: &impl Message,
    deadline: Duration,
) -> Status {
    let mut body = vec![0];
    let message = request.encode_to_vec();
    body.extend(u32::try_from(message.len()).expect("a test's message is short").to_be_bytes());
    body.extend(message);
    let call = async { timeout(PATIENCE, call(socket, method, body, deadline)).await };
    let headers = runtime().block_on(call).expect("the daemon answers").expect("the daemon speaks HTTP/2");
    Status::from_header_map(&headers).expect("an answer has a status")
}

async fn call(socket: &Path, method: &str, body: Vec<u8>, deadline: Duration) -> Result<HeaderMap> {
    let (client, connection) = h2::client::handshake(UnixStream::connect(socket).await?).await?;
    let driver = tokio::spawn(connection);
    let request = Request::post(format!("http://localhost/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", format!("{}m", deadline.as_millis()))
        .body(())?;
    let (response, mut stream) = client.ready().await?.send_request(request, false)?;
    stream.send_data(body.into(), true)?;
    let (head, mut body) = response.await?.into_parts();
    while let Some(chunk) = body.data().await {
        chunk?;
    }
    let trailers = body.trailers().await?;
    driver.abort();
    // A refusal without a message has its status in the head.
    trailers.or(Some(head.headers)).context("neither head nor trailers")
}
