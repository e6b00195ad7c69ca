//! All tables of `admin.sock` at once. Tests compare them to show that a refusal changed nothing, and that nothing is left.

use vramd_proto::v1::{
    Allocation, DeviceStatus, GetNodeRequest, GetNodeResponse, ListAllAllocationsRequest, ListDevicesRequest,
    ListQuotasRequest, ListSessionsRequest, Quota, Session,
};

use crate::rpc::Admin;

/// The tables of `admin.sock`.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    pub node: GetNodeResponse,
    pub devices: Vec<DeviceStatus>,
    pub quotas: Vec<Quota>,
    pub sessions: Vec<Session>,
    pub allocations: Vec<Allocation>,
}

impl NodeState {
    /// Reads all tables. Each one is consistent in itself; events may happen between two of them.
    #[track_caller]
    pub fn read(admin: &Admin) -> Self {
        const PAGE: u32 = 1000;
        Self {
            node: admin.get_node(GetNodeRequest {}).ok(),
            devices: admin.list_devices(ListDevicesRequest {}).ok().devices,
            quotas: admin
                .list_quotas(ListQuotasRequest { page_size: Some(PAGE), ..Default::default() })
                .ok()
                .quotas,
            sessions: admin
                .list_sessions(ListSessionsRequest { page_size: Some(PAGE), ..Default::default() })
                .ok()
                .sessions,
            allocations: admin
                .list_all_allocations(ListAllAllocationsRequest {
                    page_size: Some(PAGE),
                    ..Default::default()
                })
                .ok()
                .allocations,
        }
    }

    /// Bytes charged on all devices.
    pub fn charged(&self) -> u64 {
        self.devices.iter().map(|device| device.held_bytes).sum()
    }

    /// Bytes charged in the host tiers of all devices.
    pub fn charged_in_host(&self) -> u64 {
        self.devices.iter().map(|device| device.host_held_bytes).sum()
    }

    pub fn charged_on_disk(&self) -> u64 {
        self.devices.iter().map(|device| device.disk_held_bytes).sum()
    }

    pub fn unreturned(&self) -> u64 {
        self.devices.iter().map(|device| device.unreturned_bytes).sum()
    }

    pub fn unbrokered(&self) -> u64 {
        self.devices.iter().map(|device| device.unbrokered_bytes).sum()
    }

    /// Bytes charged to one tenant in all places.
    pub fn charged_to(&self, tenant: &str) -> u64 {
        self.quotas.iter().filter(|quota| quota.tenant == tenant).map(|quota| quota.held_bytes).sum()
    }

    pub fn session(&self, id: u64) -> Option<&Session> {
        self.sessions.iter().find(|session| session.session_id == id)
    }

    pub fn allocation(&self, id: u64) -> Option<&Allocation> {
        self.allocations.iter().find(|allocation| allocation.allocation_id == id)
    }

    /// Whether nothing is allocated, charged, or in flight.
    pub fn is_empty(&self) -> bool {
        self.allocations.is_empty()
            && self.charged() == 0
            && self.charged_in_host() == 0
            && self.charged_on_disk() == 0
            && self.unreturned() == 0
            && self.node.fds_in_flight == 0
    }
}
