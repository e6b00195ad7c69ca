//! Tenants files that operators send.

use std::time::{Duration, UNIX_EPOCH};

use tonic::Status;
use vramd_proto::v1;

use super::{Admin, Operator};
use crate::{
    events::tier,
    grpc::{
        convert::view::count,
        status::{self, refused},
    },
    tenants::{ApplyError, Change, Drift},
};

impl Admin {
    pub(super) async fn apply_tenants_of(
        &self,
        operator: Operator,
        message: v1::ApplyTenantsRequest,
    ) -> Result<v1::ApplyTenantsResponse, Status> {
        let v1::ApplyTenantsRequest { content, source, dry_run } = message;
        let applied = self.tenants.apply(content, &source, operator.uid, dry_run).await;
        let changes = applied.map_err(|error| not_applied(&error))?;
        Ok(v1::ApplyTenantsResponse { changes: changes.into_iter().map(change).collect() })
    }
}

/// The last applied file, as operators see it.
pub(super) fn applied(drift: Drift) -> v1::AppliedTenants {
    v1::AppliedTenants {
        source: drift.source,
        applied_at: Some((UNIX_EPOCH + Duration::from_secs(drift.applied_s)).into()),
        difference_count: count(drift.differences),
        refused: drift.refused,
    }
}

fn change(change: Change) -> v1::TenantChange {
    let (tier, device) = match change.place {
        Some((of, device)) => (tier(of), device),
        None => (v1::Tier::Unspecified, String::new()),
    };
    v1::TenantChange {
        tenant: change.tenant,
        field: change.field.to_owned(),
        device,
        tier: tier.into(),
        before: change.before,
        after: change.after,
    }
}

fn not_applied(error: &ApplyError) -> Status {
    match error {
        ApplyError::Wrong(_, location) => status::tenants_file_wrong(&error.to_string(), location),
        ApplyError::File(_) | ApplyError::Rules(_) => {
            status::tenants_file_wrong(&error.to_string(), &Default::default())
        }
        ApplyError::Refused(refusal) => refused(refusal),
        ApplyError::HalfRestored { refusal, .. } => status::half_restored(refusal, &error.to_string()),
        ApplyError::Stopping => status::stopping(),
    }
}
