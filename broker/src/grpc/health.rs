//! The gRPC health service. It says the same as `/readyz`, to callers whose connections stand.
//!
//! The whole daemon and `MemoryService` are not serving while the daemon's sockets are lost, while the node drains, and
//! once the daemon stops. A drain does not concern `AdminService`: operators end it there.

use tokio::sync::watch;
use tonic::server::NamedService;
use tonic_health::{
    ServingStatus,
    pb::health_server::{Health, HealthServer},
    server::{HealthReporter, HealthService},
};
use vramd_proto::v1::{admin_service_server::AdminServiceServer, memory_service_server::MemoryServiceServer};

use super::{admin::Admin, memory::Memory};
use crate::socket_keeper::Unreachable;

pub(super) const MEMORY_SERVICE: &str = MemoryServiceServer::<Memory>::NAME;
pub(super) const ADMIN_SERVICE: &str = AdminServiceServer::<Admin>::NAME;

/// The health of each service. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Reports(HealthReporter);

impl Reports {
    /// Everything is serving.
    pub(super) async fn new() -> Self {
        let reports = Self(HealthReporter::new());
        reports.set(true, true).await;
        reports
    }

    pub(super) fn service(&self) -> HealthServer<impl Health> {
        HealthServer::new(HealthService::from_health_reporter(self.0.clone()))
    }

    /// Reports each change of readiness. Never returns.
    pub(super) async fn follow(&self, mut unreachable: Unreachable, mut draining: watch::Receiver<bool>) {
        loop {
            let is_reachable = unreachable.borrow_and_update().is_none();
            let is_draining = *draining.borrow_and_update();
            self.set(is_reachable && !is_draining, is_reachable).await;
            // A sender that is gone tells nothing more.
            tokio::select! {
                Ok(()) = unreachable.changed() => {}
                Ok(()) = draining.changed() => {}
                else => std::future::pending::<()>().await,
            }
        }
    }

    /// Reports that the daemon stops.
    pub(super) async fn end(&self) {
        self.set(false, false).await;
    }

    async fn set(&self, memory: bool, admin: bool) {
        for (service, is_serving) in [("", memory), (MEMORY_SERVICE, memory), (ADMIN_SERVICE, admin)] {
            let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
            self.0.set_service_status(service, status).await;
        }
    }
}
