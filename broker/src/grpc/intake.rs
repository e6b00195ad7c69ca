//! Reads each request as a whole before its service sees it, within the budget of its user and a time limit.
//!
//! ```text
//!   call ──▶ charge the call ──▶ read the message, charged ──▶ count its items, charged ──▶ service ──▶ charged answer
//!                 │                       │                           │
//!                 └── beyond the budget ──┴── too large, too late ────┴── too many ──▶ refusal
//! ```
//!
//! So a peer can make the daemon hold no more than its budget, however many calls and connections it leaves
//! unfinished, and however few answers it reads. The price is one more copy of each request.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::timeout;
use tonic::{
    Status,
    body::Body,
    codegen::http::{HeaderMap, HeaderValue, Request, Response, header::CONTENT_TYPE},
};
use tower::{Layer, Service};

use super::{
    budget::Charge,
    connections::{Contact, OpenCall},
    message_rules::{MessageRules, Shape},
    status,
};

/// The bytes of a call beside its message and answer: its tasks, and the stream in the HTTP/2 library.
const CALL_BYTES: usize = 8 << 10;
/// The bytes of a header beside its text.
const HEADER_BYTES: usize = 64;
/// The bytes of a call whose client sends messages without end: those that the daemon has not read yet, and an answer
/// on its way.
const STREAM_BYTES: usize = 192 << 10;
/// The flag and the length before each message.
const MESSAGE_HEAD_BYTES: usize = 5;
/// A smaller piece of an answer is copied, since it would keep the buffer that it was written into.
const COPIED_BYTES_MAX: usize = 4 << 10;

const GRPC: &str = "application/grpc";

#[derive(Clone, Copy, Debug)]
pub(super) struct IntakeLayer {
    /// How long a request may take to arrive as a whole.
    pub(super) read_timeout: Duration,
    pub(super) rules: MessageRules,
}

impl<S> Layer<S> for IntakeLayer {
    type Service = Intake<S>;

    fn layer(&self, inner: S) -> Intake<S> {
        Intake { inner, layer: *self }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Intake<S> {
    inner: S,
    layer: IntakeLayer,
}

/// The charges of a request that was read. The core's waiting request keeps them too, because it outlasts a caller that
/// gives up.
#[derive(Clone, Debug)]
pub(super) struct Held {
    _call: Arc<OpenCall>,
    _message: Arc<Charge>,
}

impl<S> Service<Request<Body>> for Intake<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let Some(contact) = request.extensions_mut().remove::<Contact>() else {
            return Box::pin(async { Ok(status::unidentified().into_http()) });
        };
        let open_call = match contact.begin_call(CALL_BYTES + head_bytes(&request)) {
            Ok(open_call) => Arc::new(open_call),
            Err(refusal) => return Box::pin(async { Ok(*refusal) }),
        };
        request.extensions_mut().insert(contact.origin().clone());
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let layer = self.layer;
        Box::pin(async move {
            let unread = Unread(&contact);
            let response = match layer.read(request, &contact, &open_call).await {
                Ok(request) => {
                    unread.finish();
                    inner.call(request).await?
                }
                Err(status) => status.into_http(),
            };
            Ok(charged(response, open_call))
        })
    }
}

/// A request whose message is still being read. The stream ends early if this is dropped, by a refusal or because the
/// call is given up.
struct Unread<'a>(&'a Contact);

impl Unread<'_> {
    fn finish(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        self.0.end_early();
    }
}

impl IntakeLayer {
    /// Replaces the body of a request by its whole message.
    async fn read(
        self,
        request: Request<Body>,
        contact: &Contact,
        open_call: &Arc<OpenCall>,
    ) -> Result<Request<Body>, Status> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path();
        let Shape::Message { bytes_max } = self.rules.shape(path) else {
            if !open_call.charge().grow(STREAM_BYTES) {
                return Err(contact.over_budget());
            }
            return Ok(Request::from_parts(head, body));
        };
        let read =
            timeout(self.read_timeout, read_message(body, bytes_max, contact, open_call.charge())).await;
        let (bytes, message) = read.map_err(|_| status::request_unfinished(self.read_timeout))??;
        let content = bytes.get(MESSAGE_HEAD_BYTES..).unwrap_or_default();
        let decoded = self.rules.decoded_bytes(path, content).map_err(|refusal| status::refused(&refusal))?;
        if !message.grow(decoded) {
            return Err(contact.over_budget());
        }
        head.extensions.insert(Held { _call: Arc::clone(open_call), _message: Arc::new(message) });
        Ok(Request::from_parts(head, Body::new(Full::new(Bytes::from(bytes)))))
    }
}

