//! An OpenTelemetry collector over gRPC that stores what it receives, or one that never answers.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, JoinHandle},
};

use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::{
            ExportLogsServiceRequest, ExportLogsServiceResponse,
            logs_service_server::{LogsService, LogsServiceServer},
        },
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::{KeyValue, any_value::Value},
    logs::v1::LogRecord,
    metrics::v1::Metric,
    resource::v1::Resource,
    trace::v1::Span,
};
use tokio::{net::TcpListener, runtime, sync::oneshot};
use tonic::{Request, Response, Status, async_trait, transport::server::TcpIncoming};

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Ends with the test.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    kept: Kept,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Everything that was received, in order.
#[derive(Clone, Debug, Default)]
pub struct Received {
    pub spans: Vec<Span>,
    pub logs: Vec<LogRecord>,
    /// The metrics of the last export.
    pub metrics: Vec<Metric>,
    pub resource: Option<Resource>,
    pub exports: usize,
}

#[derive(Clone, Debug, Default)]
struct Kept {
    received: Arc<Mutex<Received>>,
    silent: bool,
}

impl Collector {
    #[track_caller]
    pub fn start() -> Self {
        Self::at(ANY_PORT)
    }

    #[track_caller]
    pub fn at(address: SocketAddr) -> Self {
        Self::serve(address, Kept::default())
    }

    /// A collector that takes everything and never answers.
    #[track_caller]
    pub fn silent() -> Self {
        Self::serve(ANY_PORT, Kept { silent: true, ..Kept::default() })
    }

    #[track_caller]
    fn serve(address: SocketAddr, kept: Kept) -> Self {
        let runtime =
            runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
        let listener = runtime.block_on(TcpListener::bind(address)).expect("the port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let (stop, stopped) = oneshot::channel();
        let serving = kept.clone();
        let thread = thread::spawn(move || {
            let server = tonic::transport::Server::builder()
                .add_service(TraceServiceServer::new(serving.clone()))
                .add_service(LogsServiceServer::new(serving.clone()))
                .add_service(MetricsServiceServer::new(serving));
            runtime.block_on(async {
                tokio::select! {
                    served = server.serve_with_incoming(TcpIncoming::from(listener)) => served.expect("it serves"),
                    _ = stopped => {}
                }
            });
        });
        Self { address, kept, stop: Some(stop), thread: Some(thread) }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn received(&self) -> Received {
        self.kept.received().clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.transpose().expect("the collector does not panic");
        }
    }
}

impl Kept {
    fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().expect("no holder of the lock panics")
    }

    async fn take<T: Default>(&self, take: impl FnOnce(&mut Received)) -> Result<Response<T>, Status> {
        {
            let mut received = self.received();
            received.exports += 1;
            take(&mut received);
        }
        if self.silent {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(T::default()))
    }
}

#[async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.take(|received| {
            for of in request.into_inner().resource_spans {
                received.resource = of.resource;
                received.spans.extend(of.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        })
        .await
    }
}

#[async_trait]
impl LogsService for Kept {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.take(|received| {
            for of in request.into_inner().resource_logs {
                received.logs.extend(of.scope_logs.into_iter().flat_map(|scope| scope.log_records));
            }
        })
        .await
    }
}

#[async_trait]
impl MetricsService for Kept {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.take(|received| {
            let all = request.into_inner().resource_metrics.into_iter();
            let scopes = all.flat_map(|of| of.scope_metrics);
            received.metrics = scopes.flat_map(|scope| scope.metrics).collect();
        })
        .await
    }
}

/// The text of an attribute, or nothing.
pub fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> &'a str {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        _ => "",
    }
}

/// The value of a number.
pub fn number(attributes: &[KeyValue], key: &str) -> Option<f64> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::IntValue(number) => Some(f64::from(i32::try_from(*number).ok()?)),
        Value::DoubleValue(number) => Some(*number),
        _ => None,
    }
}

/// The line of a log record.
pub fn line(record: &LogRecord) -> &str {
    match record.body.as_ref().and_then(|body| body.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        _ => "",
    }
}
