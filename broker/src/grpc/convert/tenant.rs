//! Tenants as operators see them.

use broker_core::TenantView;
use vramd_proto::v1;

use super::view::count;
use crate::events::{advice_permission, standing_source, tenant_class};

pub(in crate::grpc) fn tenant(view: TenantView) -> v1::Tenant {
    v1::Tenant {
        name: view.tenant,
        class: tenant_class(view.standing.class).into(),
        weight: view.standing.weight.get(),
        source: standing_source(view.source).into(),
        device_bytes: view.on_device.get(),
        host_bytes: view.in_host.get(),
        disk_bytes: view.on_disk.get(),
        session_count: count(view.sessions),
        advice: advice_permission(view.standing.advice).into(),
    }
}
