//! Tenants with their classes, their weights and the permission for advice.

use broker_core::{OperatorRequest, Reply};
use tonic::Status;
use vramd_proto::v1;

use super::{Admin, Operator};
use crate::grpc::{
    convert::{page::Page, request as convert, tenant as view},
    status::{self, refused},
};

impl Admin {
    pub(super) async fn set_tenant_of(
        &self,
        operator: Operator,
        message: v1::SetTenantRequest,
    ) -> Result<v1::SetTenantResponse, Status> {
        let key = convert::key(&message.request_id, &message).map_err(|refusal| refused(&refusal))?;
        let class = convert::tenant_class(message.class).map_err(|refusal| refused(&refusal))?;
        let advice = convert::advice_permission(message.advice).map_err(|refusal| refused(&refusal))?;
        let (tenant, weight) = (message.tenant, message.weight);
        let change = OperatorRequest::SetTenant { tenant, class, weight, advice };
        match self.submit(operator, key, change).await? {
            Reply::TenantChanged(tenant) => Ok(v1::SetTenantResponse { tenant: Some(view::tenant(*tenant)) }),
            other => Err(status::wrong_reply("SetTenant", &other)),
        }
    }

    pub(super) async fn reset_tenant_of(
        &self,
        operator: Operator,
        message: v1::ResetTenantRequest,
    ) -> Result<v1::ResetTenantResponse, Status> {
        let key = convert::key(&message.request_id, &message).map_err(|refusal| refused(&refusal))?;
        let change = OperatorRequest::ResetTenant { tenant: message.tenant };
        match self.submit(operator, key, change).await? {
            Reply::TenantChanged(tenant) => {
                Ok(v1::ResetTenantResponse { tenant: Some(view::tenant(*tenant)) })
            }
            other => Err(status::wrong_reply("ResetTenant", &other)),
        }
    }

    pub(super) async fn tenants(
        &self,
        message: v1::ListTenantsRequest,
    ) -> Result<v1::ListTenantsResponse, Status> {
        let page =
            Page::parse(message.page_size, &message.page_token).map_err(|refusal| refused(&refusal))?;
        let tenant = convert::tenant(message.tenant).map_err(|refusal| refused(&refusal))?;
        let views = self.read(move |broker| broker.list_tenants(tenant.as_deref())).await?;
        let (views, next_page_token) = page.cut(views);
        let tenants = views.into_iter().map(view::tenant).collect();
        Ok(v1::ListTenantsResponse { tenants, next_page_token })
    }
}