/// Reads one message with its head, and charges it once its length is known.
async fn read_message(
    mut body: Body,
    bytes_max: usize,
    contact: &Contact,
    charge: &Charge,
) -> Result<(Vec<u8>, Charge), Status> {
    let mut bytes = Vec::new();
    let mut whole: Option<(usize, Charge)> = None;
    while let Some(frame) = body.frame().await {
        // Trailers mean nothing here.
        let Ok(data) = frame?.into_data() else { continue };
        let sum = bytes.len() + data.len();
        if whole.as_ref().is_some_and(|(length, _)| sum > *length) {
            return Err(status::more_than_one_message());
        }
        bytes.extend_from_slice(&data);
        if whole.is_some() || bytes.len() < MESSAGE_HEAD_BYTES {
            continue;
        }
        let length = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize;
        if length > bytes_max {
            return Err(status::message_too_large(length, bytes_max));
        }
        let length = MESSAGE_HEAD_BYTES + length;
        if bytes.len() > length {
            return Err(status::more_than_one_message());
        }
        let charge = charge.beside(length).ok_or_else(|| contact.over_budget())?;
        bytes.reserve_exact(length - bytes.len());
        whole = Some((length, charge));
    }
    // The service refuses a message that ends early.
    let message = match whole {
        Some((_, charge)) => charge,
        None => charge.beside(0).ok_or_else(|| contact.over_budget())?,
    };
    Ok((bytes, message))
}

fn head_bytes(request: &Request<Body>) -> usize {
    let size = |(name, value): (&_, &HeaderValue)| -> usize {
        let name: &tonic::codegen::http::HeaderName = name;
        name.as_str().len() + value.len() + HEADER_BYTES
    };
    request.uri().path().len() + request.headers().iter().map(size).sum::<usize>()
}

/// Keeps the charge until the answer is written.
pub(super) fn charged(response: Response<Body>, open_call: Arc<OpenCall>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    hold_until_written(&mut head.headers, Arc::clone(&open_call));
    Response::from_parts(head, Body::new(ChargedBody { inner: body, open_call }))
}

/// Puts the charge into the value of a header, which the HTTP/2 library drops when it writes the headers. A sensitive
/// value is never kept to abbreviate later headers.
fn hold_until_written(headers: &mut HeaderMap, open_call: Arc<OpenCall>) {
    let Some(value) = headers.get_mut(CONTENT_TYPE).filter(|value| *value == GRPC) else { return };
    let held = Bytes::from_owner(Owned { bytes: Bytes::from_static(GRPC.as_bytes()), _charge: open_call });
    if let Ok(mut holding) = HeaderValue::from_maybe_shared(held) {
        holding.set_sensitive(true);
        *value = holding;
    }
}

/// Bytes with a charge for them.
struct Owned<C> {
    bytes: Bytes,
    _charge: C,
}

impl<C> AsRef<[u8]> for Owned<C> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The body of an answer. Each piece is charged until it is written.
struct ChargedBody {
    inner: Body,
    open_call: Arc<OpenCall>,
}

impl HttpBody for ChargedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        Poll::Ready(Some(match frame?.into_data() {
            Ok(data) => match self.open_call.charge().beside(data.len()) {
                Some(charge) => {
                    let bytes =
                        if data.len() < COPIED_BYTES_MAX { Bytes::copy_from_slice(&data) } else { data };
                    let charge = (charge, Arc::clone(&self.open_call));
                    Ok(Frame::data(Bytes::from_owner(Owned { bytes, _charge: charge })))
                }
                None => {
                    // The answer ends with a status, and without its message.
                    self.inner = Body::empty();
                    let charge = self.open_call.charge();
                    let refusal = status::user_limit(charge.uid(), charge.bytes_max());
                    let mut trailers = HeaderMap::new();
                    refusal.add_header(&mut trailers).map(|()| Frame::trailers(trailers))
                }
            },
            Err(other) => Ok(other),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
