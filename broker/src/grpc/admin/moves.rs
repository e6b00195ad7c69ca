//! Waits, moves, holds and advice.

use broker_core::{Broker, OperatorRequest, Reply};
use tonic::Status;
use vramd_proto::v1;
use vramd_types::{PartIndex, WaitId};

use super::{Admin, Operator};
use crate::grpc::{
    convert::{
        moves as view,
        page::{Page, next_token},
        request as convert,
        view::{For, allocation, part_move},
    },
    status::{self, refused},
};

impl Admin {
    pub(super) async fn waits(&self, message: v1::ListWaitsRequest) -> Result<v1::ListWaitsResponse, Status> {
        let page =
            Page::parse(message.page_size, &message.page_token).map_err(|refusal| refused(&refusal))?;
        let tenant = convert::tenant(message.tenant).map_err(|refusal| refused(&refusal))?;
        let (views, more) = self
            .read(move |broker| {
                let mut views = broker.waits();
                let after = page.after.map(WaitId::from_shown);
                views.retain(|view| {
                    after.is_none_or(|after| view.id > after)
                        && tenant.as_ref().is_none_or(|tenant| view.tenant == *tenant)
                });
                let more = views.len() > page.size;
                views.truncate(page.size);
                (views, more)
            })
            .await?;
        let next_page_token = next_token(views.last().map(|view| view.id.shown()), more);
        let waits = views.into_iter().map(|it| view::wait(it, self.facts.started_at)).collect();
        Ok(v1::ListWaitsResponse { waits, next_page_token })
    }

    pub(super) async fn cancel(
        &self,
        operator: Operator,
        message: v1::CancelWaitRequest,
    ) -> Result<v1::CancelWaitResponse, Status> {
        let key = convert::key(&message.request_id, &message).map_err(|refusal| refused(&refusal))?;
        let change = OperatorRequest::CancelWait { wait: WaitId::from_shown(message.wait_id) };
        match self.submit(operator, key, change).await? {
            Reply::WaitCancelled => Ok(v1::CancelWaitResponse {}),
            other => Err(status::wrong_reply("CancelWait", &other)),
        }
    }

    pub(super) async fn hold(
        &self,
        operator: Operator,
        message: v1::HoldPartsRequest,
    ) -> Result<v1::HoldPartsResponse, Status> {
        let key = convert::key(&message.request_id, &message).map_err(|refusal| refused(&refusal))?;
        let target = convert::target(message.target).map_err(|refusal| refused(&refusal))?;
        let parts = message.part_indexes.into_iter().map(PartIndex).collect();
        let change = OperatorRequest::HoldParts { target, parts, hold: !message.let_go };
        match self.submit(operator, key, change).await? {
            Reply::PartsHeld { allocation, parts } => Ok(v1::HoldPartsResponse {
                allocation_id: allocation.shown(),
                part_indexes: parts.into_iter().map(|part| part.0).collect(),
            }),
            other => Err(status::wrong_reply("HoldParts", &other)),
        }
    }

    pub(super) async fn advise(
        &self,
        operator: Operator,
        message: v1::AdvisePartsRequest,
    ) -> Result<v1::AdvisePartsResponse, Status> {
        let key = convert::key(&message.request_id, &message).map_err(|refusal| refused(&refusal))?;
        let target = convert::target(message.target.clone()).map_err(|refusal| refused(&refusal))?;
        let (parts, change) = convert::operator_advice(message).map_err(|refusal| refused(&refusal))?;
        match self.submit(operator, key, OperatorRequest::AdviseParts { target, parts, change }).await? {
            Reply::Advised(view) => {
                Ok(v1::AdvisePartsResponse { allocation: Some(allocation(*view, For::Operators)) })
            }
            other => Err(status::wrong_reply("AdviseParts", &other)),
        }
    }

    pub(super) async fn write_back(
        &self,
        operator: Operator,
        message: v1::WriteBackPartsRequest,
    ) -> Result<v1::WriteBackPartsResponse, Status> {
        let key = convert::key(&message.request_id, &message).map_err(|refusal| refused(&refusal))?;
        let target = convert::target(message.target).map_err(|refusal| refused(&refusal))?;
        let parts = message.part_indexes.into_iter().map(PartIndex).collect();
        match self.submit(operator, key, OperatorRequest::WriteBackParts { target, parts }).await? {
            Reply::PartsMoved { allocation, parts } => Ok(v1::WriteBackPartsResponse {
                allocation_id: allocation.shown(),
                parts: parts.into_iter().map(part_move).collect(),
            }),
            other => Err(status::wrong_reply("WriteBackParts", &other)),
        }
    }

    pub(super) fn links(&self) -> v1::ListLinksResponse {
        let uuid_of = |device| self.moves.uuid_of(device);
        v1::ListLinksResponse {
            links: self.moves.links().iter().map(|link| view::link(link, &uuid_of)).collect(),
            traffic: self.moves.traffic().into_iter().map(|lane| view::traffic(lane, &uuid_of)).collect(),
        }
    }

    pub(super) async fn moving(
        &self,
        message: v1::ListMovesRequest,
    ) -> Result<v1::ListMovesResponse, Status> {
        let page =
            Page::parse(message.page_size, &message.page_token).map_err(|refusal| refused(&refusal))?;
        let tenant = convert::tenant(message.tenant).map_err(|refusal| refused(&refusal))?;
        // A move that ends between the two reads is among the ended ones.
        let mut views = self.read(Broker::moves).await?;
        views.retain(|view| tenant.as_ref().is_none_or(|tenant| view.tenant == *tenant));
        let (views, next_page_token) = page.cut(views);
        let started_at = self.facts.started_at;
        let moves = views.into_iter().map(|it| {
            let copied = self.moves.copied(it.extent);
            view::moving(it, copied, started_at)
        });
        let moves = moves.collect();
        let ended = match page.after {
            None => self.moves.ended(tenant.as_deref()),
            Some(_) => Vec::new(),
        };
        let ended = ended.into_iter().map(|it| {
            let uuid = self.moves.uuid_of(it.device);
            view::ended(it, uuid, started_at)
        });
        Ok(v1::ListMovesResponse { moves, next_page_token, ended: ended.collect() })
    }
}
