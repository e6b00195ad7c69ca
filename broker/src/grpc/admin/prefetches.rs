//! Prefetch requests.

use broker_core::{OperatorRequest, Reply};
use tonic::Status;
use vramd_proto::v1;
use vramd_types::SessionId;

use super::{Admin, Operator};
use crate::grpc::{
    convert::{page::Page, prefetch as view, request as convert},
    status::{self, refused},
};

impl Admin {
    pub(super) async fn prefetches(
        &self,
        message: v1::ListPrefetchesRequest,
    ) -> Result<v1::ListPrefetchesResponse, Status> {
        let page =
            Page::parse(message.page_size, &message.page_token).map_err(|refusal| refused(&refusal))?;
        let tenant = convert::tenant(message.tenant).map_err(|refusal| refused(&refusal))?;
        let views = self
            .read(move |broker| {
                let mut views = broker.prefetches();
                views.retain(|view| tenant.as_ref().is_none_or(|tenant| *view.tenant == **tenant));
                views
            })
            .await?;
        let (views, next_page_token) = page.cut(views);
        let prefetches = views.iter().map(|it| view::prefetch(it, self.facts.started_at)).collect();
        Ok(v1::ListPrefetchesResponse { prefetches, next_page_token })
    }

    pub(super) async fn cancel_prefetch_of(
        &self,
        operator: Operator,
        message: v1::CancelPrefetchRequest,
    ) -> Result<v1::CancelPrefetchResponse, Status> {
        let key = convert::key(&message.request_id, &message).map_err(|refusal| refused(&refusal))?;
        let session = SessionId::from_shown(message.session_id);
        let change = OperatorRequest::CancelPrefetch { session, number: message.prefetch_id };
        match self.submit(operator, key, change).await? {
            Reply::PrefetchCancelled => Ok(v1::CancelPrefetchResponse {}),
            other => Err(status::wrong_reply("CancelPrefetch", &other)),
        }
    }
}
